"""The script's own variables, kept in agreement with those that a session trains.

Training happens in a session's graph; whoever reads `variable.numpy()` or assigns a value in the script means what is
trained. A mirrored variable fetches its value when it is read for the first time after a step, and remembers that it
was written, so that the next step begins with what was written. Ops traced into functions read a variable by its
handle: call `refresh_all` before one runs, or have all calls watched (called_functions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import tensorflow as tf

from parallax.functions.traced import check_whole, handle_of, source_of
from parallax.types import Argument, Handle, Value, Variable

_WRITES = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_nd_update", "scatter_sub", "scatter_update")


class Mirrors:
    """Variables of the script by name.

    Attributes:
        stale: names of variables whose value is older than the session's.
        written: names of variables that were written since the session had their value.
    """

    def __init__(self, variables: Iterable[tuple[str, Variable]], fetch: Callable[[str], Value]) -> None:
        """Begins to mirror.

        Args:
            variables: (name, tf.Variable) pairs.
            fetch: gives the session's value by name, an array.
        """
        self._variables = dict(variables)
        self._fetch = fetch
        self._is_quiet = False
        self.stale = {name for name, variable in self._variables.items() if source_of(variable) is not None}
        self.written: set[str] = set()
        self._name_by_handle = {id(handle_of(variable)): name for name, variable in self._variables.items()}
        for name, variable in self._variables.items():
            variable._parallax_mirror = (self, name)
            kind: Any = type(variable)
            variable.__class__ = _mirrored(kind)

    def variable(self, name: str) -> Variable:
        """The tf.Variable of a name."""
        return self._variables[name]

    def outdate(self, names: Iterable[str]) -> None:
        """Says that the session has other values now."""
        self.stale.update(names)

    def refresh(self, name: str) -> None:
        """Gives a variable the session's value, if it has an older one."""
        if name in self.stale:
            check_whole(self._variables[name])
            self.stale.discard(name)
            self.put(name, self._fetch(name))

    def refresh_all(self) -> None:
        """Gives all variables the session's values."""
        for name in self._variables:
            self.refresh(name)

    def put(self, name: str, value: Value) -> None:
        """Gives a variable a value that the session has too."""
        was, self._is_quiet = self._is_quiet, True
        try:
            self._variables[name].assign(value)
        finally:
            self._is_quiet = was
        self.stale.discard(name)

    def name_by_handle(self) -> dict[int, str]:
        """The names of the variables, by the id of the tensor that is their handle."""
        return self._name_by_handle

    def note_written(self, names: Iterable[str]) -> None:
        """Says that variables were written past their methods."""
        for name in names:
            self._is_written(name)

    def release(self) -> None:
        """Ends mirroring; variables keep the values that they have."""
        for variable in self._variables.values():
            variable.__class__ = type(variable).__mro__[2]
            del variable._parallax_mirror

    def _is_written(self, name: str) -> None:
        if not self._is_quiet and tf.executing_eagerly():
            self.stale.discard(name)
            self.written.add(name)

    def _is_read(self, name: str) -> None:
        if not self._is_quiet and tf.executing_eagerly():
            self.refresh(name)


class _Mirrored:
    """What is put before the class of a mirrored variable.

    Whatever reads a variable eagerly asks it for its handle: its own methods, and ops that are given the variable,
    which the runtime reads without calling one.
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


def _writing(method: str) -> Callable[..., object]:
    def write(self: Variable, *args: Argument, **kwargs: Argument) -> object:
        mirrors, name = self._parallax_mirror
        if method != "assign":
            mirrors._is_read(name)
        mirrors._is_written(name)
        return getattr(super(type(self), self), method)(*args, **kwargs)

    return write


@cache
def _mirrored(kind: type[Variable]) -> type:
    """A class of mirrored variables, which come before their own class in the order of methods."""
    return type(f"Mirrored{kind.__name__}", (_Mirrored, kind), {method: _writing(method) for method in _WRITES})
