"""Lists the tensors that a step all-gathers because an op needs the global batch, with their bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from parallax.graph.batches import find_report_kind, fixed_length, full_length, marked_nodes
from parallax.graph.ops import state_op
from parallax.graph.view import EXAMPLES, GraphView, node_of
from parallax.plans.layouts import Change, ExampleNumbers, LayoutRewrites, RowEnds, Sharded


@dataclass(frozen=True, slots=True)
class GatheredTensor:
    """A tensor that every worker gets in full.

    Attributes:
        node: its first reader that needs it so.
        tensor: of the user's graph.
        size_bytes: of the global batch's tensor; None where a length is not known before the run.
    """

    node: str
    tensor: str
    size_bytes: int | None


def find_gathered(view: GraphView, layouts: LayoutRewrites, workers: int | None = None) -> tuple[GatheredTensor, ...]:
    """The gathered tensors, in the order of the graph.

    Args:
        view: the graph.
        layouts: its layout changes.
        workers: the number of workers, for batches of known per-worker length; None if unknown.
    """
    gathered: dict[str, GatheredTensor] = {}
    examples: dict[str, int | None] = {}
    run = _find_run(view)
    for change in layouts.changes:
        if change.edges and not any(edge.node in run for edge in change.edges):
            continue
        is_cut = isinstance(change.after, ExampleNumbers) or change.after == change.before
        if isinstance(change.before, Sharded | RowEnds) and not is_cut:
            batch = change.before.part.batch if isinstance(change.before, Sharded) else change.before.rows
            if batch not in examples:
                examples[batch] = _find_examples(view, batch.split(",")[0], workers)
            node = change.edges[0].node if change.edges else node_of(change.tensor)
            found = GatheredTensor(node, change.tensor, _find_size(view, change, examples, workers))
            if change.tensor not in gathered or not change.ends:
                gathered[change.tensor] = found
    return tuple(gathered.values())


def _find_run(view: GraphView) -> set[str]:
    """The nodes on which results, writes and runs depend; tf.vectorized_map leaves others, which no run needs."""
    ends = []
    for node in view.nodes:
        outputs, op = view.outputs(node), view.op(node)
        is_read = any(view.consumers(tensor) for tensor in outputs)
        if not outputs or (op == "Identity" and not is_read) or state_op(op, len(view.inputs(node))) is not None:
            ends.append(node)
    return view.ancestors([*ends, *(node for node in marked_nodes(view) if find_report_kind(view.nodes[node]))])


def _find_examples(view: GraphView, batch: str, workers: int | None) -> int | None:
    """The usual length of the global batch."""
    node = view.nodes[node_of(batch)]
    if full_length(node):
        return full_length(node)
    local_length = fixed_length(node) or (int(node.attr[EXAMPLES].i) if EXAMPLES in node.attr else 0)
    return local_length * workers if local_length and workers is not None else None


def _find_size(view: GraphView, change: Change, examples: Mapping[str, int | None], workers: int | None) -> int | None:
    from tensorflow.python.framework import dtypes

    shape, element = view.shape(change.tensor), int(dtypes.as_dtype(view.dtype(change.tensor)).size or 0)
    if shape is None or not element:
        return None
    if isinstance(change.before, RowEnds):
        rows = examples[change.before.rows]
        return None if rows is None else rows * element
    if not isinstance(change.before, Sharded):
        return None
    part, axis = change.before.part, change.before.axis
    others = [length for place, length in enumerate(shape) if place != axis]
    count, factor = examples[part.batch], part.factor.number
    known = [length for length in others if length is not None]
    if len(known) < len(others):
        return None
    entries = None if count is None or factor is None else count * factor * part.blocks
    if change.ends:
        most = abs(change.ends) * (workers or 1)
        entries = most if entries is None else min(entries, most)
    return None if entries is None else entries * math.prod(known) * element
