"""The serialized form of a step graph.

It is a MetaGraphDef, with the names of the tensors by which workers run its steps, and the Python functions that its
ops call.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import tensorflow as tf
from tensorflow.python.framework.meta_graph import import_scoped_meta_graph
from tensorflow.python.ops import script_ops

from parallax.analysis.reading.construction.digests import are_alike
from parallax.base.types import Fetch, Graph, GraphDef
from parallax.functions.tracing.step_graph import GraphStep, LoopVariables, StepGraph
from parallax.runtime.worker.function_package import pickle_for_workers
from parallax.runtime.worker.reports.graph_files import meta_graph

PYTHON_OPS = ("PyFuncStateless", "PyFunc")


@dataclass(frozen=True, slots=True)
class _NamedStep:
    """A `GraphStep` with its tensors and ops by name."""

    feeds: tuple[str, ...]
    run: str
    rows: str | None
    length: str | None
    is_counted: bool


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A `StepGraph` that can be pickled.

    Attributes:
        meta_graph: its graph, a MetaGraphDef, serialized.
        variables: name of a variable of the script -> name of its op in the graph.
        steps: by their names.
        loop: names of the ops of `LoopVariables`; empty where there are none.
        functions: pickled, the Python functions that ops of the graph call, by their tokens; empty where none does.
    """

    meta_graph: bytes
    variables: Mapping[str, str]
    steps: Mapping[str, _NamedStep]
    loop: tuple[str, ...] = ()
    functions: bytes = b""

    @staticmethod
    def of(graph: StepGraph, steps: Mapping[str, GraphStep]) -> ServedGraph:
        """The served form of a graph and its steps.

        Raises:
            ConfigError: an op calls a Python function that cannot be pickled.
        """
        named = {
            name: _NamedStep(
                tuple(feed.name for feed in step.feeds),
                step.run.name,
                _name(step.rows),
                _name(step.length),
                step.is_counted,
            )
            for name, step in steps.items()
        }
        loop = () if graph.loop is None else (graph.loop.step.op.name, graph.loop.epoch.op.name)
        variables = {name: variable.handle.op.name for name, variable in graph.made.items()}
        functions = _pickled_functions(graph.graph)
        return ServedGraph(meta_graph(graph.graph).SerializeToString(), variables, named, loop, functions)

    def is_like(self, other: ServedGraph) -> bool:
        """Whether it has the same steps of the same graph, whatever the names of TensorFlow's functions in it."""
        names = [(one.variables, one.steps, one.loop, one.functions) for one in (self, other)]
        return names[0] == names[1] and are_alike(self._graph_def(), other._graph_def())

    def _graph_def(self) -> GraphDef:
        return tf.compat.v1.MetaGraphDef.FromString(self.meta_graph).graph_def

    def import_graph(self) -> tuple[StepGraph, dict[str, GraphStep]]:
        """Imports the graph, with its own variables but without the script's; returns it and its steps."""
        meta_graph = tf.compat.v1.MetaGraphDef.FromString(self.meta_graph)
        with tf.Graph().as_default() as graph:
            import_scoped_meta_graph(meta_graph)  # that of tf.compat.v1.train creates a Saver too
        if self.functions:
            _register_functions(graph, self.functions)
        variables = {one.handle.op.name: one for one in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)}
        made = {name: variables[op] for name, op in self.variables.items()}
        loop = LoopVariables(*(variables[op] for op in self.loop)) if self.loop else None
        steps = {
            name: GraphStep(
                name,
                tuple(graph.get_tensor_by_name(feed) for feed in step.feeds),
                None,
                graph.get_operation_by_name(step.run),
                _tensor(graph, step.rows),
                _tensor(graph, step.length),
                step.is_counted,
            )
            for name, step in self.steps.items()
        }
        return StepGraph((), graph, made, loop), steps


def _pickled_functions(graph: Graph) -> bytes:
    """The Python functions that a graph's ops call, by token."""
    whole = graph.as_graph_def()
    nodes = chain(whole.node, *(one.node_def for one in whole.library.function))
    tokens = {node.attr["token"].s.decode() for node in nodes if node.op in PYTHON_OPS}
    registered = {token: script_ops._py_funcs.get(token) for token in sorted(tokens)}
    # TensorFlow suspends AutoGraph around the function itself, which is pickled.
    function_by_token = {token: getattr(function, "__wrapped__", function) for token, function in registered.items()}
    return pickle_for_workers(function_by_token, "Python code that a step calls") if function_by_token else b""


def _register_functions(graph: Graph, functions: bytes) -> None:
    """Registers the functions with TensorFlow for the graph's ops, for the lifetime of the graph."""
    function_by_token = pickle.loads(functions)
    graph._parallax_functions = function_by_token
    for token, function in function_by_token.items():
        script_ops._py_funcs._funcs[token] = function


def _name(tensor: Fetch | None) -> str | None:
    return None if tensor is None else str(tensor.name)


def _tensor(graph: Graph, name: str | None) -> Fetch | None:
    return None if name is None else graph.get_tensor_by_name(name)
