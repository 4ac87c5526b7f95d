"""Weighs means over the workers where their batches may be of unequal length, as the graph says (graph/batches.py).

A worker's loss is taken for a mean over its own batch. The one process's loss is then the mean of the workers' losses,
each counted by its share of all examples, and so are its gradients. So every mean over the workers becomes one by
shares. What losses are divided by, and what means are chosen of, is put together so that this holds for it too
(denominators.py), and a sum over the batch that nothing divides is made a mean (sums.py). The shares take one sum over
the workers, of the batches' lengths, in runs that are not fed what it gives.

A worker without examples computes on a stand-in, an example of another worker (functions/shares.py): no op is run on an
empty batch, which many kernels do not take. Such a worker counts for nothing: by its share of 0 in means, by being left
out of sums and extremes, and by sending no gradient rows.

What a step reports (a loss that it logs) becomes such that the plain mean over the workers is the one process's value,
and what a metric counts such that the sum over the workers is; the weight with which it is counted is put together. A
value is taken for a mean over the batch, as losses are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from parallax.analysis.layouts.find_layouts import Layouts
from parallax.analysis.propagation import part_sums, sums
from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.states import SAME, AtOwners, Extent
from parallax.analysis.propagation.walk import Walk, read_value
from parallax.errors import GraphError
from parallax.graph.batches import (
    WEIGHT,
    are_elements,
    batch_by_node,
    batch_of,
    batch_tensors,
    elements_of_rows,
    fixed_length,
    is_of_script,
    length_by_step,
    reported_as,
)
from parallax.graph.view import Edge, GraphView, split_tensor
from parallax.plans.losses import Divided, ReportedScalar, Selected, UnevenBatch
from parallax.plans.rewrites import AllReduce, Collect, Push, Rewrites, Scale, Scatter

_COPIES = ("Identity", "Cast")
_Weighted = TypeVar("_Weighted", Scale, Scatter)
_Rows = TypeVar("_Rows", Push, Collect)


def weighed(walk: Walk, rewrites: Rewrites) -> Rewrites:
    """The rewrites, with means by shares where batches may be uneven.

    Raises:
        GraphError: gradients of several batches are to be kept, or a sum over the batch cannot be made a mean.
    """
    batches = batch_by_node(walk.view)
    if not rewrites.terms.synchronous:
        return rewrites
    rewrites = replace(rewrites, added=part_sums.find_parts(walk, batches))
    if not batches:
        return rewrites
    if rewrites.terms.accumulate_steps > 1:
        raise GraphError(
            "Batches of unequal length are weighted one by one, and accumulate_steps keeps the gradients of several. "
            "Leave accumulate_steps at 1; in Keras, set gradient_accumulation_steps of the optimizer."
        )
    means = {one.tensor for one in rewrites.divided if one.is_mean}
    reduced = [_of_batch(walk, one, batches, one.tensor in means) for one in rewrites.all_reduces]
    reported = tuple(_reported(walk, batches))
    weights = [
        AllReduce(f"{one.node}:0", tuple(walk.view.consumers(f"{one.node}:0")), "sum", batch=one.batch)
        for one in reported
        if one.kind == WEIGHT
    ]
    return replace(
        rewrites,
        all_reduces=(*reduced, *weights),
        scales=_of_batches(rewrites.scales, batches),
        scatters=_of_batches(rewrites.scatters, batches),
        pushes=tuple(_of_rows(one, batches) for one in rewrites.pushes),
        collects=tuple(_of_rows(one, batches) for one in rewrites.collects),
        divided=tuple(_of_division(one, batches) for one in rewrites.divided if not one.is_mean),
        selected=tuple(_of_selection(one, batches) for one in rewrites.selected),
        batches=uneven_batches(walk.view),
        summed=sums.find_sums(walk, batches),
        uncounted=part_sums.find_uncounted(walk),
        reported=tuple(one for one in reported if one.kind != WEIGHT),
    )


def leave_out_stand_ins(walk: Walk, rewrites: Rewrites, layouts: Layouts) -> Rewrites:
    """The rewrites of a step whose tensors have layouts, in which workers without examples count for nothing.

    Args:
        walk: the finished walk.
        rewrites: what it found.
        layouts: of the step's tensors; what they call counted is left as it is.
    """
    batches = batch_by_node(walk.view)
    is_counted = {tensor for tensor, fact in layouts.facts.items() if fact.is_counted}
    reduced = [
        one if one.tensor in is_counted else _of_batch(walk, one, batches, False) for one in rewrites.all_reduces
    ]
    scatters = [one if one.tensor in is_counted else _of_batches([one], batches)[0] for one in rewrites.scatters]
    rewrites = replace(rewrites, all_reduces=tuple(reduced), scatters=tuple(scatters))
    if is_of_script(walk.view):  # its batch is empty then, and has no rows but those that the last worker has for all
        return rewrites
    return replace(
        rewrites,
        pushes=tuple(_of_rows(one, batches) for one in rewrites.pushes),
        collects=tuple(_of_rows(one, batches) for one in rewrites.collects),
    )


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of sums that cannot be followed."""
    batches = batch_by_node(walk.view)
    return sums.notes_of(walk, batches) if batches else ()


