"""Large variables that are materialized on first read; until then they are the graph of a value, or are in files.

A process that builds a model does not need the value of a table whose rows their owners compute. Such a variable has a
handle and no memory. An eager read returns the value that it would always have had, as it is computed then, up to a
limit of bytes that one process materializes. Traces and graphs use the handle alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from parallax.base.errors import SessionError
from parallax.base.types import Argument, Array, Handle, PortableValue, Value, Variable
from parallax.functions.tracing.handles import HandleWatch, watch_handle
from parallax.report.text import bytes_text
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.writer import run
from parallax.transform.row_range import range_of_rows

_TOO_LARGE = (
    "One process makes at most {limit} of large variables whole (TableConfig.whole_bytes), and with {name}, which has "
    "{own}, it would be {total}. {where} {remedy} or allow more: parallax run --whole-bytes N."
)
_IN_FILES = "Its value is in the checkpoint {prefix} under the name {key!r}."
_TRAINED = "Its rows are with the workers that train."
_INITIAL = "It has its initial value, which its owners make by row in `fit`."
_READ_ROWS = "Read rows of it, parallax.keras.rows(variable, first, count),"
_TRAIN_FIRST = "Leave out what reads all of it before `fit`,"
_EVALUATE_IN_FIT = "Leave out what reads all of it (give `fit` validation_data to evaluate),"


@dataclass(frozen=True, slots=True)
class InFile:
    """The place of a value in a checkpoint of TensorFlow's format.

    Attributes:
        prefix: the checkpoint's name.
        key: the value's key in it.
    """

    prefix: str
    key: str


class TracedVariable(UninitializedVariable):  # type: ignore[misc]
    """A tf.Variable without memory until it is read or assigned."""

    _parallax_initial: ConcreteFunction | None = None
    _parallax_source: ConcreteFunction | InFile | None = None

    @property
    def _handle(self) -> Handle:
        if self._parallax_source is not None and tf.executing_eagerly():
            materialize(self)
        return vars(self)["_handle"]

    @_handle.setter
    def _handle(self, handle: Handle) -> None:
        self.__dict__["_handle"] = handle

    @property
    def device(self) -> str:
        """The device where it is, or will be."""
        return str(vars(self)["_handle"].device)

    def assign(self, *args: Argument, **kwargs: Argument) -> object:
        """Assigns as for any variable; the old value is not computed for it."""
        if self._parallax_source is None or not tf.executing_eagerly():
            return super().assign(*args, **kwargs)
        source, self._parallax_source = self._parallax_source, None
        try:
            return super().assign(*args, **kwargs)
        except BaseException:
            self._parallax_source = source
            raise


class _MaterializedBytes:
    """The variables that this process has materialized.

    Attributes:
        limit: returns the bytes of variables that it may materialize; unlimited by default.
    """

    def __init__(self) -> None:
        self.limit: Callable[[], float] = lambda: float("inf")
        self._bytes: dict[int, int] = {}

    def add(self, variable: Variable, where: str, remedy: str) -> None:
        """Adds a variable, or raises an error if it exceeds the limit."""
        if id(variable) in self._bytes:
            return
        num_bytes, limit = bytes_of(variable), self.limit()
        total = num_bytes + sum(self._bytes.values())
        if total > limit:
            texts = {"limit": bytes_text(int(limit)), "own": bytes_text(num_bytes), "total": bytes_text(total)}
            raise SessionError(_TOO_LARGE.format(name=variable.name.split(":")[0], where=where, remedy=remedy, **texts))
        self._bytes[id(variable)] = num_bytes
        weakref.finalize(variable, self._bytes.pop, id(variable), None)


_materialized = _MaterializedBytes()


def limit_materialized(limit: Callable[[], float]) -> None:
    """Sets the limit, in bytes, of traced variables that this process may materialize; it is evaluated at each read."""
    _materialized.limit = limit


def traced_variable(initial: ConcreteFunction, **kwargs: Argument) -> Variable:
    """A variable without memory.

    Args:
        initial: a tf.types.experimental.ConcreteFunction without arguments that returns the initial value.
        kwargs: those of tf.Variable.
    """
    kwargs.update(shape=initial.outputs[0].shape, dtype=initial.outputs[0].dtype)
    variable = TracedVariable(**kwargs)
    variable._parallax_initial = variable._parallax_source = initial
    _watch(variable)
    return variable


def bytes_of(variable: Variable) -> int:
    """The bytes of a variable's value."""
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.size)


