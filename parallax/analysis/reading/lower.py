"""Turns conditionals into Switch and Merge, as TensorFlow does when it runs them.

What is in a branch of an `If` or a `Case` is then an op of the graph like any other, for the old and the new kind of
conditional alike: an update, an initial value, or what is changed so that tensors have their layouts. The branches
become calls, which are inlined. The conditional keeps its name, and runs in the same order.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from parallax.analysis.reading.functions import Functions
from parallax.types import GraphDef, NameAttrList, NodeDef

_CASES = ("Case", "StatelessCase")
_CONDITIONALS = ("If", "StatelessIf", *_CASES)
_SCOPE = "lowered"
_ASKS = ("VarIsInitializedOp", "IsVariableInitialized")
_INT, _BOOL, _RESOURCE = 3, 10, 20  # types.proto


class _Branch(NamedTuple):
    """A branch: its name, what it runs, and the value, 0 or 1, of the predicate with which it is taken."""

    name: str
    function: NameAttrList
    predicate: str
    side: int


def lower_conditionals(graph_def: GraphDef, lowers_all: bool = False) -> GraphDef:
    """A copy of the graph in which no conditional writes a variable, or asks whether one is initialized.

    The graph itself where there is none at its top level.

    Args:
        graph_def: the graph.
        lowers_all: whether there shall be no others either.
    """
    functions = Functions(graph_def.library, lambda op: False)
    found = [node for node in graph_def.node if node.op in _CONDITIONALS]
    asking = {node.name for node in graph_def.node if node.op in _ASKS}
    lowered = {n.name for n in found if lowers_all or n.input[0] in asking or functions.written_slots(n)}
    if not lowered:
        return graph_def
    out = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if node.name in lowered:
            _lower(out, node)
        else:
            out.node.append(node)
    return out


def has_conditionals(graph_def: GraphDef) -> bool:
    """Whether there is an If or a Case at a graph's top level."""
    return any(node.op in _CONDITIONALS for node in graph_def.node)


def conditional_of(node: str) -> str:
    """The name of the conditional that a node was in; the node's own, where it was in none."""
    return node.partition(f"/{_SCOPE}/")[0]


def _lower(out: GraphDef, node: NodeDef) -> None:
    """Appends what an If or a Case becomes."""
    scope = f"{node.name}/{_SCOPE}"
    data = [i for i in node.input if not i.startswith("^")]
    controls = [i for i in node.input if i.startswith("^")]
    branches = (_cases if node.op in _CASES else _sides)(out, node, scope, data[0], controls)
    results, done = [], []
    for branch in branches:
        pivot = _add(out, f"{scope}/{branch.name}_pivot", "Switch", [branch.predicate, branch.predicate], T=_BOOL)
        start = _add(out, f"{scope}/{branch.name}_taken", "Identity", [f"{pivot}:{branch.side}"], T=_BOOL)
        taken = []
        for number, (tensor, dtype) in enumerate(zip(data[1:], node.attr["Tin"].list.type, strict=True)):
            name = f"{scope}/{branch.name}_input_{number}"
            switch = _add(out, name, "Switch", [tensor, branch.predicate], T=dtype)
            if dtype == _RESOURCE:  # a handle is on its variable's device
                out.node[-1].attr["_class"].list.s.append(f"loc:@{tensor.split(':')[0]}".encode())
            taken.append(f"{switch}:{branch.side}")
        call = out.node.add()
        call.name, call.op = f"{scope}/{branch.name}", "StatefulPartitionedCall"
        call.input.extend([*taken, f"^{start}"])
        call.device = node.device
        call.attr["f"].func.CopyFrom(branch.function)
        call.attr["Tin"].list.type.extend(node.attr["Tin"].list.type)
        call.attr["Tout"].list.type.extend(node.attr["Tout"].list.type)
        results.append(call.name)
        done.append(_add(out, f"{scope}/{branch.name}_done", "Identity", [start, f"^{call.name}"], T=_BOOL))
    end = _add(out, f"{scope}/done", "Merge", done, T=_BOOL, N=len(done))
    merged = []
    for number, dtype in enumerate(node.attr["Tout"].list.type):
        pieces = [f"{call}:{number}" for call in results]
        merged.append(_add(out, f"{scope}/output_{number}", "Merge", pieces, T=dtype, N=len(pieces)))
    last = out.node.add()
    last.name, last.op = node.name, "IdentityN" if merged else "NoOp"
    last.input.extend([*merged, f"^{end}", *controls])
    if merged:
        last.attr["T"].list.type.extend(node.attr["Tout"].list.type)


def _sides(out: GraphDef, node: NodeDef, scope: str, tensor: str, controls: list[str]) -> list[_Branch]:
    """The branches of an If."""
    predicate = _predicate(out, node, scope, tensor, controls)
    names = ("else_branch", "then_branch")
    return [_Branch(name, node.attr[name].func, predicate, side) for side, name in enumerate(names)]


def _cases(out: GraphDef, node: NodeDef, scope: str, tensor: str, controls: list[str]) -> list[_Branch]:
    """The branches of a Case; the last one is taken for all numbers that are no other's."""
    index = _add(out, f"{scope}/index", "Identity", [tensor, *controls], T=_INT)
    *functions, last = node.attr["branches"].list.func
    found, is_other = [], ""
    for number, function in enumerate(functions):
        asked = out.node.add(name=f"{scope}/number_{number}", op="Const")
        asked.attr["dtype"].type = _INT
        asked.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number, tf.int32))
        predicate = _add(out, f"{scope}/is_{number}", "Equal", [index, asked.name], T=_INT)
        found.append(_Branch(f"branch_{number}", function, predicate, 1))
        before, is_other = is_other, predicate
        if before:
            is_other = _add(out, f"{scope}/is_any_to_{number}", "LogicalOr", [before, predicate])
    if not functions:  # it is taken whatever the number is
        is_other = _add(out, f"{scope}/is_other", "NotEqual", [index, index], T=_INT)
    return [*found, _Branch(f"branch_{len(functions)}", last, is_other, 0)]


def _predicate(out: GraphDef, node: NodeDef, scope: str, tensor: str, controls: list[str]) -> str:
    """The predicate as a boolean scalar, after what the conditional waits for; other types are true unless zero."""
    dtype = node.attr["Tcond"].type
    if dtype == _BOOL or not dtype:
        return _add(out, f"{scope}/predicate", "Identity", [tensor, *controls], T=_BOOL)
    cast = _add(out, f"{scope}/predicate", "Cast", [tensor, *controls], SrcT=dtype)
    out.node[-1].attr["DstT"].type = _BOOL
    return cast


def _add(out: GraphDef, name: str, op: str, inputs: list[str], N: int | None = None, **types: int) -> str:
    added = out.node.add()
    added.name, added.op = name, op
    added.input.extend(inputs)
    for key, dtype in types.items():
        added.attr[key].type = dtype
    if N is not None:
        added.attr["N"].i = N
    return name