def uneven_batches(view: GraphView) -> tuple[UnevenBatch, ...]:
    """The batches of a graph that may be of unequal length, one of a step."""
    batches, lengths, ends, found = batch_by_node(view), length_by_step(view), elements_of_rows(view), []
    for placeholder in dict.fromkeys(batches.values()):
        length = lengths.get(batch_of(view.nodes[split_tensor(placeholder)[0]]))
        edge, examples = (
            None if length is None else Edge(length, 0),
            fixed_length(view.nodes[split_tensor(placeholder)[0]]),
        )
        alike, has_end = () if examples else _alike(view, placeholder), split_tensor(placeholder)[0] in ends
        found.append(UnevenBatch(placeholder, placeholder, edge, alike, examples, has_end=has_end))
    return tuple(found)


def batches_of_elements(view: GraphView) -> tuple[UnevenBatch, ...]:
    """The elements of a graph's ragged batches, of which examples have unequally many."""
    batches, ends = batch_by_node(view), elements_of_rows(view)
    nodes = [node for node in view.nodes if are_elements(view.nodes[node])]
    return tuple(UnevenBatch(f"{n}:0", f"{n}:0", examples_of=batches[n], has_end=n in ends) for n in nodes)


def _alike(view: GraphView, first: str) -> tuple[str, ...]:
    """The other batches of a script's step: that they are of one length is for its runs to show."""
    step = batch_of(view.nodes[split_tensor(first)[0]])
    marked = [node for node in view.nodes if batch_of(view.nodes[node]) == step] if is_of_script(view) else []
    return tuple(tensor for node in marked for tensor in batch_tensors(view, node) if tensor != first)


def _batch_of(batches: dict[str, str], tensor: str) -> str:
    return batches.get(split_tensor(tensor)[0], "")


def _of_batch(walk: Walk, one: AllReduce, batches: dict[str, str], is_denominator: bool) -> AllReduce:
    """A mean by shares; of the means that a loss is divided by, that of the global batch.

    What owners of rows have a part of, they have of all workers' examples: it is left as it is.
    """
    batch = _batch_of(batches, one.tensor)
    if batch and is_denominator:
        return replace(one, kind="workers_mean", batch=batch)
    return replace(one, batch=batch) if batch and not _is_at_owners(walk, one.tensor) else one


def _is_at_owners(walk: Walk, tensor: str) -> bool:
    """Whether a tensor is computed of rows that their owners hold."""
    states = [read_value(walk, walk.states[taken]) for taken in walk.view.inputs(split_tensor(tensor)[0])]
    return any(isinstance(s.along if isinstance(s, Extent) else s, AtOwners) for s in states)


def _of_batches(found: Sequence[_Weighted], batches: dict[str, str]) -> tuple[_Weighted, ...]:
    return tuple(replace(one, batch=_batch_of(batches, one.tensor)) for one in found)


def _of_rows(one: _Rows, batches: dict[str, str]) -> _Rows:
    nodes = [edge.node for edge in (*one.values, *one.indices)]
    return replace(one, batch=next((batches[node] for node in nodes if node in batches), ""))


def _of_division(one: Divided, batches: dict[str, str]) -> Divided:
    return replace(one, batch=_batch_of(batches, one.tensor))


def _of_selection(one: Selected, batches: dict[str, str]) -> Selected:
    return replace(one, batch=_batch_of(batches, one.values))


def _reported(walk: Walk, batches: dict[str, str]) -> list[ReportedScalar]:
    """What steps report that differs between workers: values, lengths of batches, and other weights."""
    view, found = walk.view, []
    axes, marked = BatchAxes(view, walk.states), {node for node in view.nodes if batch_of(view.nodes[node])}
    for node in view.nodes:
        kind = reported_as(view.nodes[node])
        if not kind or node not in batches or walk.states[f"{node}:0"] == SAME:
            continue
        is_of_length = kind == WEIGHT and is_length(axes, f"{node}:0") and _measured(view, node) in marked
        found.append(ReportedScalar(node, "length" if is_of_length else kind, batches[node]))
    return found


def _measured(view: GraphView, node: str) -> str:
    """The node of which a length is taken; where that is not to be seen, what it is computed of."""
    while view.op(node) in (*_COPIES, "StridedSlice", "Shape"):
        node = split_tensor(view.inputs(node)[0])[0]
    return node
