"""Formats counts, bytes, times, ranks, hosts and text tables for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def align(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, its heading underlined."""
    underline = ["-" * max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    return in_columns([heading, underline, *rows])


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, with aligned cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def bytes_text(count: int | None) -> str:
    """A byte count as text: decimal units, three digits."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "B" else f"{count} B"
        size /= 1000
    return f"{size:.4g} GB"


def ms_text(seconds: float | None) -> str:
    """Milliseconds as text: three digits, and all integer digits."""
    if seconds is None:
        return "?"
    return f"{1e3 * seconds:.0f} ms" if abs(seconds) >= 0.9995 else f"{1e3 * seconds:.3g} ms"


def pluralize(count: int, what: str) -> str:
    """A count with its noun: `1 row`, `2 rows`."""
    return f"{count} {what}{'s' if count != 1 else ''}"


def list_first(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def first_line(text: str, width: int) -> str:
    """The first line of an error with content, shortened; TensorFlow's errors begin with a heading."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    informative = [line for line in lines if not line.endswith("Graph execution error:")]
    line = (informative or lines or [""])[0]
    return line if len(line) <= width else f"{line[: width - 3]}..."


def name_ranks(ranks: Sequence[int], noun: str = "rank") -> str:
    """Ascending ranks as text: `rank 3`, `ranks 0-3, 7`."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    names = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"{noun} {names}" if len(ranks) == 1 else f"{noun}s {names}"


def hosts_text(counts: Mapping[int, int]) -> str:
    """The number on each host, with equal neighbours merged: `2 on each of hosts 0-3, 1 on host 4`."""
    equal_hosts: list[tuple[int, list[int]]] = []
    for host, count in sorted(counts.items()):
        if equal_hosts and (count, host - 1) == (equal_hosts[-1][0], equal_hosts[-1][1][-1]):
            equal_hosts[-1][1].append(host)
        elif count:
            equal_hosts.append((count, [host]))
    return ", ".join(
        f"{count} on {'each of ' if len(hosts) > 1 else ''}{name_ranks(hosts, 'host')}" for count, hosts in equal_hosts
    )


def peer_memory_text(steps: int, sent_bytes: int, host_bytes: int, seconds: float | None) -> str:
    """The cost of the state in the memory of hosts, as a note of a plan.

    Args:
        steps: from one set to the next.
        sent_bytes: that a worker sends for a set to another host; 0 on one host.
        host_bytes: memory of a host.
        seconds: of its link, if measured.
    """
    often = "each step" if steps == 1 else f"every {steps} steps"
    if not sent_bytes:
        return f"{often} the state goes into the memory of this host alone, at most {bytes_text(host_bytes)}"
    link = "" if seconds is None else f", {ms_text(seconds)} of its link"
    return (
        f"{often} the state goes into the memory of two hosts: a worker sends at most {bytes_text(sent_bytes)} to "
        f"another host{link}, and a host holds at most {bytes_text(host_bytes)}"
    )
