"""Refuses Keras models that workers cannot execute as one process does, before anything is traced or started."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

import tensorflow as tf

from parallax.base.errors import GraphError
from parallax.base.types import ConcreteFunction, Graph, KerasModel, NodeDef
from parallax.keras.libraries import library_of

_PYTHON_OPS = ("PyFunc", "EagerPyFunc")
"""Ops with effects unknown to TensorFlow."""
_EAGER = (
    "{what} is set, but Parallax runs the steps of a model as graphs and cannot call Python in each step. Remove it, "
    "and debug the script without Parallax."
)
_STRATEGY = (
    "The model was created in the scope of {strategy}. Create it outside of any tf.distribute strategy: Parallax's "
    "workers are the replicas."
)
_OVERRIDDEN = (
    "{model} overrides {name}, but workers run step functions of their own. Move what it does into train_step, "
    "test_step or predict_step."
)
_CALLS_PYTHON = (
    "{step} calls Python code by {op} {name!r} (py_function, numpy_function), which each worker would call on its "
    "part of the batch only. Move that code to the input pipeline (tf.data's map) or to a callback; code without side "
    "effects may be a tf.numpy_function(stateful=False)."
)


def check_model(model: KerasModel) -> None:
    """Refuses a model whose steps cannot become a graph.

    Args:
        model: a keras.Model.

    Raises:
        GraphError: names the cause and the remedy.
    """
    if model.run_eagerly or tf.config.functions_run_eagerly():
        what = "run_eagerly=True" if model.run_eagerly else "tf.config.run_functions_eagerly(True)"
        raise GraphError(_EAGER.format(what=what))
    if getattr(model, "_distribute_strategy", None) is not None or tf.distribute.has_strategy():
        raise GraphError(_STRATEGY.format(strategy=type(model.distribute_strategy).__name__))
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        if getattr(type(model), name) is not getattr(library_of(model).MODEL, name):
            raise GraphError(_OVERRIDDEN.format(model=type(model).__name__, name=name))


def check_step(name: str, concrete: ConcreteFunction) -> None:
    """Refuses a traced step that calls Python code.

    Args:
        name: of the step.
        concrete: a tf.types.experimental.ConcreteFunction.

    Raises:
        GraphError: names the cause and the remedy.
    """
    for node in _find_nodes(concrete.graph, _PYTHON_OPS):
        raise GraphError(_CALLS_PYTHON.format(step=name, op=node.op, name=node.name))


def _find_nodes(graph: Graph, ops: Collection[str]) -> Iterator[NodeDef]:
    """The nodes of some op types, including those in the bodies of functions."""
    whole = graph.as_graph_def()
    nodes = chain(whole.node, *(one.node_def for one in whole.library.function))
    return (node for node in nodes if node.op in ops)
