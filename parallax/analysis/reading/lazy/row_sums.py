"""Sums equal gradient rows once, where an update reads several sums of functions of them.

Keras leaves equal rows of a sparse gradient uncoalesced. For each row of the table, its Adam reads the sum of g and the
sum of g * g over all gradient rows g with that row number. The ops on these sums are linear in functions of single
gradient rows (row_terms.py). So these functions are concatenated, equal rows are summed once, at the worker and at the
owner, and the update's inputs are computed from the sums. They travel in one message:

    UnsortedSegmentSum(g, ids), UnsortedSegmentSum(g * g, ids)
        ids', places = Unique(ids)
        a, b = Split(UnsortedSegmentSum(Concat(g, g * g), places))
        UnsortedSegmentSum(a, ids'), UnsortedSegmentSum(b, ids')

The update is the same up to rounding. An update that is non-linear in such functions is left unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2

from parallax.analysis.reading.lazy.added_nodes import AddedNodes, record_shapes
from parallax.analysis.reading.lazy.elementwise import ELEMENTWISE, PASSES
from parallax.analysis.reading.lazy.group import (
    SUM_OF_ROWS,
    ConnectedVariables,
    find_connected,
    flows_into,
    may_have_shape,
    source_of,
    takes_rows,
)
from parallax.analysis.reading.lazy.handles import LOOKUP, WRITES_ROWS, Handles, input_name
from parallax.analysis.reading.lazy.row_terms import (
    Gates,
    NotLinearError,
    Powers,
    RowTerm,
    RowTerms,
    find_origin,
    is_single,
)
from parallax.base.types import GraphDef
from parallax.graph.batches import length_by_step
from parallax.graph.view import Edge, GraphView, node_of

_MOST_FUNCTIONS = 4
"""The number of functions of a gradient row up to which one message pays off."""


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums that an update of a table reads.

    Attributes:
        table: the variable.
        indices: the gradient's row numbers `[n]`.
        terms: edge where rows are summed -> the terms of the sum.
        gates: edge where rows are summed -> the branches of conditionals that contain it.
        summand_nodes: the nodes that compute the summands.
    """

    table: str
    indices: str
    terms: dict[Edge, tuple[RowTerm, ...]]
    gates: dict[Edge, Gates]
    summand_nodes: tuple[str, ...]

    @property
    def functions(self) -> tuple[Powers, ...]:
        """The functions of gradient rows that are summed."""
        return tuple(dict.fromkeys(one.powers for terms in self.terms.values() for one in terms))


def with_rows_added_once(graph_def: GraphDef, view: GraphView) -> tuple[GraphDef, dict[str, int]]:
    """Sums equal rows once, in the steps of front ends.

    Args:
        graph_def: with shapes of all outputs; it is not modified.
        view: its view.

    Returns:
        A copy, or the graph itself where there are no such rows; and for each table the number of functions of its rows
        that are summed.
    """
    if not length_by_step(view) or not any(node.op in (SUM_OF_ROWS, *WRITES_ROWS) for node in graph_def.node):
        return graph_def, {}
    handles = Handles(view)
    row_sums = [sums for one in find_connected(view, handles) for sums in _sums_of(view, handles, one)]
    if not row_sums:
        return graph_def, {}
    out, tables = graph_pb2.GraphDef(), dict.fromkeys(one.table for one in row_sums)
    out.CopyFrom(graph_def)
    for one in row_sums:
        _add_once(out, view, one, handles.uses[one.table].shape)
    _drop_unused(out, {node for one in row_sums for node in one.summand_nodes})
    return out, {table: max(len(one.functions) for one in row_sums if one.table == table) for table in tables}


def _sums_of(view: GraphView, handles: Handles, one: ConnectedVariables) -> Iterator[_Sums]:
    """The sums of each gradient of a table."""
    shape = handles.uses[one.table].shape
    core: dict[str, list[Edge]] = {}
    for write in one.by_rows:
        nodes = [write] if view.op(write) in WRITES_ROWS else flows_into(view, write, shape)[1]
        for node in nodes:
            slot, numbers = _slots(view, node)
            core.setdefault(find_origin(view, view.inputs(node)[numbers])[0], []).append(Edge(node, slot))
    for indices, edges in core.items():
        if view.op(node_of(indices)) in ("Unique", "UniqueV2"):
            continue
        try:
            yield _sums(view, one.table, indices, shape, edges)
        except NotLinearError:
            continue


def _slots(view: GraphView, node: str) -> tuple[int, int]:
    """The input numbers of the rows, and of their numbers, of a node that sums rows."""
    return (2, 1) if view.op(node) in WRITES_ROWS else (0, 1)


def _sums(view: GraphView, table: str, indices: str, shape: tuple[int, ...], core: Sequence[Edge]) -> _Sums:
    """The sums of one gradient.

    Raises:
        NotLinearError: a summand is not linear in functions of single rows.
    """
    by_branch: dict[str, RowTerms] = {}

    def terms_of(edge: Edge, numbers: str) -> tuple[RowTerm, ...]:
        numbers = source_of(view, numbers)
        of_rows = by_branch.setdefault(numbers, RowTerms(view, numbers, shape[1:]))
        gates[edge] = find_origin(view, numbers)[1]
        return of_rows.of(view.inputs(edge.node)[edge.slot])

    gates: dict[Edge, Gates] = {}
    terms = {edge: terms_of(edge, view.inputs(edge.node)[_slots(view, edge.node)[1]]) for edge in core}
    rows = {tensor for found in terms.values() for one in found for tensor, _ in one.powers}
    for edge, numbers in _others(view, indices, shape).items():
        more = terms_of(edge, numbers)
        if rows.issuperset(tensor for one in more for tensor, _ in one.powers):
            terms[edge] = more
    met = {node for of_rows in by_branch.values() for node in of_rows.visited_nodes}
    result = _Sums(table, indices, terms, gates, tuple(met))
    known = all(one.powers for own in terms.values() for one in own)
    if not known or not rows or len(result.functions) > _MOST_FUNCTIONS:
        raise NotLinearError
    if [view.op(edge.node) for edge in terms] == [SUM_OF_ROWS]:
        raise NotLinearError  # a single sum, of no update by rows
    needed = view.ancestors([node_of(indices), *map(node_of, rows)])
    if any(edge.node in needed for edge in terms):
        raise NotLinearError  # rows computed from sums with other rows
    return result


