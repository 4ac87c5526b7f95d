"""Runs the functions of `tf.custom_gradient` in another graph than the script's.

TensorFlow keeps such a function as a Python closure. Its variables hold tensors of the script's graph, such as the
inputs of the forward pass (`lambda dy: dy * x`) or those of which `tf.recompute_grad` computes activations again. In a
graph that was imported from the script's, a copy of the closure holds the tensors that have their names there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import variable_scope

from parallax.analysis.reading.construction.launcher_graph import map_functions
from parallax.analysis.reading.lowering.inline import InlinedCall
from parallax.base.types import Graph, Operation
from parallax.graph.view import VARIABLES

_COLLECTION = tf.compat.v1.GraphKeys.GLOBAL_VARIABLES
_STORE = variable_scope._VARSTORE_KEY
_READ = "_graph_element"
"""The tensor as which TensorFlow uses a resource variable."""
_TYPE, _CUSTOM = "_gradient_op_type", "CustomGradient-"
_COPY = "Parallax"


class NotDerivedError(Exception):
    """TensorFlow does not import a graph, or does not differentiate it."""


def find_defined_gradient(graph: Graph, calls: Iterable[InlinedCall]) -> str:
    """The first call of a function that defines its own gradient, as a `Defun` may; empty if there is none.

    Autodiff of the inlined function would not know of that gradient.
    """
    renamed = map_functions(graph)
    defined = {
        renamed.get(name, name)
        for name, function in graph._functions.items()
        if any(getattr(function, one, None) for one in ("python_grad_func", "grad_func_name"))
    }
    return next((call.name for call in calls if call.function in defined), "")


@contextmanager
def rebind_custom_gradients(graph: Graph, instead: Mapping[str, str]) -> Iterator[None]:
    """A context in which `tf.gradients` of a graph calls custom gradients with its own tensors.

    Args:
        graph: imported from the graph in which the gradients were defined.
        instead: tensor of that graph -> the tensor that its consumers read in `graph`, where that is another one.

    Raises:
        NotDerivedError: a gradient makes variables, which the script's graph lacks.
        RuntimeError: a gradient computes something of tensors that `graph` lacks.
    """
    custom = [op for op in graph.get_operations() if op.type == "IdentityN" and _find_type(op).startswith(_CUSTOM)]
    if not custom:
        yield
        return
    registry = ops.gradient_registry._registry
    names = {_find_type(op): f"{_COPY}{_find_type(op)}" for op in custom}
    closures = _Closures(graph, instead)
    for before, after in names.items():
        if before in registry:
            registry[after] = {key: closures.rebind(value) for key, value in registry[before].items()}
    for origin in closures.origins:
        _add_variables(graph, origin, closures)
    count = len(graph.get_operations())
    are_final = [origin.finalized for origin in closures.origins]
    try:
        for origin in closures.origins:  # an op on its tensors alone would become its op
            origin.finalize()
        for op in custom:
            _set_type(op, names[_find_type(op)])
        yield
        made = [op.name for op in graph.get_operations()[count:] if op.type in VARIABLES]
        if made:
            raise NotDerivedError(f"a custom gradient makes the variable {made[0]!r}")
    finally:
        for origin, is_final in zip(closures.origins, are_final, strict=True):
            if not is_final:
                origin._unsafe_unfinalize()
        for op in custom:
            _set_type(op, _find_type(op).removeprefix(_COPY))
        for after in names.values():
            registry.pop(after, None)


def _add_variables(graph: Graph, origin: Graph, closures: _Closures) -> None:
    """Lets TensorFlow find the variables that a gradient reads, and those that it gets by name."""
    for variable in origin.get_collection(_COLLECTION):
        graph.add_to_collection(_COLLECTION, closures.rebind(variable))
    for store in origin.get_collection(_STORE):
        copied = variable_scope._VariableStore()
        copied._vars, copied._partitioned_vars = closures.rebind(store._vars), closures.rebind(store._partitioned_vars)
        graph.add_to_collection(_STORE, copied)


def _find_type(op: Operation) -> str:
    try:
        return cast(bytes, op.get_attr(_TYPE)).decode()
    except ValueError:
        return ""


def _set_type(op: Operation, name: str) -> None:
    op._set_attr(_TYPE, attr_value_pb2.AttrValue(s=name.encode()))


class _Closures:
    """Copies of Python functions that hold tensors of another graph.

    Args:
        graph: the other graph.
        instead: see `rebind_custom_gradients`.

    Attributes:
        origins: the graphs of the tensors.
    """

    def __init__(self, graph: Graph, instead: Mapping[str, str]) -> None:
        self._graph = graph
        self._instead = instead
        self._copies: dict[int, Any] = {}
        self._originals: list[Any] = []  # so that no other object gets the address of one
        self.origins: list[Graph] = []

    def rebind(self, value: Any) -> Any:
        """A value with the tensors of the other graph; the value itself where it holds none."""
        if isinstance(value, str | bytes | int | float | type | None):
            return value
        if id(value) not in self._copies:
            self._originals.append(value)
            self._copies[id(value)] = value  # one that holds itself is copied by the function that holds both
            self._copies[id(value)] = self._copy(value)
        return self._copies[id(value)]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, tf.Tensor):
            return self._find_tensor(value)
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(*map(self.rebind, (value.values, value.indices, value.dense_shape)))
        if isinstance(value, tuple):
            items = tuple(map(self.rebind, value))
            return type(value)(*items) if hasattr(value, "_fields") else items
        if isinstance(value, list):
            return list(map(self.rebind, value))
        if isinstance(value, dict):
            return {key: self.rebind(one) for key, one in value.items()}
        if isinstance(value, FunctionType):
            return self._copy_function(value)
        if isinstance(value, MethodType):
            of = value.__self__
            return MethodType(self.rebind(value.__func__), self._copy_object(of) if hasattr(of, "__dict__") else of)
        if isinstance(value, partial):
            return partial(self.rebind(value.func), *self.rebind(value.args), **self.rebind(value.keywords))
        if isinstance(value, tf.Variable) or (callable(value) and hasattr(value, "__dict__")):
            return self._copy_object(value)
        return value

    def _find_tensor(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor of the same name, unless there is none, or consumers read another one in its place."""
        if isinstance(tensor, ops.EagerTensor) or isinstance(tensor.graph, FuncGraph):
            return tensor
        name = str(tensor.name)
        if tensor.graph not in self.origins:
            self.origins.append(tensor.graph)
        try:
            found = self._graph.get_tensor_by_name(self._instead.get(name, name))
        except (KeyError, ValueError):
            return tensor
        if tensor.dtype == tf.resource:
            found._handle_data = tensor._handle_data
        return found

    def _copy_function(self, function: FunctionType) -> Callable[..., Any]:
        cells = tuple(CellType() for _ in function.__closure__ or ())
        names = {
            name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__
        }
        outer = {name: new for name, one in names.items() if (new := self._rebind_tensor(one)) is not one}
        copied = FunctionType(
            function.__code__,
            {**function.__globals__, **outer} if outer else function.__globals__,
            function.__name__,
            self.rebind(function.__defaults__),
            cells,
        )
        copied.__kwdefaults__ = self.rebind(function.__kwdefaults__)
        copied.__dict__.update(function.__dict__)
        self._copies[id(function)] = copied  # a function may call itself
        for cell, before in zip(cells, function.__closure__ or (), strict=True):
            try:
                cell.cell_contents = self.rebind(before.cell_contents)
            except ValueError:  # the variable has no value
                continue
        return copied

    def _rebind_tensor(self, value: Any) -> Any:
        return self.rebind(value) if isinstance(value, tf.Tensor | tf.Variable) else value

    def _copy_object(self, value: Any) -> Any:
        if isinstance(value, type) or self._copies.get(id(value), value) is not value:
            return self._copies.get(id(value), value)
        try:
            copied = object.__new__(type(value))
        except TypeError:  # of a class that is not Python's
            return value
        self._originals.append(value)
        self._copies[id(value)] = copied
        copied.__dict__.update({name: self.rebind(one) for name, one in vars(value).items()})
        read = getattr(copied, _READ, None)
        if read is not None and read.graph is not self._graph and copied.handle.graph is self._graph:
            copied.__dict__[_READ] = copied.read_value()
        return copied
