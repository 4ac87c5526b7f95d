"""The list through which `fit` calls a model's callbacks, which run in the script's process as its own objects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

from parallax.base.types import Argument, KerasCallback, KerasCallbackList, KerasModel, Nest
from parallax.keras.libraries import library_of

_QUIET = ("ProgbarLogger", "History", "CSVLogger")
"""Callbacks that read only logs, so that no wait for workers is needed between batches."""
_HOOKS = (
    *("on_epoch_begin", "on_epoch_end", "on_train_begin", "on_train_end", "on_test_begin", "on_test_end"),
    *("on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin", "on_test_batch_end"),
)


def callback_list_for(model: KerasModel, within: Callable[..., AbstractContextManager[None]]) -> type:
    """The class of `keras.callbacks.CallbackList` through which `fit` calls callbacks.

    Args:
        model: the model that is trained.
        within: returns the context of a hook, by its name and arguments; not for hooks between batches.
    """
    library = library_of(model)
    kind, known = library.CALLBACK_LIST, library.CALLBACKS

    def init(self: KerasCallbackList, callbacks: Nest = None, *args: Argument, **kwargs: Argument) -> None:
        kind.__init__(self, callbacks, *args, **kwargs)
        # No callback runs during training: it would read the values of another step.
        self._async_train = self._async_test = self._async_predict = False
        between = [name for name in _HOOKS if "batch" in name]
        self._parallax_told = {
            name: [one for one in self.callbacks if _overrides_hook(one, name, known)]
            for name in between
            if not _is_loud(self.callbacks, name, known)
        }

    hooks = {name: _hook(name, library.tell_batch, within) for name in _HOOKS}
    return type("DrivenCallbackList", (kind,), {"__init__": init, **hooks})


def _is_loud(callbacks: list[KerasCallback], hook: str, known: ModuleType) -> bool:
    """Whether a callback that may read the model, or make a decision, implements a hook."""
    quiet = tuple(getattr(known, name) for name in _QUIET)
    return any(not isinstance(one, quiet) and _overrides_hook(one, hook, known) for one in callbacks)


def _overrides_hook(callback: KerasCallback, hook: str, known: ModuleType) -> bool:
    """Whether a callback implements a hook."""
    generic = hook.replace("train_", "") if hook.startswith("on_train_batch") else hook
    methods = [getattr(type(callback), name, None) for name in {hook, generic}]
    ours = [getattr(known.Callback, name, None) for name in {hook, generic}]
    return any(mine is not None and mine not in ours for mine in methods) or bool(
        {hook, generic} & vars(callback).keys()
    )


def _hook(
    name: str, tell_batch: Callable[..., None], within: Callable[..., AbstractContextManager[None]]
) -> Callable[..., None]:
    def between(self: KerasCallbackList, *args: Argument, **kwargs: Argument) -> None:
        if name in self._parallax_told:
            tell_batch(self, name, self._parallax_told[name], *args, **kwargs)
        else:
            getattr(super(type(self), self), name)(*args, **kwargs)

    def around(self: KerasCallbackList, *args: Argument, **kwargs: Argument) -> None:
        with within(name, *args):
            getattr(super(type(self), self), name)(*args, **kwargs)

    return between if "batch" in name else around
