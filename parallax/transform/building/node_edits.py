"""Replaces nodes of a GraphDef in place: with other inputs, an identity, a constant, or a no-op."""

from __future__ import annotations

import tensorflow as tf

from parallax.base.types import Array, GraphDef, NodeDef, Operation, Tensor
from parallax.graph.view import NEXT_ITERATIONS, node_of

_SHAPES, _MERGES = "_output_shapes", ("Merge", "RefMerge")
_ITEMS = ("StackPopV2", "TensorArrayReadV3", "TensorListGetItem", "TensorListPopBack")


def without_shapes(graph_def: GraphDef) -> GraphDef:
    """A copy without the recorded shapes, which the changes invalidate; TensorFlow infers them again.

    Loop variables, and tensors that were stored, keep theirs: TensorFlow does not infer them, and ops may need them.
    """
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    turns = {node.name for node in copy.node if node.op in NEXT_ITERATIONS}
    for node in copy.node:
        is_head = node.op in _MERGES and not turns.isdisjoint(map(node_of, node.input))
        if not is_head and node.op not in _ITEMS:
            node.attr.pop(_SHAPES, None)
    for function in copy.library.function:
        for node in function.node_def:
            node.attr.pop(_SHAPES, None)
        for argument in function.arg_attr.values():
            argument.attr.pop(_SHAPES, None)
    return copy


def set_data_input(node: NodeDef, slot: int, tensor: str) -> None:
    """Sets input number `slot` of a node."""
    data = [i for i, name in enumerate(node.input) if not name.startswith("^")]
    node.input[data[slot]] = tensor


def set_control_input(node: NodeDef, before: str, after: Operation | None) -> None:
    """Replaces the control input `before` of a node with `after`, or removes it."""
    other_inputs = [name for name in node.input if name != f"^{before}"]
    del node.input[:]
    node.input.extend([*other_inputs, f"^{after.name}"] if after is not None else other_inputs)


def make_no_op(node: NodeDef, waits: list[Operation]) -> None:
    """Turns a node into a no-op that waits for `waits`, and for its inputs."""
    controls = [name for name in node.input if name.startswith("^")]
    node.op = "NoOp"
    del node.input[:]
    node.input.extend(dict.fromkeys([*(f"^{op.name}" for op in waits), *controls]))
    node.attr.clear()


def make_identity(node: NodeDef, tensor: Tensor) -> None:
    """Turns a node into an identity of `tensor`, with its control inputs and colocation."""
    controls = [name for name in node.input if name.startswith("^")]
    colocation = node.attr["_class"] if "_class" in node.attr else None
    node.op = "Identity"
    del node.input[:]
    node.input.extend([tensor.name, *controls])
    remaining = None
    if colocation is not None:
        remaining = type(colocation)()
        remaining.CopyFrom(colocation)
    node.attr.clear()
    node.attr["T"].type = tensor.dtype.as_datatype_enum
    if remaining is not None:
        node.attr["_class"].CopyFrom(remaining)


def make_constant(node: NodeDef, value: Array) -> None:
    """Turns a node into a constant `value` that runs after its former inputs."""
    controls = [f"^{name.lstrip('^').split(':')[0]}" for name in node.input]
    node.op = "Const"
    del node.input[:]
    node.input.extend(dict.fromkeys(controls))
    node.attr.clear()
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
