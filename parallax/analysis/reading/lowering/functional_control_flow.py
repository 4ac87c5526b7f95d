"""Lowers conditionals to Switch and Merge, and loops to frames, as TensorFlow does when it runs them.

The contents of a branch of an `If` or a `Case` are then ops of the graph like any others, in old and new conditionals
alike: an update, an initial value, or a layout change. The branches become calls, which are inlined. The conditional
keeps its name and its place in the execution order.

Functional loops become frames of Enter, Merge, Switch and Exit. The contents of a loop are then ops of the graph like
any others, in old and new loops alike. A loop variable that an iteration returns unchanged becomes a constant of the
frame.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from parallax.analysis.reading.lowering.function_bodies import CONDITIONALS, Functions
from parallax.base.types import FunctionDef, GraphDef, NameAttrList, NodeDef
from parallax.graph.control_flow import Branches, branches_of, mark_compared
from parallax.graph.view import GraphView, node_of, split_tensor

_CASES = ("Case", "StatelessCase")
_SIDED = ("If", "StatelessIf")
_COMPARES: Mapping[str, Callable[[Any, Any], Any]] = {
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
}
_SCOPE = "lowered"
_GETS = "OptionalGetValue"
_ASKS = ("VarIsInitializedOp", "IsVariableInitialized")
_INT, _BOOL, _RESOURCE = 3, 10, 20  # types.proto


_Asked = dict[tuple[str, ...], list[str]]
"""The index of a Case, its control inputs, and the number of branches -> the predicate of each."""


class _LoweredBranch(NamedTuple):
    """A branch: its name, its function, and the value, 0 or 1, of the predicate with which it is taken."""

    name: str
    function: NameAttrList
    predicate: str
    side: int


def lower_control_flow(graph_def: GraphDef, lowers_all: bool = False) -> GraphDef:
    """A copy of the graph in which no conditional writes a variable, or queries whether one is initialized.

    An If that compares two constants is replaced by the branch that it takes. The graph itself where there is none of
    them at its top level.

    Args:
        graph_def: the graph.
        lowers_all: whether all other conditionals, and functional loops, are lowered too.
    """
    functions = Functions(graph_def.library, lambda op: False)
    conditionals = list(filter(_is_conditional, graph_def.node))
    asking = {node.name for node in graph_def.node if node.op in _ASKS} if conditionals else set[str]()
    taken, compared = _find_taken_branches(graph_def, conditionals)
    lowered = {n.name for n in conditionals if lowers_all or n.input[0] in asking or functions.written_slots(n)}
    loops = _find_loops(graph_def) if lowers_all else {}
    if not lowered and not loops and not taken:
        return graph_def
    out, requested = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library), _Asked()
    for node in graph_def.node:
        if node.name in taken:
            _take_branch(out, node, taken[node.name])
        elif node.name in lowered:
            _lower(out, node, requested)
        elif node.name in loops:
            lower_loop(out, node, f"{node.name}/{_SCOPE}", loops[node.name])
        else:
            out.node.append(node)
            if node.name in compared:
                mark_compared(out.node[-1])
    return out


def has_control_flow(graph_def: GraphDef) -> bool:
    """Whether there is an If, a Case or a loop at a graph's top level."""
    return any(map(_is_conditional, graph_def.node)) or bool(_find_loops(graph_def))


def _find_loops(graph_def: GraphDef) -> dict[str, list[int]]:
    """Name of each functional loop with variables that may change between iterations -> their indices."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    loops = [node for node in graph_def.node if node.op in LOOPS]
    varying_by_loop = {node.name: varying_slots(node, functions[node.attr["body"].func.name]) for node in loops}
    return {name: varying for name, varying in varying_by_loop.items() if varying}


def _is_conditional(node: NodeDef) -> bool:
    return node.op in CONDITIONALS and not (node.op in _CASES and len(node.attr["branches"].list.func) < 2)


def conditional_of(node: str) -> str:
    """The name of the conditional or the loop that contained a node; the node's own, where there was none."""
    return node.partition(f"/{_SCOPE}/")[0]