def _others(view: GraphView, indices: str, shape: tuple[int, ...]) -> dict[Edge, str]:
    """The other edges where rows with these numbers are summed, into a tensor or over all rows; and their numbers."""
    summand_by_edge: dict[Edge, str] = {}
    for numbers in _copies(view, indices):
        summand_by_edge.update(dict.fromkeys(_others_by(view, numbers, shape), numbers))
    return summand_by_edge


def _others_by(view: GraphView, indices: str, shape: tuple[int, ...]) -> list[Edge]:
    edges: dict[Edge, None] = {}
    waiting = list(view.consumers(indices))
    met = set(waiting)
    while waiting:
        edge = waiting.pop(0)
        op = view.op(edge.node)
        if op == SUM_OF_ROWS and edge.slot == 1 and may_have_shape(view, f"{edge.node}:0", shape):
            edges[Edge(edge.node, 0)] = None
        elif op == "Sum" and edge.slot == 0 and _adds_rows(view, edge.node, len(shape)):
            edges[edge] = None
        elif takes_rows(view, f"{edge.node}:0", indices) and op != LOOKUP or op in ELEMENTWISE or op in PASSES:
            more = [taker for taker in view.consumers(f"{edge.node}:0") if taker not in met]
            met.update(more)
            waiting += more
    return list(edges)


def _copies(view: GraphView, tensor: str) -> list[str]:
    """A tensor, its copies, and its copies in branches."""
    copies = [tensor]
    for one in copies:
        takers = [edge for edge in view.consumers(one) if edge.slot == 0]
        copies += [f"{edge.node}:0" for edge in takers if view.op(edge.node) in (*PASSES, "Switch")]
        copies += [f"{edge.node}:1" for edge in takers if view.op(edge.node) == "Switch"]
    return copies


def _adds_rows(view: GraphView, node: str, rank: int) -> bool:
    axes = view.constant(view.inputs(node)[1])
    return axes is not None and any(int(axis) % rank == 0 for axis in axes.reshape(-1))


def _add_once(out: GraphDef, view: GraphView, sums: _Sums, shape: tuple[int, ...]) -> None:
    """Adds the nodes that sum equal rows, and redirects consumers to functions of the sums."""
    made = AddedNodes(out, view, f"{sums.table}/equal_rows")
    nodes = {node.name: node for node in out.node}
    functions, width = sums.functions, math.prod(shape[1:])
    rows, places = made.unique(sums.indices)
    products = [made.product(powers) for powers in functions]
    if len(products) == 1:
        added = [made.sum_of_rows(products[0], places, rows, (None, *shape[1:]))]
    else:
        flat = [one if len(shape) == 2 else made.reshape(one, (-1, width)) for one in products]
        whole = made.sum_of_rows(made.concatenate(flat, width), places, rows, (None, width * len(flat)))
        added = made.split(whole, len(flat), width)
        added = added if len(shape) == 2 else [made.reshape(one, (-1, *shape[1:])) for one in added]
    of_function = dict(zip(functions, added, strict=True))
    copy_by_tensor: dict[str, str] = {}

    def factor(tensor: str, gates: Gates) -> str:
        if is_single(view, tensor):
            return tensor
        if tensor not in copy_by_tensor:
            copy_by_tensor[tensor] = made.gather(node_of(tensor), made.pass_through_gates(rows, gates))
        return copy_by_tensor[tensor]

    for edge, terms in sums.terms.items():
        value, gates = "", sums.gates[edge]
        for one in terms:
            term = made.pass_through_gates(of_function[one.powers], gates)
            for op, factors in (("Mul", one.factors), ("RealDiv", one.divisors)):
                for tensor in factors:
                    term = made.compute(op, term, factor(tensor, gates))
            if one.is_negative and not value:
                term = made.compute("Neg", term)
            value = made.compute("Sub" if one.is_negative else "AddV2", value, term) if value else term
        nodes[edge.node].input[edge.slot] = input_name(value)
        if view.op(edge.node) == SUM_OF_ROWS:
            nodes[edge.node].input[2] = input_name(made.count(shape[0], view.dtype(view.inputs(edge.node)[2])))
            record_shapes(nodes[edge.node], shape)
        if view.op(edge.node) != "Sum":
            nodes[edge.node].input[_slots(view, edge.node)[1]] = input_name(made.pass_through_gates(rows, gates))


def _drop_unused(out: GraphDef, nodes: set[str]) -> None:
    """Removes those of some nodes that have no consumers."""
    left = {node.name: node for node in out.node}
    while True:
        used = {node_of(name) for node in left.values() for name in node.input}
        unused = nodes & left.keys() - used
        if not unused:
            break
        for name in unused:
            del left[name]
    remaining = [node for node in out.node if node.name in left]
    if len(remaining) < len(out.node):
        copies = graph_pb2.GraphDef(node=remaining)
        del out.node[:]
        out.node.extend(copies.node)
