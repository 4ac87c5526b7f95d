"""Keeps the script's own variables consistent with those that a session trains.

Training happens in a session's graph; a script that reads `variable.numpy()` or assigns a value refers to the trained
variable. A mirrored variable fetches its value when it is first read after a step, and records writes, so that the next
step begins with the written value. Ops and functions that the script runs eagerly are observed through the handles that
they read (tracing/handles.py), whichever method or library runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import tensorflow as tf

from parallax.base.errors import SessionError
from parallax.base.types import Argument, Handle, TensorLike, Value, Variable
from parallax.functions.tracing.handles import HandleWatch, watch_handle
from parallax.functions.tracing.traced_values import check_materialized, handle_of, source_of

_IS_TRAINED = (
    "{name} is being trained by a `fit` that has not ended, and only one call at a time may train a variable: one of "
    "its callbacks calls fit, train_on_batch or a step of parallax.function on the same variables. Make that call "
    "after `fit`, or move the step into the model's train_step."
)


class Mirrors:
    """Variables of the script by name.

    Attributes:
        stale: names of variables whose value is older than the session's.
        written: names of variables that were written after the session last had their value.
    """

    def __init__(self, variables: Iterable[tuple[str, Variable]], fetch: Callable[[str], Value]) -> None:
        """Starts mirroring.

        Args:
            variables: (name, tf.Variable) pairs.
            fetch: returns the session's value by name, an array.

        Raises:
            SessionError: another session trains one of them.
        """
        self._variables = dict(variables)
        for name, variable in self._variables.items():
            if hasattr(variable, "_parallax_mirror"):
                raise SessionError(_IS_TRAINED.format(name=name))
        self._fetch = fetch
        self._quiet: set[str] = set()
        self.stale = {name for name, variable in self._variables.items() if source_of(variable) is not None}
        self._changed: set[str] = set()
        self.written: set[str] = set()
        self._watches = [self._watch(name, variable) for name, variable in self._variables.items()]
        for name, variable in self._variables.items():
            variable._parallax_mirror = (self, name)
            kind: Any = type(variable)
            variable.__class__ = _make_mirror_class(kind)

    def variable(self, name: str) -> Variable:
        """The tf.Variable of a name."""
        return self._variables[name]

    def invalidate(self, names: Iterable[str]) -> None:
        """Marks values as changed by the session."""
        outdated = set(names)
        self.stale |= outdated
        self._changed |= outdated

    def refresh(self, name: str) -> None:
        """Updates a variable from the session, if its value is older."""
        if name in self.stale:
            check_materialized(self._variables[name])
            self.stale.discard(name)
            self.put(name, self._fetch(name))

    def refresh_if_changed(self, name: str) -> None:
        """Updates a variable from the session, if a step may have changed it since."""
        if name in self._changed:
            self.refresh(name)

    def refresh_all(self) -> None:
        """Updates all variables from the session."""
        for name in self._variables:
            self.refresh(name)

    def put(self, name: str, value: Value) -> None:
        """Assigns a value to a variable that the session has too."""
        with self.pause_watch(name):
            self._variables[name].assign(value)
        self.stale.discard(name)
        self._changed.discard(name)

    @contextmanager
    def pause_watch(self, name: str) -> Iterator[None]:
        """A context in which reads of a variable do not refresh it and writes are not recorded."""
        is_first = name not in self._quiet
        self._quiet.add(name)
        try:
            yield
        finally:
            if is_first:
                self._quiet.discard(name)

    def release(self) -> None:
        """Ends mirroring; variables keep their current values."""
        for end in self._watches:
            end()
        for variable in self._variables.values():
            variable.__class__ = type(variable).__mro__[2]
            del variable._parallax_mirror

    def note_written(self, name: str) -> None:
        """Records that the script has written a variable, whose current value is now here."""
        if name not in self._quiet:
            self.stale.discard(name)
            self._changed.discard(name)
            self.written.add(name)

    def _watch(self, name: str, variable: Variable) -> Callable[[], None]:
        def before(overwrites: bool) -> None:
            if not overwrites:
                self._is_read(name)

        return watch_handle(handle_of(variable), HandleWatch(name, before, partial(self.note_written, name)))

    def _is_read(self, name: str) -> None:
        if name not in self._quiet and tf.executing_eagerly():
            self.refresh(name)


class _MirroredVariable:
    """A mixin placed before the class of a mirrored variable.

    Every eager read of a variable goes through its handle: its own methods, and ops that are passed the variable, whose
    value the runtime reads without calling a method.
    """

    _parallax_mirror: tuple[Mirrors, str]

    @property
    def _handle(self) -> Handle:
        mirrors, name = self._parallax_mirror
        mirrors._is_read(name)
        return vars(self)["_handle"]

    @_handle.setter
    def _handle(self, handle: Handle) -> None:
        vars(self)["_handle"] = handle


def _assign(self: Variable, value: TensorLike, *args: Argument, **kwargs: Argument) -> object:
    """Assigns as for any variable; the session's value is not fetched for it."""
    mirrors, name = self._parallax_mirror
    assign = super(type(self), self).assign
    if not tf.executing_eagerly() or name in mirrors._quiet:
        return assign(value, *args, **kwargs)
    value = tf.convert_to_tensor(value, self.dtype)  # which may read this variable
    with mirrors.pause_watch(name):
        result = assign(value, *args, **kwargs)
    mirrors.note_written(name)
    return result


@cache
def _make_mirror_class(kind: type[Variable]) -> type:
    """Creates a class of mirrored variables, whose mixin precedes their own class in the method resolution order."""
    return type(f"Mirrored{kind.__name__}", (_MirroredVariable, kind), {"assign": _assign})
