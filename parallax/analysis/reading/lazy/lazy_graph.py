"""A graph in which the update of each whole table is one node that reads gradient rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorflow.core.framework import graph_pb2

from parallax.analysis.reading.lazy.added_nodes import record_shapes
from parallax.analysis.reading.lazy.gradient_norms import norms_by_row, take_rows
from parallax.analysis.reading.lazy.handles import READ, Handles, input_name
from parallax.base.types import GraphDef, NodeDef
from parallax.graph.view import GraphView, node_of

_BOOL, _INT32 = 10, 3  # types.proto


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """A row update node to be created.

    Attributes:
        name: of the node.
        op: UPDATE_ROWS or UPDATE_ONLY_ROWS.
        states: variables, the table first.
        writes: the nodes that it replaces.
        inner: the nodes on which only those writes depend, including reads of the states.
        dense: the nodes that make the gradient dense.
        values: tensor of the gradient's rows `[n, row...]`.
        indices: tensor of their numbers `[n]`.
        scalars: tensors of one element each.
        waits: the nodes that it runs after.
        program: its text.
        gradients: the number of gradients in a row of `values`.
    """

    name: str
    op: str
    states: tuple[str, ...]
    writes: tuple[str, ...]
    inner: frozenset[str]
    dense: tuple[str, ...]
    values: str
    indices: str
    scalars: tuple[str, ...]
    waits: tuple[str, ...]
    program: str
    gradients: int = 1


def rewrite_graph(view: GraphView, handles: Handles, updates: Sequence[RowUpdate]) -> GraphDef:
    """A copy of the graph with row updates in place of writes.

    The writes remain as NoOps, which wait for the update. The nodes that computed their values are removed; reads of
    the states remain, for fetches, and reads without consumers are no longer waited for. Norms of the gradient are
    computed from its rows.
    """
    graph_def = view.graph_def
    out = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    update_of = {write: one.name for one in updates for write in one.writes}
    inner = {node for one in updates for node in one.inner}
    unread = inner | {read for one in updates for state in one.states for read in _unread(view, handles, state)}
    for node in graph_def.node:
        if node.name in update_of:
            out.node.add(name=node.name, op="NoOp", device=node.device, input=[f"^{update_of[node.name]}"])
        elif node.name not in inner or node.op == READ:
            out.node.add().CopyFrom(node)
            replace_control_inputs(out.node[-1], lambda name: _later(name, view, unread))
            _remove_colocations(out.node[-1], inner)
    take_rows(out, view, norms_by_row(view, [node for one in updates for node in one.dense]))
    for one in updates:
        _add(out, view, one)
    return out


def replace_control_inputs(node: NodeDef, later: Callable[[str], list[str]]) -> None:
    """Replaces each control input of a node with the result of `later` for it."""
    controls = [name[1:] for name in node.input if name.startswith("^")]
    waits = list(dict.fromkeys(one for name in controls for one in later(name) if one != node.name))
    if waits != controls:
        data = [name for name in node.input if not name.startswith("^")]
        del node.input[:]
        node.input.extend([*data, *(f"^{name}" for name in waits)])


def find_control_inputs(
    view: GraphView, handles: Handles, writes: Sequence[str], inner: frozenset[str]
) -> tuple[str, ...]:
    """The control inputs from outside of the writes and nodes of an update."""
    inside = {*writes, *inner}
    states = {handles.variable(write) for write in writes}
    unread = {read for state in states for read in _unread(view, handles, state)} | inner
    controls = [
        one for node in (*writes, *sorted(inner)) for wait in view.controls(node) for one in _later(wait, view, unread)
    ]
    return tuple(dict.fromkeys(one for one in controls if one not in inside))


def _unread(view: GraphView, handles: Handles, state: str) -> list[str]:
    """The reads of the full state without consumers."""
    return [read for read in handles.uses[state].reads if not view.consumers(f"{read}:0")]


def _later(name: str, view: GraphView, unread: set[str] | frozenset[str]) -> list[str]:
    """The replacements of a control input."""
    if name not in unread:
        return [name]
    needed = [*view.controls(name), *(node_of(one) for one in view.inputs(name))]
    found = [later for one in needed if view.op(one) != "VarHandleOp" for later in _later(one, view, unread)]
    return list(dict.fromkeys(found))


def _remove_colocations(node: NodeDef, removed: set[str]) -> None:
    """Removes colocations with removed nodes."""
    if "_class" not in node.attr:
        return
    places = [one for one in node.attr["_class"].list.s if one.decode().removeprefix("loc:@") not in removed]
    if len(places) < len(node.attr["_class"].list.s):
        del node.attr["_class"].list.s[:]
        node.attr["_class"].list.s.extend(places)


def _add(out: GraphDef, view: GraphView, one: RowUpdate) -> None:
    """Appends the node and its inputs, and records the shapes of the inputs; the node itself has no output."""
    dtype = view.nodes[one.states[0]].attr["dtype"].type
    device = view.nodes[one.states[0]].device
    scalars = [_scalar(out, view, tensor, dtype, f"{one.name}/scalar_{n}") for n, tensor in enumerate(one.scalars)]
    packed = out.node.add(name=f"{one.name}/scalars", op="Pack" if scalars else "Const", input=scalars)
    if scalars:
        packed.attr["N"].i = len(scalars)
        packed.attr["T"].type = dtype
        packed.attr["axis"].i = 0
    else:
        packed.attr["dtype"].type = dtype
        packed.attr["value"].tensor.dtype = dtype
        packed.attr["value"].tensor.tensor_shape.dim.add(size=0)
    record_shapes(packed, (len(scalars),))
    node = out.node.add(name=one.name, op=one.op, device=device)
    waits = [f"^{name}" for name in one.waits]
    node.input.extend([input_name(one.values), input_name(one.indices), packed.name, *one.states, *waits])
    node.attr["T"].type = dtype
    node.attr["Tindices"].type = view.dtype(one.indices)
    node.attr["N"].i = len(one.states)
    node.attr["program"].s = one.program.encode()
    if one.gradients > 1:
        node.attr["gradients"].i = one.gradients


def _scalar(out: GraphDef, view: GraphView, tensor: str, dtype: int, name: str) -> str:
    """A tensor with one element as a scalar, in the update's type."""
    scalar_input = input_name(tensor)
    if view.dtype(tensor) == _BOOL:
        cast = out.node.add(name=f"{name}/number", op="Cast", input=[input_name(tensor)])
        cast.attr["SrcT"].type, cast.attr["DstT"].type = _BOOL, dtype
        record_shapes(cast, view.shape(tensor))
        scalar_input = cast.name
    if view.shape(tensor) == ():
        return scalar_input
    shape = out.node.add(name=f"{name}/shape", op="Const")
    shape.attr["dtype"].type = shape.attr["value"].tensor.dtype = _INT32
    shape.attr["value"].tensor.tensor_shape.dim.add(size=0)
    record_shapes(shape, (0,))
    reshaped = out.node.add(name=name, op="Reshape", input=[scalar_input, shape.name])
    reshaped.attr["T"].type, reshaped.attr["Tshape"].type = dtype, _INT32
    record_shapes(reshaped, ())
    return str(reshaped.name)
