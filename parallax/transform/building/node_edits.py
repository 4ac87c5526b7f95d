"""Replaces nodes of a GraphDef in place: with other inputs, an identity, a constant, or a no-op."""

from __future__ import annotations

import tensorflow as tf

from parallax.base.types import Array, GraphDef, NodeDef, Operation, Tensor

_SHAPES = "_output_shapes"


def without_shapes(graph_def: GraphDef) -> GraphDef:
    """A copy without the recorded shapes, which the changes make untrue; TensorFlow infers them anew."""
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    for node in copy.node:
        node.attr.pop(_SHAPES, None)
    for function in copy.library.function:
        for node in function.node_def:
            node.attr.pop(_SHAPES, None)
        for argument in function.arg_attr.values():
            argument.attr.pop(_SHAPES, None)
    return copy


def set_data_input(node: NodeDef, slot: int, tensor: str) -> None:
    """Has a node take a tensor as its input number `slot`."""
    data = [i for i, name in enumerate(node.input) if not name.startswith("^")]
    node.input[data[slot]] = tensor


def set_control_input(node: NodeDef, before: str, after: Operation | None) -> None:
    """Has a node wait for `after`, or for nothing, where it waited for `before`."""
    kept = [name for name in node.input if name != f"^{before}"]
    del node.input[:]
    node.input.extend([*kept, f"^{after.name}"] if after is not None else kept)


def make_no_op(node: NodeDef, waits: list[Operation]) -> None:
    """A node that waits for `waits`, and for what it waited for."""
    controls = [name for name in node.input if name.startswith("^")]
    node.op = "NoOp"
    del node.input[:]
    node.input.extend(dict.fromkeys([*(f"^{op.name}" for op in waits), *controls]))
    node.attr.clear()


def make_identity(node: NodeDef, tensor: Tensor) -> None:
    """A node that gives `tensor`, waits for what it waited for, and stays beside what it stood beside."""
    controls = [name for name in node.input if name.startswith("^")]
    colocation = node.attr["_class"] if "_class" in node.attr else None
    node.op = "Identity"
    del node.input[:]
    node.input.extend([tensor.name, *controls])
    kept = None
    if colocation is not None:
        kept = type(colocation)()
        kept.CopyFrom(colocation)
    node.attr.clear()
    node.attr["T"].type = tensor.dtype.as_datatype_enum
    if kept is not None:
        node.attr["_class"].CopyFrom(kept)


def make_constant(node: NodeDef, value: Array) -> None:
    """A node that gives `value`, after all that it took or waited for."""
    controls = [f"^{name.lstrip('^').split(':')[0]}" for name in node.input]
    node.op = "Const"
    del node.input[:]
    node.input.extend(dict.fromkeys(controls))
    node.attr.clear()
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
