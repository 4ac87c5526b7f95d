"""Formats the predicted memory of a plan: a row per process, a line per host, the largest terms, the largest batch."""

from __future__ import annotations

from parallax.plans.memory import HostUse, MemoryPlan, ProcessUse
from parallax.report.text import align, bytes_text, name_ranks

_COLUMNS = ("process", "host", "values", "slots", "gradients, buffers", "saving", "activations", "base", "total")


def memory_table(memory: MemoryPlan) -> str:
    """The output of `parallax plan --memory`; processes with the same figures on a host share a row."""
    rows = []
    equal_processes: dict[tuple[object, ...], list[ProcessUse]] = {}
    for use in memory.processes:
        equal_processes.setdefault((use.kind, use.host, _figures(use)), []).append(use)
    for (kind, host, figures), uses in equal_processes.items():
        numbers = name_ranks([use.number for use in uses], str(kind)) if kind != "launcher" else "launcher"
        rows.append((numbers, memory.hosts[int(str(host))].name, *figures))  # type: ignore[misc]
    lines = align(_COLUMNS, rows)
    lines += [_host_text(host) for host in memory.hosts]
    parts = ", ".join(f"{part.what} {bytes_text(part.held_bytes)}" for part in memory.dominating)
    lines.append(f"Most is held by {parts}.")
    lines.append(_batch_text(memory))
    lines += [f"note: {note}" for note in memory.notes]
    return "\n".join(lines) + "\n"


def _figures(use: ProcessUse) -> tuple[str, ...]:
    variables = use.values_bytes, use.slots_bytes
    sizes = (*variables, use.buffer_bytes, use.moved_bytes, use.activation_bytes, use.base_bytes, use.total_bytes)
    return tuple(map(bytes_text, sizes))


def _host_text(host: HostUse) -> str:
    fits = "fits" if host.fits else f"lacks {bytes_text(host.needs_bytes - host.has_bytes)}"
    needs, has = bytes_text(host.needs_bytes), bytes_text(host.has_bytes)
    return f"{host.name}: its processes hold {needs} of {has}, as {host.says} says: {fits}."


def _batch_text(memory: MemoryPlan) -> str:
    if memory.largest_batch is None:
        return "The largest batch is unknown: nothing that is counted grows with the batch."
    if not memory.largest_batch:
        return "No batch fits, however small: add hosts, or shard the largest variables."
    now = f" (now {memory.examples})" if memory.examples else ""
    return f"The largest batch of a worker that fits has {memory.largest_batch} examples{now}."
