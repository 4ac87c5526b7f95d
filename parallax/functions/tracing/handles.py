"""Observes the handles of variables: every op that the script runs eagerly and that reads a handle is seen.

A variable has dozens of methods, and TensorFlow hundreds of ops and functions that read or write it by its handle. All
of them reach the runtime through three entry points, so these are wrapped instead of any method. An op counts as a
write unless TensorFlow registers it as one that only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.auto_control_deps_utils import READ_ONLY_RESOURCE_INPUTS_ATTR as _READ_ONLY
from tensorflow.python.framework.auto_control_deps_utils import RESOURCE_READ_OPS

from parallax.base.errors import SessionError
from parallax.base.types import Argument, Handle, Nest

_LOOKS = ("VarIsInitializedOp", "DestroyResourceOp", "DisableCopyOnRead")
"""Ops that neither read nor write a value."""
_OVERWRITES = "AssignVariableOp"
_LATER = (
    "{op} would read {name} later, whenever its elements are made, but a variable that a step trains must be read "
    "when the script runs the op. Pass its current value, tf.constant(variable.numpy()), or read the variable in the "
    "step."
)


class HandleWatch(NamedTuple):
    """The callbacks for ops that read a variable's handle.

    Attributes:
        name: of the variable, for messages.
        before: called before an op, with whether the op overwrites the whole value without reading it.
        written: called after an op that may have written the variable.
    """

    name: str
    before: Callable[[bool], None]
    written: Callable[[], None]


_watches: dict[int, tuple[HandleWatch, ...]] = {}
"""Watches by the id of the tensor that is a variable's handle; the watcher keeps the variable alive."""


def watch_handle(handle: Handle, watch: HandleWatch) -> Callable[[], None]:
    """Starts to watch a handle.

    Args:
        handle: the tensor that is a variable's handle; it must live until the watch ends.
        watch: the callbacks.

    Returns:
        A function that ends the watch.
    """
    if not getattr(pywrap_tfe.TFE_Py_Execute, "_parallax", False):
        _watch_entries()
    key = id(handle)
    _watches[key] = (*_watches.get(key, ()), watch)

    def end() -> None:
        rest = tuple(one for one in _watches.pop(key, ()) if one is not watch)
        if rest:
            _watches[key] = rest

    return end


def _watch_entries() -> None:
    """Replaces the entry points by which Python runs ops and functions eagerly."""
    fast, plain, cancelable = (
        pywrap_tfe.TFE_Py_FastPathExecute,
        pywrap_tfe.TFE_Py_Execute,
        pywrap_tfe.TFE_Py_ExecuteCancelable,
    )

    def execute_fast(ctx: object, op: str, name: str | None, *arguments: Argument) -> Nest:
        return _run(op, arguments, lambda: fast(ctx, op, name, *arguments))

    def execute(ctx: object, device: str | None, op: str, inputs: Sequence[Argument], *rest: Argument) -> Nest:
        return _run(op, inputs, lambda: plain(ctx, device, op, inputs, *rest))

    def execute_cancelable(
        ctx: object, device: str | None, op: str, inputs: Sequence[Argument], *rest: Argument
    ) -> Nest:
        return _run(op, inputs, lambda: cancelable(ctx, device, op, inputs, *rest))

    execute._parallax = True  # type: ignore[attr-defined]
    pywrap_tfe.TFE_Py_FastPathExecute = execute_fast
    pywrap_tfe.TFE_Py_Execute = execute
    pywrap_tfe.TFE_Py_ExecuteCancelable = execute_cancelable


def _run(op: str | bytes, inputs: Sequence[Argument], execute: Callable[[], Nest]) -> Nest:
    watches = list(_watches_of(inputs)) if _watches else []
    if not watches or op in _LOOKS:
        return execute()
    name = tf.compat.as_str(op)
    for _, watch in watches:
        if _is_lazy(name):
            raise SessionError(_LATER.format(op=name, name=watch.name))
        watch.before(name == _OVERWRITES)
    result = execute()
    for place, watch in watches:
        if not is_read_only(name, place):
            watch.written()
    return result


def _watches_of(inputs: Sequence[Argument]) -> Iterator[tuple[int, HandleWatch]]:
    """(input number, watch) of each watched handle; an input may be a list of tensors."""
    for place, one in enumerate(inputs):
        for watch in _watches.get(id(one), ()):
            yield place, watch
        if type(one) in (list, tuple):
            yield from ((place, watch) for _, watch in _watches_of(one))


def is_read_only(op: str, place: int) -> bool:
    """Whether an op, or a function of the runtime, only reads the variable of its handle.

    Args:
        op: type of the op, or name of the function.
        place: the input number of the handle.
    """
    if op_def_registry.get(op) is not None:
        return op in RESOURCE_READ_OPS
    return place not in _written_by(op)


@cache
def _written_by(function: str) -> frozenset[int]:
    """The indices of a function's arguments that are inputs of ops in its body that may write a variable."""
    definition = context.context().get_function_def(function)
    places = {one.name: place for place, one in enumerate(definition.signature.input_arg)}
    written, read = [], RESOURCE_READ_OPS.union(_LOOKS)
    for node in definition.node_def:
        only_read = node.attr[_READ_ONLY].list.i if _READ_ONLY in node.attr else ()
        written += [
            places[one]
            for place, one in enumerate(node.input)
            if one in places and node.op not in read and place not in only_read
        ]
    return frozenset(written)


def _is_lazy(op: str) -> bool:
    """Whether an op creates a dataset, whose functions run later."""
    definition = op_def_registry.get(op)
    return definition is not None and [one.type for one in definition.output_arg] == [types_pb2.DT_VARIANT]