def handle_of(variable: Variable) -> Handle:
    """The handle of a variable, which is not materialized for it."""
    attributes = vars(variable)
    return attributes["_handle"] if "_handle" in attributes else variable.handle


def initial_of(variable: Variable) -> ConcreteFunction | None:
    """The graph of a variable's initial value, a ConcreteFunction; None where it was not traced."""
    return getattr(variable, "_parallax_initial", None)


def source_of(variable: Variable) -> ConcreteFunction | InFile | None:
    """The source of a value that is not in memory: a ConcreteFunction or an InFile; None where it is in memory."""
    return getattr(variable, "_parallax_source", None)


def note_file(variable: Variable, place: InFile) -> None:
    """Records that a traced variable's value is in files from now on."""
    variable._parallax_source = place


def materialize(variable: Variable) -> None:
    """Computes a traced variable's value, if it has none in this process; in eager execution.

    Raises:
        SessionError: the limit of this process would be exceeded.
        CheckpointError: the value is in files that cannot be read here.
    """
    source = source_of(variable)
    if source is None:
        return
    if isinstance(source, InFile):
        _materialized.add(variable, _IN_FILES.format(prefix=source.prefix, key=source.key), _READ_ROWS)
    else:
        _materialized.add(variable, _INITIAL, _TRAIN_FIRST)
    with tf.init_scope():
        value = source() if not isinstance(source, InFile) else _read(source, 0, variable.shape[0])
        variable.assign(value)


def check_materialized(variable: Variable) -> None:
    """Refuses to fetch a traced variable in full from a session, if the limit would be exceeded.

    Raises:
        SessionError: the limit of this process would be exceeded.
    """
    if initial_of(variable) is not None:
        _materialized.add(variable, _TRAINED, _EVALUATE_IN_FIT)


def take_values(variables: Mapping[str, Variable], values: Mapping[str, PortableValue]) -> None:
    """Assigns values to variables by name; values in files remain there."""
    for name, value in values.items():
        if name not in variables:
            continue
        if isinstance(value, InFile):
            note_file(variables[name], value)
        else:
            variables[name].assign(np.asarray(value))


def rows(variable: Any, first: int, count: int) -> Value:
    """Rows of a variable, without the others where its value is in files, or is its initial one.

    Args:
        variable: of Keras, or a tf.Variable.
        first: the first row.
        count: the number of rows.

    Returns:
        An array `[count, ...]`.

    Raises:
        SessionError: the full value would be needed for its rows, and exceeds the limit.
        CheckpointError: the value is in files that cannot be read here.
    """
    value = getattr(variable, "_value", variable)
    if (mirror := getattr(value, "_parallax_mirror", None)) is not None:
        mirrors, name = mirror
        mirrors.refresh_if_changed(name)
    source = source_of(value)
    if isinstance(source, InFile):
        return _read(source, first, count)
    if source is not None and (found := _compute_rows(source, first, count)) is not None:
        return found
    return np.asarray(value[first : first + count])


def _compute_rows(initial: ConcreteFunction, first: int, count: int) -> Value | None:
    """Rows of an initial value; None where they cannot be computed without the others."""
    [value] = initial.outputs
    graph_def = initial.graph.as_graph_def(add_shapes=True)
    made = range_of_rows(graph_def, value.name, int(value.shape[0]), first, count)
    if made is None:
        return None
    with tf.Graph().as_default():
        return run(tf.graph_util.import_graph_def(made[0], name="", return_elements=[made[1]])[0])


def _read(place: InFile, first: int, count: int) -> Array:
    """Rows of a value in a file."""
    bundle = Bundle(place.prefix)
    shape = bundle.tensors[place.key].shape
    return bundle.read(place.key, (first, *(0 for _ in shape[1:])), (count, *shape[1:]))


def _watch(variable: Variable) -> None:
    """Makes eager ops and functions, which bypass a variable's methods, find its value."""
    handle, reference = vars(variable)["_handle"], weakref.ref(variable)

    def before(_: bool) -> None:
        variable = reference()
        if variable is not None and not hasattr(variable, "_parallax_mirror"):
            materialize(variable)

    watch = HandleWatch(variable.name.split(":")[0], before, lambda: None)
    weakref.finalize(variable, watch_handle(handle, watch))
