"""Differentiates lowered conditionals that read variables.

TensorFlow knows the branch of a Switch by the context of a conditional, which a lowered one lacks. It then takes the
gradient of the other branch to be zeros like the tensor: for the handle of a variable, another handle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_ops, resource_variable_ops

from parallax.base.types import Graph, GraphDef, NodeDef, Operation

_SWITCH, _ZEROS = "Switch", "ZerosLike"
_RESOURCE = 20  # types.proto


@contextmanager
def differentiate_handles(graph: Graph) -> Iterator[None]:
    """A context in which `tf.gradients` differentiates Switches of handles without a TensorFlow 1 context.

    Args:
        graph: the graph that is differentiated.
    """
    if not any(op.type == _SWITCH and _is_lowered(op) for op in graph.get_operations()):
        yield
        return
    entry = ops.gradient_registry._registry[_SWITCH]
    before = dict(entry)

    def differentiate(op: Operation, *gradients: Any) -> Any:
        return _differentiate_switch(op, gradients) if _is_lowered(op) else before["type"](op, *gradients)

    try:
        entry["type"] = differentiate
        yield
    finally:
        entry.update(before)


def remove_handle_zeros(derived: GraphDef) -> None:
    """Removes what TensorFlow takes to be gradients of handles, and no device computes."""
    nodes = [node for node in derived.node if not _is_handle_zeros(node)]
    if len(nodes) < len(derived.node):
        del derived.node[:]
        derived.node.extend(nodes)


def _is_handle_zeros(node: NodeDef) -> bool:
    return node.op == _ZEROS and int(node.attr["T"].type) == _RESOURCE


def _is_lowered(op: Operation) -> bool:
    return bool(op.inputs[0].dtype == tf.resource) and op._get_control_flow_context() is None


def _differentiate_switch(op: Operation, gradients: tuple[Any, ...]) -> tuple[Any, None]:
    """The gradient of a variable: zero where the branch that is taken does not read it.

    Raises:
        TypeError: it is of rows, and which rows of zeros the script's conditional returns is unknown.
    """
    handle, predicate = op.inputs
    known = [one if one is not None and one.dtype != tf.resource else None for one in gradients]
    found = next((one for one in known if one is not None), None)
    if found is None:
        return None, None
    if isinstance(found, tf.IndexedSlices):
        raise TypeError(f"a branch that writes variables looks up rows of {handle.op.name!r}")
    zeros = tf.zeros(resource_variable_ops.variable_shape(handle), found.dtype)
    whole = [zeros if one is None else one for one in known]
    pieces = [control_flow_ops.switch(one, predicate)[side] for side, one in enumerate(whole)]
    return control_flow_ops.merge(pieces)[0], None
