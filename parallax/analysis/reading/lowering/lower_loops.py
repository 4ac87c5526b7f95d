"""Turns functional loops into frames of Enter, Merge, Switch and Exit, as TensorFlow does when it runs them.

What is in a loop is then an op of the graph like any other, for the old and the new kind of loop alike. What a turn
gives back as it takes it comes in once.
"""

from __future__ import annotations

from parallax.types import FunctionDef, GraphDef, NodeDef

LOOPS = ("While", "StatelessWhile")
_BOOL, _RESOURCE = 10, 20  # types.proto
_SHAPES = "_output_shapes"


def varying_slots(node: NodeDef, body: FunctionDef) -> list[int]:
    """The inputs of a loop that may be others in the next turn.

    Args:
        node: the loop.
        body: the function that a turn runs.
    """
    arguments, results = body.signature.input_arg, body.signature.output_arg
    given = [body.ret[result.name] for result in results]
    types = node.attr["T"].list.type
    pairs = enumerate(zip(arguments, given, types, strict=True))
    return [slot for slot, (taken, result, dtype) in pairs if dtype != _RESOURCE and result != taken.name]


def lower_loop(out: GraphDef, node: NodeDef, scope: str, varying: list[int]) -> None:
    """Appends what a While becomes: a frame that has its name, in which the condition and the body are calls.

    Args:
        out: the graph.
        node: the loop.
        scope: where the frame's nodes are.
        varying: the inputs that may be others in the next turn, at least one.
    """
    tensors = [name for name in node.input if not name.startswith("^")]
    controls = [name for name in node.input if name.startswith("^")]
    types, shapes = node.attr["T"].list.type, node.attr["output_shapes"].list.shape
    starts, taken, results = [], [], list(tensors)
    for slot, (tensor, dtype) in enumerate(zip(tensors, types, strict=True)):
        enter = _add(out, f"{scope}/enter_{slot}", "Enter", [tensor, *controls], dtype)
        enter.attr["frame_name"].s = scope.encode()
        enter.attr["is_constant"].b = slot not in varying
        enter.attr["parallel_iterations"].i = node.attr["parallel_iterations"].i or 10
        if dtype == _RESOURCE:  # a handle is on its variable's device
            enter.attr["_class"].list.s.append(f"loc:@{tensor.split(':')[0]}".encode())
        starts.append(enter.name)
        taken.append(enter.name)
    for slot in varying:
        merge = _add(out, f"{scope}/merge_{slot}", "Merge", [starts[slot], f"{scope}/next_{slot}"], types[slot])
        merge.attr["N"].i = 2
        if len(shapes):
            merge.attr[_SHAPES].list.shape.add().CopyFrom(shapes[slot])
            merge.attr[_SHAPES].list.shape.add()
        starts[slot] = merge.name
    goes_on = _call(out, node, f"{scope}/cond", "cond", [*starts, f"^{starts[varying[0]]}"], [_BOOL])
    decided = out.node.add(name=f"{scope}/goes_on", op="LoopCond", input=[goes_on])
    for slot in varying:
        switch = _add(out, f"{scope}/switch_{slot}", "Switch", [starts[slot], decided.name], types[slot])
        taken[slot] = _add(out, f"{scope}/taken_{slot}", "Identity", [f"{switch.name}:1"], types[slot]).name
        results[slot] = _add(out, f"{scope}/exit_{slot}", "Exit", [f"{switch.name}:0"], types[slot]).name
    body = _call(out, node, f"{scope}/body", "body", [*taken, f"^{taken[varying[0]]}"], types)
    for slot in varying:
        _add(out, f"{scope}/next_{slot}", "NextIteration", [f"{body}:{slot}"], types[slot])
    end = out.node.add(name=node.name, op="IdentityN", input=[*results, *controls])
    end.attr["T"].list.type.extend(types)


def _call(out: GraphDef, node: NodeDef, name: str, function: str, inputs: list[str], types: list[int]) -> str:
    call = out.node.add(name=name, op="StatefulPartitionedCall", input=inputs, device=node.device)
    call.attr["f"].func.CopyFrom(node.attr[function].func)
    call.attr["Tin"].list.type.extend(node.attr["T"].list.type)
    call.attr["Tout"].list.type.extend(types)
    return name


def _add(out: GraphDef, name: str, op: str, inputs: list[str], dtype: int) -> NodeDef:
    added = out.node.add(name=name, op=op, input=inputs)
    added.attr["T"].type = dtype
    return added