def _lower(out: GraphDef, node: NodeDef, requested: _Asked) -> None:
    """Appends the lowered form of an If or a Case, which may share predicates with a preceding one."""
    scope = f"{node.name}/{_SCOPE}"
    data = [i for i in node.input if not i.startswith("^")]
    controls = [i for i in node.input if i.startswith("^")]
    if node.op in _CASES:
        branches = _cases(out, node, scope, data[0], controls, requested)
    else:
        branches = _sides(out, node, scope, data[0], controls)
    results, done = [], []
    for branch in branches:
        pivot = _add(out, f"{scope}/{branch.name}_pivot", "Switch", [branch.predicate, branch.predicate], T=_BOOL)
        start = _add(out, f"{scope}/{branch.name}_taken", "Identity", [f"{pivot}:{branch.side}"], T=_BOOL)
        lowered = []
        for number, (tensor, dtype) in enumerate(zip(data[1:], node.attr["Tin"].list.type, strict=True)):
            name = f"{scope}/{branch.name}_input_{number}"
            switch = _add(out, name, "Switch", [tensor, branch.predicate], T=dtype)
            if dtype == _RESOURCE:  # a handle has its variable's device
                out.node[-1].attr["_class"].list.s.append(f"loc:@{tensor.split(':')[0]}".encode())
            lowered.append(f"{switch}:{branch.side}")
        call = out.node.add()
        call.name, call.op = f"{scope}/{branch.name}", "StatefulPartitionedCall"
        call.input.extend([*lowered, f"^{start}"])
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


def _find_taken_branches(graph_def: GraphDef, conditionals: list[NodeDef]) -> tuple[dict[str, str], set[str]]:
    """Name of each If that compares two constants -> the branch that it takes; and the names of these constants.

    The other branch may have no valid shapes: checks of a loss's weights compare the ranks of tensors, which are known
    after the script has built its graph.
    """
    ops = {node.name: node.op for node in graph_def.node} if conditionals else {}
    comparing = [n for n in conditionals if n.op in _SIDED and ops[node_of(n.input[0])] in _COMPARES]
    if not comparing:
        return {}, set()
    view, taken, compared = GraphView(graph_def), dict[str, str](), set[str]()
    for node in comparing:
        maker = node_of(node.input[0])
        one, other = (view.constant(tensor) for tensor in view.inputs(maker))
        if one is not None and other is not None and one.ndim == other.ndim == 0:
            taken[node.name] = "then_branch" if _COMPARES[view.op(maker)](one, other) else "else_branch"
            compared |= view.computed_of([maker])
    return taken, compared


def _take_branch(out: GraphDef, node: NodeDef, branch: str) -> None:
    """Appends a call of one branch in place of an If."""
    types = list(node.attr["Tout"].list.type)
    data = [tensor for tensor in node.input[1:] if not tensor.startswith("^")]
    controls = [tensor for tensor in node.input if tensor.startswith("^")]
    call = out.node.add(name=f"{node.name}/{_SCOPE}/{branch}", op="StatefulPartitionedCall", device=node.device)
    call.input.extend([*data, *controls])
    call.attr["f"].func.CopyFrom(node.attr[branch].func)
    call.attr["Tin"].list.type.extend(node.attr["Tin"].list.type)
    call.attr["Tout"].list.type.extend(types)
    last = out.node.add(name=node.name, op="IdentityN" if types else "NoOp")
    last.input.extend([*(f"{call.name}:{number}" for number in range(len(types))), f"^{call.name}"])
    if types:
        last.attr["T"].list.type.extend(types)


def _sides(out: GraphDef, node: NodeDef, scope: str, tensor: str, controls: list[str]) -> list[_LoweredBranch]:
    """The branches of an If."""
    predicate = _predicate(out, node, scope, tensor, controls)
    names = ("else_branch", "then_branch")
    return [_LoweredBranch(name, node.attr[name].func, predicate, side) for side, name in enumerate(names)]


