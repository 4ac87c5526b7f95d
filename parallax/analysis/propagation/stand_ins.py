"""Finds the batch of each reduction and message of a step, so that a worker without examples contributes nothing.

Such a worker computes on a stand-in, an example of another worker (batches/split_batch.py), so no op runs on an empty
batch, which many kernels reject. The worker is excluded from sums and extremes, and sends no gradient rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from parallax.analysis.layouts.find_layouts import Layouts
from parallax.analysis.propagation.states import AtOwners, Extent
from parallax.analysis.propagation.walk import Walk, read_value
from parallax.graph.batches import (
    are_elements,
    batch_by_node,
    batch_of,
    batch_tensors,
    elements_of_rows,
    fixed_length,
    is_of_script,
    length_by_step,
    marked_nodes,
)
from parallax.graph.view import Edge, GraphView, node_of
from parallax.plans.rewrites import AllReduce, Collect, Push, Rewrites
from parallax.plans.uneven_batches import UnevenBatch

_Rows = TypeVar("_Rows", Push, Collect)


def exclude_stand_ins(walk: Walk, rewrites: Rewrites, layouts: Layouts) -> Rewrites:
    """The rewrites of a step whose tensors have layouts, in which workers without examples contribute nothing.

    Args:
        walk: the finished traversal.
        rewrites: its rewrites.
        layouts: of the step's tensors; those called counted are unchanged.
    """
    batches = batch_by_node(walk.view)
    is_counted = {tensor for tensor, fact in layouts.facts.items() if fact.is_counted}
    reduced = [one if one.tensor in is_counted else _name_batch(walk, one, batches) for one in rewrites.all_reduces]
    scatters = [
        one if one.tensor in is_counted else replace(one, batch=_find_batch(batches, one.tensor))
        for one in rewrites.scatters
    ]
    rewrites = replace(rewrites, all_reduces=tuple(reduced), scatters=tuple(scatters))
    if is_of_script(walk.view):  # its batch is then empty, and its only rows are those that the last worker has for all
        return rewrites
    return replace(
        rewrites,
        pushes=tuple(_name_rows(one, batches) for one in rewrites.pushes),
        collects=tuple(_name_rows(one, batches) for one in rewrites.collects),
    )


def uneven_batches(view: GraphView) -> tuple[UnevenBatch, ...]:
    """The batches of a graph that may be of unequal length, one of a step."""
    batches, lengths, ends, uneven = batch_by_node(view), length_by_step(view), elements_of_rows(view), []
    for placeholder in dict.fromkeys(batches.values()):
        length = lengths.get(batch_of(view.nodes[node_of(placeholder)]))
        edge, examples = (
            None if length is None else Edge(length, 0),
            fixed_length(view.nodes[node_of(placeholder)]),
        )
        alike, has_end = (
            () if examples else _find_equal_batches(view, placeholder),
            node_of(placeholder) in ends,
        )
        uneven.append(UnevenBatch(placeholder, placeholder, edge, alike, examples, has_end=has_end))
    return tuple(uneven)


def batches_of_elements(view: GraphView) -> tuple[UnevenBatch, ...]:
    """The elements of a graph's ragged batches, of which examples have unequally many."""
    batches, ends = batch_by_node(view), elements_of_rows(view)
    nodes = [node for node in marked_nodes(view) if are_elements(view.nodes[node])]
    return tuple(UnevenBatch(f"{n}:0", f"{n}:0", examples_of=batches[n], has_end=n in ends) for n in nodes)


def _find_equal_batches(view: GraphView, first: str) -> tuple[str, ...]:
    """The other batches of a script's step; its runs check that their lengths are equal."""
    step = batch_of(view.nodes[node_of(first)])
    marked = [node for node in marked_nodes(view) if batch_of(view.nodes[node]) == step] if is_of_script(view) else []
    return tuple(tensor for node in marked for tensor in batch_tensors(view, node) if tensor != first)


def _name_batch(walk: Walk, one: AllReduce, batches: Mapping[str, str]) -> AllReduce:
    """A reduction with its batch, by which a worker without examples is excluded.

    A part that owners of rows have includes all workers' examples: it is unchanged.
    """
    batch = _find_batch(batches, one.tensor)
    return replace(one, batch=batch) if batch and not _is_at_owners(walk, one.tensor) else one


def _is_at_owners(walk: Walk, tensor: str) -> bool:
    """Whether a tensor is computed from rows that their owners store."""
    states = [read_value(walk, walk.states[taken]) for taken in walk.view.inputs(node_of(tensor))]
    return any(isinstance(s.along if isinstance(s, Extent) else s, AtOwners) for s in states)


def _name_rows(one: _Rows, batches: Mapping[str, str]) -> _Rows:
    """A push or a collection with its batch."""
    nodes = [edge.node for edge in (*one.values, *one.indices)]
    return replace(one, batch=next((batches[node] for node in nodes if node in batches), ""))


def _find_batch(batches: Mapping[str, str], tensor: str) -> str:
    """The batch from which a tensor is computed; empty where there is none."""
    return batches.get(node_of(tensor), "")
