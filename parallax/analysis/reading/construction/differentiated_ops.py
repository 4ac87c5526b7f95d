"""Finds the ops through which autodiff reaches its targets, while a script builds its graph."""

from __future__ import annotations

from parallax.base.types import FuncGraph, Graph, Operation, Tensor, Variable


def find_tensor(target: Tensor | Variable) -> Tensor:
    """A variable's handle or reference, or a function graph's capture of an eager one; other targets are tensors."""
    import tensorflow as tf

    handle = getattr(target, "handle", None)
    if handle is None:
        return getattr(target, "_ref", lambda: target)()
    graph = tf.compat.v1.get_default_graph()
    is_eager = isinstance(handle, tf.__internal__.EagerTensor)
    return graph.capture(handle) if is_eager and hasattr(graph, "capture") else handle


def find_graphs_around(graph: Graph) -> tuple[list[FuncGraph], Graph]:
    """(a function's graph and the enclosing function graphs, the outermost graph, which is no function's)."""
    from tensorflow.python.ops import gradients_util

    enclosing = []
    while gradients_util._IsFunction(graph):
        enclosing.append(graph)
        graph = graph.outer_graph
    return enclosing, graph


def list_parts(tensors: Tensor) -> list[Tensor]:
    """The tensors of a structure, including the parts of IndexedSlices."""
    import tensorflow as tf

    flat = map(find_tensor, tf.nest.flatten(tensors))
    parts = [part for t in flat for part in tf.nest.flatten(t, expand_composites=True)]
    return [part for part in parts if hasattr(part, "op")]


def list_ops(tensors: Tensor) -> list[Operation]:
    """The ops of the tensors of a structure."""
    return [part.op for part in list_parts(tensors)]


def find_ops_behind(ops: list[Operation]) -> set[Operation]:
    """The ancestors of ops, also around a function that captures their results."""
    from tensorflow.python.ops import gradients_util

    ancestors, waiting = set(ops), list(ops)
    while waiting:
        for tensor in gradients_util._NonEagerInputs(waiting.pop(), ()):
            if tensor.op not in ancestors:
                ancestors.add(tensor.op)
                waiting.append(tensor.op)
    return ancestors


def find_reachable_ops(ops: list[Operation], functions: list[FuncGraph]) -> set[Operation]:
    """The ops through which autodiff can reach these ops, determined as in TensorFlow."""
    from tensorflow.python.ops import gradients_util

    reached_ops: set[Operation] = set()
    gradients_util._MarkReachedOps(ops, reached_ops, functions)
    return reached_ops