def _cases(
    out: GraphDef, node: NodeDef, scope: str, tensor: str, controls: list[str], requested: _Asked
) -> list[_LoweredBranch]:
    """The branches of a Case; the last one is taken for all other indices."""
    functions = node.attr["branches"].list.func
    asks = (tensor, *controls, str(len(functions)))
    if asks not in requested:
        requested[asks] = _compare_index(out, scope, tensor, len(functions), controls)
    pairs = enumerate(zip(functions, requested[asks], strict=True))
    return [_LoweredBranch(f"branch_{number}", function, predicate, 1) for number, (function, predicate) in pairs]


def _compare_index(out: GraphDef, scope: str, tensor: str, count: int, controls: list[str]) -> list[str]:
    """For each of several branches a boolean: whether an index selects it; for the last one, whether no other does."""
    found, is_any = [], ""
    for number in range(count - 1):
        constant = out.node.add(name=f"{scope}/number_{number}", op="Const")
        constant.attr["dtype"].type = _INT
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number, tf.int32))
        found.append(_add(out, f"{scope}/is_{number}", "Equal", [tensor, constant.name, *controls], T=_INT))
        is_any = _add(out, f"{scope}/is_any_{number}", "LogicalOr", [is_any, found[-1]]) if is_any else found[-1]
    return [*found, _add(out, f"{scope}/is_none", "LogicalNot", [is_any])]


def connect_optionals(graph_def: GraphDef) -> GraphDef:
    """A copy of the graph in which gradients read a branch's tensors directly, instead of its optional tensors.

    A functional conditional returns the tensors of either branch that its gradient reads as optional tensors. The
    gradient of a branch reads values of this branch alone, and runs if it has run.
    """
    if not any(node.op == _GETS for node in graph_def.node):
        return graph_def
    out = type(graph_def)()
    out.CopyFrom(graph_def)
    while _connect_values(out):  # those of nested branches are known once the enclosing ones are connected
        pass
    if not any(node.op in (_GETS, "OptionalHasValue") for node in out.node):
        for node in out.node:
            if node.op == "OptionalFromValue":  # it has no consumers
                name, waits = (
                    node.name,
                    [f"^{input_name.split(':')[0]}" for input_name in node.input if input_name[0] != "^"],
                )
                node.Clear()
                node.name, node.op = name, "OptionalNone"
                node.input.extend(dict.fromkeys(waits))
    return out


def _connect_values(graph_def: GraphDef) -> bool:
    """Replaces reads of optional tensors of a graph, where their values are known; returns whether there were any."""
    view, is_any = GraphView(graph_def), False
    for name, node in view.nodes.items():
        optional = _find_value(view, name) if node.op == _GETS else None
        if optional is not None:
            dtype, is_any = node.attr["output_types"].list.type[0], True
            node.Clear()
            node.name, node.op = name, "ZerosLike" if optional.are_zeros else "Identity"
            node.input.extend([optional.tensor, *(f"^{control}" for control in view.controls(name))])
            node.attr["T"].type = dtype
    return is_any


class _OptionalValue(NamedTuple):
    """The value of an optional tensor: a tensor, or zeros of its shape."""

    tensor: str
    are_zeros: bool


def _find_value(view: GraphView, getter: str) -> _OptionalValue | None:
    """The result of an OptionalGetValue; None where it is unknown."""
    sides = {branch.predicate: branch.taken for branch in branches_of(view)[getter]}
    tensor, are_zeros = view.inputs(getter)[0], False
    while True:
        node, number = split_tensor(tensor)
        op, inputs = view.op(node), view.inputs(node)
        if op == "OptionalFromValue":
            return _OptionalValue(inputs[0], are_zeros) if len(inputs) == 1 else None
        if op == "Merge":
            here = branches_of(view)[node]
            selected = [one for one in inputs if _is_selected(branches_of(view)[node_of(one)][len(here) :], sides)]
            if number or len(selected) != 1:
                return None
            tensor = selected[0]
        elif op in ("Identity", "IdentityN", "Switch", "ZerosLike"):
            are_zeros |= op == "ZerosLike"
            tensor = inputs[number if op == "IdentityN" else 0]
        else:
            return None


def _is_selected(branches: Branches, sides: Mapping[str, int]) -> bool:
    return bool(branches) and all(sides.get(branch.predicate) == branch.taken for branch in branches)


