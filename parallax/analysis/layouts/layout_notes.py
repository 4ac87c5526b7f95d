"""Plan notes on layouts: the ops that mix examples of the global batch and therefore read gathered inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallax.analysis.layouts.gathers import GatheredTensor, find_gathered
from parallax.analysis.layouts.rules.facts import REPLICATED
from parallax.base.errors import PlanError
from parallax.graph.batches import find_report_kind
from parallax.graph.local_statistics import is_statistic
from parallax.graph.spec import GradientSource
from parallax.graph.view import GraphView, node_of
from parallax.plans.layouts import ExampleNumbers, LayoutRewrites, Partial, Sharded
from parallax.plans.rewrites import Rewrites
from parallax.report.text import bytes_text, pluralize

_SHOWN = 3


def note_layouts(view: GraphView, layouts: LayoutRewrites) -> tuple[str, ...]:
    """The gathered tensors, and the cost of batch statistics; empty where there are neither."""
    return (*_note_gathering(view, layouts), *_note_statistics(view, layouts))


def _note_statistics(view: GraphView, layouts: LayoutRewrites) -> tuple[str, ...]:
    """The cost of the statistics of normalizations, and the setting that avoids it."""
    found = [one for one in layouts.changes if one.after == REPLICATED]
    reduced = {one.tensor for one in found if is_statistic(view.nodes[node_of(one.tensor)])}
    sizes = [view.shape(tensor) for tensor in reduced]
    elements = sum(math.prod(length or 1 for length in shape) for shape in sizes if shape is not None)
    if not elements:
        return ()
    return (
        f"batch normalization uses statistics of the global batch: {pluralize(len(reduced), 'all-reduce')} totalling "
        f'{4 * elements:,} B per step, and as much again for their gradients; Config(batch_norm="own") uses those of '
        "each per-worker batch",
    )


def _note_gathering(view: GraphView, layouts: LayoutRewrites) -> tuple[str, ...]:
    gathered = find_gathered(view, layouts)
    if not gathered:
        return ()
    need = "needs" if len({one.node for one in gathered}) == 1 else "need"
    return (f"{_list_ops(view, gathered)} {need} tensors of the global batch, which are all-gathered in every step",)


def note_values_by_batch(view: GraphView, rewrites: Rewrites, sources: Sequence[GradientSource]) -> tuple[str, ...]:
    """Values computed for each batch, or micro-batch, that one process would compute over all of them together.

    Args:
        view: the graph.
        rewrites: its rewrites.
        sources: where autodiff delivers gradients.
    """
    steps, cut = rewrites.terms.accumulate_steps, rewrites.micro_batches
    one_by_one = f"each of a step's {steps} micro-batches" if cut else f"each of an update's {steps} batches"
    one_by_one = f"{one_by_one} by itself, where a single process would take all of them together"
    gradient_nodes = {node_of(t) for one in sources for t in one.tensors}
    gradient_nodes.update(node_of(result.tensor) for one in cut for result in one.results)
    before, found = view.ancestors(gradient_nodes), dict.fromkeys(node for one in cut for node in one.uneven)
    found.update(dict.fromkeys(one.node for one in rewrites.padded if one.node in before))  # up to the longest row
    for change in (change for one in rewrites.layouts for change in one.changes):
        is_met = isinstance(change.before, Sharded | Partial) and not isinstance(change.after, Partial | ExampleNumbers)
        if is_met:
            found.update(dict.fromkeys(edge.node for edge in change.edges if edge.node in before))
    replaced = [name for one in cut for name in one.replaced]
    notes = []
    named = [f"{view.op(node)} {node!r}" for node in found if not find_report_kind(view.nodes[node])]
    if named:
        process = "processes" if len(named) == 1 else "process"
        notes.append(f"{_list_first(named, 'ops')} {process} {one_by_one}")
    if replaced:
        be = "is" if len(replaced) == 1 else "are"
        notes.append(f"{_list_first(replaced, 'variables')} {be} written with {one_by_one}")
    return tuple(notes)


def _list_first(named: Sequence[str], what: str) -> str:
    more = f" and {len(named) - _SHOWN} more {what}" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more


def check_gather_limit(view: GraphView, layouts: LayoutRewrites, workers: int, limit_bytes: int) -> None:
    """Checks the gathered bytes against the limit of a step.

    Args:
        view: the graph.
        layouts: its layout changes.
        workers: the number of workers.
        limit_bytes: bytes of tensors of the global batch that a worker may gather in a step.

    Raises:
        PlanError: the limit is exceeded.
    """
    gathered = find_gathered(view, layouts, workers)
    total = sum(one.size_bytes or 0 for one in gathered)
    if total > limit_bytes:
        largest = sorted(gathered, key=lambda one: -(one.size_bytes or 0))
        raise PlanError(
            f"gather_limit is {limit_bytes} bytes, but each step would all-gather {total} bytes of tensors of the "
            f"global batch, for {_list_ops(view, largest)}. Rewrite these ops to work on one example at a time, or "
            "raise gather_limit."
        )


def _list_ops(view: GraphView, gathered: Sequence[GatheredTensor]) -> str:
    """The ops, with the bytes that each gathers."""
    by_node: dict[str, list[int | None]] = {}
    for one in gathered:
        by_node.setdefault(one.node, []).append(one.size_bytes)
    return _list_first([f"{view.op(node)} {node!r} ({_format_total(sizes)})" for node, sizes in by_node.items()], "ops")


def _format_total(sizes: Sequence[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    return bytes_text(sum(known)) if len(known) == len(sizes) else "size unknown"
