"""State rules of tensors along rows: ops that preserve gradient rows or owned rows, and ops that sum over them.

An elementwise op preserves the state where all other operands are `same` and no wider than a row. A full value that is
combined with `rows` is sliced to the local rows. A reduction or L2Loss over the rows returns a part of one process's
result; it is all-reduced, and then `same`. A reduction over other axes preserves the state. The size of `values` or
`indices` is an all-reduced sum. Ops that compute shapes, fill, or fold within a row keep track of the rows; the shape
of a table becomes a constant, the full shape. A rule returns True when it has set the states of the node's outputs.
visit_node.py decides on nodes that no rule accepts.
"""

from __future__ import annotations

import math

from parallax.analysis.propagation.states import (
    ALONG_ROWS,
    BY_ROW,
    SAME,
    Extent,
    Handle,
    Indices,
    Rows,
    State,
    Values,
)
from parallax.analysis.propagation.walk import Walk, part_of, read_value, sum_of_parts
from parallax.graph.view import Edge, node_of
from parallax.plans.gradient_rows import EqualRows
from parallax.plans.rewrites import WholeShape

REDUCTIONS = {"Sum": "sum", "Max": "max", "Min": "min", "Mean": "rows_mean", "All": "min", "Any": "max"}


def elementwise(walk: Walk, node: str, states: list[State]) -> bool:
    """Preserves the state along rows when every other operand is equal on all workers and no wider than a row."""
    values = [read_value(walk, s) for s in states]
    along = {s for s in values if isinstance(s, BY_ROW)}
    if len(along) != 1:
        return False
    (state,) = along
    rank = max(len(walk.view.shape(t) or ()) for t, s in zip(walk.view.inputs(node), values, strict=True) if s == state)
    slices = []
    for slot, other in enumerate(values):
        if other == state:
            continue
        if walk.require_same(other) != SAME:
            return False
        shape = walk.view.shape(walk.view.inputs(node)[slot])
        if shape is None:
            return False
        fits = len(shape) < max(rank, 1) or shape[0] == 1
        if not fits and isinstance(state, Values) and _rows_alike(walk, node, slot):
            walk.alike_rows.append(EqualRows(Edge(node, slot), Edge(node, values.index(state))))
        elif not fits:
            if not isinstance(state, Rows) or shape[0] != walk.facts.tables[state.table].rows:
                return False
            slices.append((state.table, Edge(node, slot)))
    for table, edge in slices:
        walk.slice_rows(table, edge)
    walk.set_all(node, state)
    if isinstance(state, Rows) and walk.view.op(node) == "Identity" and isinstance(states[0], Handle):
        walk.gather_rows(f"{node}:0", state.table)
    return True


def _rows_alike(walk: Walk, node: str, slot: int) -> bool:
    """Whether an operand is a constant with equal rows, as from ones_like; it then fits any rows."""
    tensor = walk.view.inputs(node)[slot]
    if walk.view.op(node_of(tensor)) == "Fill":
        return True
    value = walk.view.constant(tensor)
    return value is not None and value.size > 0 and bool((value == value[:1]).all())


def read_variable(walk: Walk, node: str, states: list[State]) -> bool:
    """The value of a variable: local rows where they have owners, and the full value for fetches."""
    state = read_value(walk, states[0])
    walk.set_all(node, state)
    if isinstance(state, Rows):
        walk.gather_rows(f"{node}:0", state.table)
    return True


def reduction(walk: Walk, node: str, states: list[State]) -> bool:
    """Over the rows, a part of the result of one process; over other axes, the result has an entry for each row."""
    state = read_value(walk, states[0])
    axes = walk.view.constant(walk.view.inputs(node)[1])
    shape = walk.view.shape(walk.view.inputs(node)[0])
    if not isinstance(state, ALONG_ROWS) or axes is None or shape is None:
        return False
    if not any(int(axis) % max(len(shape), 1) == 0 for axis in axes.reshape(-1)):
        walk.set_all(node, state)
        return True
    if not walk.agrees(walk.facts.branches[node]):
        return False
    kind = REDUCTIONS[walk.view.op(node)]
    if kind != "sum" and isinstance(state, Values) and {s.tensor for s in walk.shared_rows} & {*state.tensors}:
        return False  # the zeros in place of rows of worker 0 would count
    sum_of_parts(walk, node, state, kind, walk.view.inputs(node)[0] if kind == "rows_mean" else "")
    return True


