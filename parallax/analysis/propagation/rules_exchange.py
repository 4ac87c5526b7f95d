"""State rules of the ops where rows are exchanged: lookups, and the summing of equal gradient rows before an update.

- A gather of `rows` is a pull: with plain ids the result has the state of the ids, with `indices` it is `values`. With
  `touched_indices` the gather is local and returns `touched`. A lookup in a branch or loop is never pulled.
- SparseSegmentSum, Mean and SqrtN of `rows` are a pull, and the op itself runs on the pulled rows.
- Unique of `indices` marks the position of the push; its results are `touched_indices` and `map`.
- UnsortedSegmentSum of `values` by `map` returns `touched`; by `indices`, which densifies the gradient, it is an
  all-reduced sum. Of `touched` by `touched_indices` it is the dense gradient at the owners: `rows`, as many as an owner
  stores.
"""

from __future__ import annotations

from parallax.analysis.propagation.states import (
    SAME,
    Handle,
    Indices,
    PlaceMap,
    Plain,
    Rows,
    State,
    TouchedIndices,
    TouchedRows,
    Values,
    find_worst_state,
)
from parallax.analysis.propagation.walk import Merge, NoRule, Walk, are_paired, part_of, read_value, sum_of_parts
from parallax.analysis.reading.capture import variable_of_tensor
from parallax.graph.view import Edge
from parallax.plans.rewrites import CountRows, Lookup


def gather(walk: Walk, node: str, states: list[State]) -> bool:
    """A lookup: a pull for ids of this worker, a local gather for local row numbers."""
    params, ids = read_value(walk, states[0]), states[1]
    along_first = not walk.view.flag(node, "batch_dims") and (
        len(states) < 3 or walk.view.constant(walk.view.inputs(node)[2]) == 0
    )
    if not along_first:
        return False
    if not isinstance(params, Rows):
        if params != SAME or not isinstance(ids, Indices | TouchedIndices):
            return False
        walk.set_all(node, _align_with(walk, ids))
        return True
    if isinstance(ids, TouchedIndices) and ids.table == params.table:
        walk.set_all(node, TouchedRows(ids.table, ids.merge))
        return True
    if not isinstance(ids, Plain | Indices):
        return False
    if walk.facts.branches[node]:
        raise NoRule(params.table, f"lookup {node!r} is inside a conditional or loop, which not all workers may enter")
    _check_on_servers(walk, node, params)
    walk.lookups.append(Lookup(node, params.table, row_shape=_find_row_shape(walk, node, params)))
    walk.set_all(node, _align_with(walk, ids) if isinstance(ids, Indices) else ids)
    return True


def _check_on_servers(walk: Walk, node: str, params: Rows) -> None:
    """Requires lookups on servers to read the table itself: values computed from it, and slots, are not there."""
    table = walk.facts.tables[params.table]
    source = variable_of_tensor(walk.view, walk.facts.captured.variables, walk.view.inputs(node)[0])
    if table.servers and source != table.op:
        raise NoRule(table.op, f"lookup {node!r} reads rows of its slot {source!r}, or of a value computed from it")


def _find_row_shape(walk: Walk, node: str, params: Rows) -> tuple[int, ...]:
    """The shape of the rows of a lookup: of the table, of a slot, or of a row-wise function of them."""
    table, source = walk.facts.tables[params.table], walk.state_at(node, 0)
    shape = walk.view.shape(walk.view.inputs(node)[0])
    if isinstance(source, Handle):
        variable = walk.facts.captured.variables[source.variable]
        shape, dtype = variable.part.shape, variable.dtype
    else:
        dtype = walk.view.dtype_name(walk.view.inputs(node)[0])
    if shape is None or None in shape or dtype != table.dtype:
        raise NoRule(table.op, f"lookup {node!r} reads rows of unknown shape, or of another type than the table's")
    return tuple(int(length or 0) for length in shape[1:])


def segments(walk: Walk, node: str, states: list[State]) -> bool:
    """A lookup that sums rows by segment, as embedding_lookup_sparse makes it on reference variables."""
    params = read_value(walk, states[0])
    if not isinstance(params, Rows) or walk.facts.branches[node] or not all(isinstance(s, Plain) for s in states[1:]):
        return False
    walk.lookups.append(Lookup(node, params.table, combines=True, row_shape=_find_row_shape(walk, node, params)))
    walk.set_all(node, find_worst_state(states[1:]))
    return True


def _align_with(walk: Walk, indices: Indices | TouchedIndices) -> State:
    """The state of rows that belong to gradient or deduplicated indices."""
    if isinstance(indices, TouchedIndices):
        return TouchedRows(indices.table, indices.merge)
    return Values(tuple(walk.pairs.get(tensor, [tensor])[-1] for tensor in indices.tensors))


def unique(walk: Walk, node: str, states: list[State]) -> bool:
    """Equal rows are combined here: this is where gradient rows are sent to their owners, or to all workers."""
    indices = states[0]
    if isinstance(indices, TouchedIndices):  # deduplicated already
        walk.states[f"{node}:0"] = indices
        walk.states[f"{node}:1"] = PlaceMap(indices.table, indices.merge)
        return True
    if not isinstance(indices, Indices):
        return False
    part = part_of(walk, indices)
    walk.merges[node] = Merge(part, indices.tensors, [Edge(node, 0)])
    table = walk.assumptions.table_of.get(part)
    walk.states[f"{node}:0"] = TouchedIndices(table, node) if table else SAME
    walk.states[f"{node}:1"] = PlaceMap(table or part, node)
    return True


def segment_sum(walk: Walk, node: str, states: list[State]) -> bool:
    """Values summed by row: the counterpart of a Unique, or a gradient made dense."""
    values, segments = states[0], states[1]
    if isinstance(values, TouchedRows) and segments == PlaceMap(values.table, values.merge):
        walk.set_all(node, values)
        return True
    if isinstance(values, TouchedRows) and segments == TouchedIndices(values.table, values.merge):
        return _make_dense(walk, node, values)
    if not isinstance(values, Values):
        return False
    if isinstance(segments, PlaceMap) and are_paired(walk, values, Indices(walk.merges[segments.merge].indices_token)):
        walk.merges[segments.merge].values.append(Edge(node, 0))
        part = part_of(walk, values)
        walk.set_all(node, TouchedRows(segments.table, segments.merge) if part in walk.assumptions.table_of else SAME)
        return True
    if isinstance(segments, Indices) and are_paired(walk, values, segments):
        sum_of_parts(walk, node, values, "sum")
        return True
    return False


def _make_dense(walk: Walk, node: str, values: TouchedRows) -> bool:
    """Coalesced rows among zeros for all others, where the sum has as many rows as the table."""
    shape = walk.view.shape(f"{node}:0")
    if not shape or shape[0] != walk.facts.tables[values.table].rows:
        return False
    walk.counts.append(CountRows(Edge(node, 2), values.table))
    walk.set_all(node, Rows(values.table))
    return True
