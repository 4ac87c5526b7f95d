"""Callbacks run on worker 0 alone, as one process would run them; what they decide reaches all workers.

While worker 0 runs callbacks the others wait and serve: they bring rows of a variable that a callback reads, and take
part in an evaluation that a callback asks for. At the end of each hook worker 0 tells what came of it: variables that
were written, metrics that were reset, whether training stops, at which epoch it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Protocol

from parallax.keras.libraries import library_of
from parallax.types import Argument, KerasCallback, KerasCallbackList, KerasModel, Nest, Picklable

_QUIET = ("ProgbarLogger", "History", "CSVLogger")
"""They look at logs alone, so between batches nobody waits for them."""
_DECISIONS = ("stop_training", "stop_evaluating", "stop_predicting", "_initial_epoch")
_HOOKS = (
    *("on_epoch_begin", "on_epoch_end", "on_train_begin", "on_train_end", "on_test_begin", "on_test_end"),
    *("on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin", "on_test_batch_end"),
)


class Conductor(Protocol):
    """What callbacks need of training on several workers."""

    rank: int
    is_leading: bool

    def lead(self) -> AbstractContextManager[object]:
        """A context in which worker 0 acts alone; the others are in `follow`."""

    def follow(self) -> None:
        """Serves worker 0 until it says that it goes on."""

    def agree(self, what: Picklable) -> Picklable:
        """Worker 0's value, on all workers."""

    def within(self, hook: str, *args: Argument) -> AbstractContextManager[None]:
        """What surrounds a hook, on every worker."""


def callback_list_for(model: KerasModel, conductor: Conductor) -> type:
    """The class of `keras.callbacks.CallbackList` by which `fit` calls callbacks on this worker.

    Args:
        model: the model that is trained; decisions are its attributes.
        conductor: of this worker.
    """
    library = library_of(model)
    kind = library.CALLBACK_LIST
    if conductor.rank:
        return type(
            "FollowingCallbackList", (kind,), {"__init__": _follows(kind, conductor), **_hooks(model, conductor)}
        )
    return type(
        "LeadingCallbackList",
        (kind,),
        {"__init__": _leads(kind, conductor, library.CALLBACKS), **_hooks(model, conductor)},
    )


def decisions_of(model: KerasModel) -> dict[str, object]:
    """What callbacks decide by setting the model's attributes."""
    return {name: getattr(model, name, None) for name in _DECISIONS}


def _leads(kind: type, conductor: Conductor, known: ModuleType) -> Callable[..., None]:
    def init(self: KerasCallbackList, callbacks: Nest = None, *args: Argument, **kwargs: Argument) -> None:
        kind.__init__(self, callbacks, *args, **kwargs)  # type: ignore[misc]
        _wait_for_each(self)
        self._parallax_told = {
            name: [one for one in self.callbacks if _has_own(one, name, known)] for name in _HOOKS if "batch" in name
        }
        if conductor.is_leading:  # a callback evaluates: the others only serve
            self._parallax_hooks = ()
            return
        loud = [name for name in _HOOKS if "batch" not in name or _is_loud(self.callbacks, name, known)]
        self._parallax_hooks = conductor.agree(loud)

    return init


def _follows(kind: type, conductor: Conductor) -> Callable[..., None]:
    def init(self: KerasCallbackList, callbacks: Nest = None, *args: Argument, **kwargs: Argument) -> None:
        kwargs.update(add_progbar=False)
        kind.__init__(self, None, *args, **kwargs)  # type: ignore[misc]
        _wait_for_each(self)
        self._parallax_hooks = conductor.agree(None)

    return init


def _wait_for_each(callbacks: KerasCallbackList) -> None:
    """No callback runs beside training: what it reads would be of another step."""
    callbacks._async_train = callbacks._async_test = callbacks._async_predict = False


def _is_loud(callbacks: list[KerasCallback], hook: str, known: ModuleType) -> bool:
    """Whether a callback that may look at the model, or decide something, has a hook of its own."""
    quiet = tuple(getattr(known, name) for name in _QUIET)
    return any(not isinstance(one, quiet) and _has_own(one, hook, known) for one in callbacks)


def _has_own(callback: KerasCallback, hook: str, known: ModuleType) -> bool:
    """Whether a callback has a hook of its own."""
    generic = hook.replace("train_", "") if hook.startswith("on_train_batch") else hook
    own = [getattr(type(callback), name, None) for name in {hook, generic}]
    ours = [getattr(known.Callback, name, None) for name in {hook, generic}]
    return any(mine is not None and mine not in ours for mine in own) or bool({hook, generic} & vars(callback).keys())


def _hooks(model: KerasModel, conductor: Conductor) -> dict[str, Callable[..., None]]:
    return {name: _hook(name, model, conductor) for name in _HOOKS}


def _hook(name: str, model: KerasModel, conductor: Conductor) -> Callable[..., None]:
    tell_batch = library_of(model).tell_batch

    def hook(self: KerasCallbackList, *args: Argument, **kwargs: Argument) -> None:
        with conductor.within(name, *args):
            call(self, *args, **kwargs)

    def call(self: KerasCallbackList, *args: Argument, **kwargs: Argument) -> None:
        original = getattr(super(type(self), self), name)
        if name not in self._parallax_hooks:
            if conductor.rank == 0 and "batch" in name:
                tell_batch(self, name, self._parallax_told[name], *args, **kwargs)
            elif conductor.rank == 0:
                original(*args, **kwargs)
            return
        if conductor.rank:
            conductor.follow()
            return
        with conductor.lead():
            original(*args, **kwargs)

    return call if "batch" in name else hook