def _predicate(out: GraphDef, node: NodeDef, scope: str, tensor: str, controls: list[str]) -> str:
    """The predicate as a boolean scalar, after the conditional's control inputs; other types are true unless zero."""
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


LOOPS = ("While", "StatelessWhile")
_SHAPES = "_output_shapes"


def varying_slots(node: NodeDef, body: FunctionDef) -> list[int]:
    """The inputs of a loop that may change between iterations.

    Args:
        node: the loop.
        body: the function of an iteration.
    """
    arguments, results = body.signature.input_arg, body.signature.output_arg
    results_by_slot = [body.ret[result.name] for result in results]
    types = node.attr["T"].list.type
    pairs = enumerate(zip(arguments, results_by_slot, types, strict=True))
    return [slot for slot, (taken, result, dtype) in pairs if dtype != _RESOURCE and result != taken.name]


def lower_loop(out: GraphDef, node: NodeDef, scope: str, varying: list[int]) -> None:
    """Appends the lowered form of a While: a frame of the same name, in which the condition and the body are calls.

    Args:
        out: the graph.
        node: the loop.
        scope: the scope of the frame's nodes.
        varying: the inputs that may change between iterations, at least one.
    """
    tensors = [name for name in node.input if not name.startswith("^")]
    controls = [name for name in node.input if name.startswith("^")]
    types, shapes = node.attr["T"].list.type, node.attr["output_shapes"].list.shape
    starts, taken, results = [], [], list(tensors)
    for slot, (tensor, dtype) in enumerate(zip(tensors, types, strict=True)):
        enter = _add_typed(out, f"{scope}/enter_{slot}", "Enter", [tensor, *controls], dtype)
        enter.attr["frame_name"].s = scope.encode()
        enter.attr["is_constant"].b = slot not in varying
        enter.attr["parallel_iterations"].i = node.attr["parallel_iterations"].i or 10
        if dtype == _RESOURCE:  # a handle has its variable's device
            enter.attr["_class"].list.s.append(f"loc:@{tensor.split(':')[0]}".encode())
        starts.append(enter.name)
        taken.append(enter.name)
    for slot in varying:
        merge = _add_typed(out, f"{scope}/merge_{slot}", "Merge", [starts[slot], f"{scope}/next_{slot}"], types[slot])
        merge.attr["N"].i = 2
        if len(shapes):
            merge.attr[_SHAPES].list.shape.add().CopyFrom(shapes[slot])
            merge.attr[_SHAPES].list.shape.add()
        starts[slot] = merge.name
    goes_on = _call(out, node, f"{scope}/cond", "cond", [*starts, f"^{starts[varying[0]]}"], [_BOOL])
    decided = out.node.add(name=f"{scope}/goes_on", op="LoopCond", input=[goes_on])
    for slot in varying:
        switch = _add_typed(out, f"{scope}/switch_{slot}", "Switch", [starts[slot], decided.name], types[slot])
        taken[slot] = _add_typed(out, f"{scope}/taken_{slot}", "Identity", [f"{switch.name}:1"], types[slot]).name
        results[slot] = _add_typed(out, f"{scope}/exit_{slot}", "Exit", [f"{switch.name}:0"], types[slot]).name
    body = _call(out, node, f"{scope}/body", "body", [*taken, f"^{taken[varying[0]]}"], types)
    for slot in varying:
        _add_typed(out, f"{scope}/next_{slot}", "NextIteration", [f"{body}:{slot}"], types[slot])
    end = out.node.add(name=node.name, op="IdentityN", input=[*results, *controls])
    end.attr["T"].list.type.extend(types)


def _call(out: GraphDef, node: NodeDef, name: str, function: str, inputs: list[str], types: list[int]) -> str:
    call = out.node.add(name=name, op="StatefulPartitionedCall", input=inputs, device=node.device)
    call.attr["f"].func.CopyFrom(node.attr[function].func)
    call.attr["Tin"].list.type.extend(node.attr["T"].list.type)
    call.attr["Tout"].list.type.extend(types)
    return name


def _add_typed(out: GraphDef, name: str, op: str, inputs: list[str], dtype: int) -> NodeDef:
    added = out.node.add(name=name, op=op, input=inputs)
    added.attr["T"].type = dtype
    return added
