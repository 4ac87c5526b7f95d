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

from dataclasses import replace

from parallax.analysis.propagation import part_sums, sums
from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.stand_ins import batch_of_tensor, of_batch, of_batches, of_rows, uneven_batches
from parallax.analysis.propagation.states import SAME
from parallax.analysis.propagation.walk import Walk
from parallax.errors import GraphError
from parallax.graph.batches import (
    WEIGHT,
    batch_by_node,
    batch_of,
    reported_as,
)
from parallax.graph.view import GraphView, split_tensor
from parallax.plans.losses import Divided, ReportedScalar, Selected
from parallax.plans.rewrites import AllReduce, Rewrites

_COPIES = ("Identity", "Cast")


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
        scales=of_batches(rewrites.scales, batches),
        scatters=of_batches(rewrites.scatters, batches),
        pushes=tuple(of_rows(one, batches) for one in rewrites.pushes),
        collects=tuple(of_rows(one, batches) for one in rewrites.collects),
        divided=tuple(_of_division(one, batches) for one in rewrites.divided if not one.is_mean),
        selected=tuple(_of_selection(one, batches) for one in rewrites.selected),
        batches=uneven_batches(walk.view),
        summed=sums.find_sums(walk, batches),
        uncounted=part_sums.find_uncounted(walk),
        reported=tuple(one for one in reported if one.kind != WEIGHT),
    )


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of sums that cannot be followed."""
    batches = batch_by_node(walk.view)
    return sums.notes_of(walk, batches) if batches else ()


def _of_batch(walk: Walk, one: AllReduce, batches: dict[str, str], is_denominator: bool) -> AllReduce:
    """A mean by shares; of the means that a loss is divided by, that of the global batch."""
    batch = batch_of_tensor(batches, one.tensor)
    return replace(one, kind="workers_mean", batch=batch) if batch and is_denominator else of_batch(walk, one, batches)


def _of_division(one: Divided, batches: dict[str, str]) -> Divided:
    return replace(one, batch=batch_of_tensor(batches, one.tensor))


def _of_selection(one: Selected, batches: dict[str, str]) -> Selected:
    return replace(one, batch=batch_of_tensor(batches, one.values))


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