def l2_loss(walk: Walk, node: str, states: list[State]) -> bool:
    """A part of the sum of one process, over the rows."""
    state = read_value(walk, states[0])
    if not isinstance(state, ALONG_ROWS) or not walk.agrees(walk.facts.branches[node]):
        return False
    sum_of_parts(walk, node, state, "sum")
    return True


def shape_of(walk: Walk, node: str, states: list[State]) -> bool:
    """The shape of a table is the full one; that of other rows is tracked along them."""
    state = read_value(walk, states[0])
    if isinstance(state, Rows):
        source = states[0]
        shape = walk.view.shape(walk.view.inputs(node)[0])
        if isinstance(source, Handle):
            shape = walk.facts.captured.variables[source.variable].part.shape
        if shape is None or None in shape:
            return False
        walk.shapes.append(WholeShape(node, state.table, tuple(int(d or 0) for d in shape)))
        walk.set_all(node, SAME)
        return True
    if isinstance(state, BY_ROW):
        walk.set_all(node, Extent(state))
        return True
    return False


def of_extent(walk: Walk, node: str, states: list[State]) -> bool:
    """Slices of, and values computed from, a shape along rows remain one."""
    if not isinstance(states[0], Extent):
        return False
    walk.set_all(node, states[0])
    return True


def fill(walk: Walk, node: str, states: list[State]) -> bool:
    """A replicated value, repeated for the rows of a shape, is along the same rows."""
    extent = states[0]
    if not isinstance(extent, Extent) or walk.require_same(states[1]) != SAME:
        return False
    walk.set_all(node, extent.along)
    return True


def reshape(walk: Walk, node: str, states: list[State]) -> bool:
    """Preserves the rows when only dimensions within a row are folded."""
    state, target = states[0], states[1]
    before, after = walk.view.shape(walk.view.inputs(node)[0]), walk.view.shape(f"{node}:0")
    if not isinstance(state, BY_ROW):
        return False
    if isinstance(target, Extent) and target.along == state:
        walk.set_all(node, state)
        return True
    if before is None or after is None or not after or None in before[1:] or None in after[1:]:
        return False
    if math.prod(d or 0 for d in before[1:]) != math.prod(d or 0 for d in after[1:]):
        return False
    wanted = walk.view.constant(walk.view.inputs(node)[1])
    if wanted is None or int(wanted.reshape(-1)[0]) != -1:
        return False
    walk.set_all(node, state)
    return True


def expand_dims(walk: Walk, node: str, states: list[State]) -> bool:
    """Preserves the rows when the new axis is within a row."""
    axis = walk.view.constant(walk.view.inputs(node)[1])
    if (
        not isinstance(states[0], ALONG_ROWS)
        or axis is None
        or int(axis) in (0, -1 - len(walk.view.shape(f"{node}:0") or ()))
    ):
        return False
    walk.set_all(node, states[0])
    return True


def concat(walk: Walk, node: str, states: list[State]) -> bool:
    """Rows of several gradients, concatenated; or values computed from the same rows, as columns."""
    pieces, axis = states[:-1], walk.view.constant(walk.view.inputs(node)[-1])
    if axis is None:
        return False
    if int(axis) > 0 and isinstance(pieces[0], ALONG_ROWS) and len(set(pieces)) == 1:
        walk.set_all(node, pieces[0])
        return True
    if int(axis) != 0 or len({part_of(walk, s) for s in pieces}) != 1:
        return False
    for of_kind in (Values, Indices):
        piece_tensors = [s.tensors for s in pieces if isinstance(s, of_kind)]
        if len(piece_tensors) == len(pieces):
            walk.set_all(node, of_kind(tuple(tensor for tensors in piece_tensors for tensor in tensors)))
            return True
    return False


def split(walk: Walk, node: str, states: list[State]) -> bool:
    """Columns of rows belong to the same rows."""
    axis = walk.view.constant(walk.view.inputs(node)[0])
    if axis is None or int(axis) < 1 or not isinstance(states[1], ALONG_ROWS):
        return False
    walk.set_all(node, states[1])
    return True


def size_of(walk: Walk, node: str, states: list[State]) -> bool:
    """The number of elements of gradient rows is the sum over all workers."""
    if not isinstance(states[0], Values | Indices):
        return shape_of(walk, node, states) if not isinstance(states[0], Rows) else False
    sum_of_parts(walk, node, states[0], "sum")
    return True
