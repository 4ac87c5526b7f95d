"""The entry point for Keras scripts: `use` selects the hosts, and the `fit` of every model trains on them."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from parallax.base.after_import import after_import
from parallax.base.errors import GraphError, ParallaxError
from parallax.base.status_line import show_status, status_line
from parallax.base.types import Argument, KerasHistory, KerasModel, Nest
from parallax.entry import call as calls
from parallax.functions.remote.driven_workers import leave_gpus_to_workers, reserved_workers, start_workers
from parallax.functions.tracing.batch_norm_setting import statistics_of
from parallax.functions.tracing.traced_values import limit_materialized
from parallax.functions.variables import check_folder
from parallax.keras import keras3
from parallax.keras.evaluation import LastFit, run_call, trace_call
from parallax.keras.fitting import FitCall, read_fit, restore_state, run_fit
from parallax.keras.libraries import library_of, tf_keras
from parallax.keras.train_function import training_of
from parallax.keras.train_on_batch import prepare_model
from parallax.report.logger import log
from parallax.runtime.launcher.restarts.waiting_job import end_waiting_job
from parallax.settings import checks
from parallax.settings.config import Config
from parallax.settings.environment import Role, is_commanded, settings
from parallax.settings.merge import merge_settings
from parallax.settings.parts import CheckPointConfig, TableConfig

_Found = TypeVar("_Found")


@dataclass
class _Use:
    """The script's settings.

    Attributes:
        is_wanted: whether jobs train models.
        resource_info: a resource file; None for workers on this host.
        config: settings.
        merge_rows: whether optimizers see equal rows of a sparse gradient summed.
        has_started: whether workers were started for a future `fit`.
        has_left_gpus: whether workers have GPUs that this process leaves to them.
        last_fit: of this script.
    """

    is_wanted: bool = False
    resource_info: str | Path | None = None
    config: Config = field(default_factory=Config)
    merge_rows: bool = False
    has_started: bool = False
    has_left_gpus: bool = False
    last_fit: LastFit | None = None


_use = _Use()


def use(
    resource_info: str | Path | None = None, parallax_config: Config | None = None, *, merge_rows: bool = False
) -> None:
    """Selects the hosts on which models are trained from now on.

    Args:
        resource_info: a resource file; None for workers on this host.
        parallax_config: settings.
        merge_rows: whether optimizers see equal rows of a sparse gradient summed, so that results equal those for a
            dense gradient; without it the results are those of plain Keras.

    Raises:
        ConfigError: a setting has the wrong type.
    """
    config = checks.instance_of("parallax_config", parallax_config, Config)
    merge_rows = checks.truth("merge_rows", merge_rows)
    _use.is_wanted, _use.resource_info, _use.config, _use.merge_rows = True, resource_info, config, merge_rows
    _start_early()


def close() -> None:
    """Ends the workers that wait for the next `fit`; without it they end with the script, or after a while."""
    _use.last_fit = None
    end_waiting_job()


def call(
    function: Callable[[], _Found],
    resource_info: str | Path | None = None,
    parallax_config: Config | None = None,
    *,
    merge_rows: bool = False,
) -> _Found:
    """Calls a function that creates a model and its data and trains it, also from a notebook.

    During the call, models are trained as after `use` with these arguments.

    Args:
        function: has no arguments.
        resource_info: a resource file; None for workers on this host.
        parallax_config: settings.
        merge_rows: as in `use`.

    Returns:
        The result of the function.
    """
    before = dict(vars(_use))
    try:
        use(resource_info, parallax_config, merge_rows=merge_rows)
        return function()
    finally:
        vars(_use).update(before)


def install() -> None:
    """Makes the `fit` of every Keras model check whether it trains by a job; a second call has no effect."""
    if getattr(keras3.TRAINER.fit, "_parallax", False):
        return
    _install(keras3)
    _wrap(keras3.TRAINER, "evaluate", functools.partial(_look, "test"))
    _wrap(keras3.TRAINER, "predict", functools.partial(_look, "predict"))
    if is_commanded() and settings().role == Role.LAUNCH:
        _use.has_left_gpus = leave_gpus_to_workers()
    after_import("tf_keras", lambda: _install(tf_keras()))


def _install(library: ModuleType) -> None:
    _wrap(library.TRAINER, "fit", _fit)
    _wrap(library.TRAINER, "train_on_batch", _train_on_batch)
    library.trace_large(lambda: _tables().traced_bytes)
    limit_materialized(_whole_bytes)


def _wrap(kind: type, name: str, replacement: Callable[..., object]) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def wrapper(self: KerasModel, *args: Argument, **kwargs: Argument) -> object:
        return replacement(original, self, *args, **kwargs)

    wrapper._parallax = True  # type: ignore[attr-defined]
    setattr(kind, name, wrapper)


def _tables() -> TableConfig:
    """The settings of the script or the command line for large variables."""
    return merge_settings(_use.config, settings()).tables


def _whole_bytes() -> float:
    """The limit in bytes of traced variables that a process materializes."""
    return _tables().whole_bytes if _is_on() else math.inf


def _is_on() -> bool:
    return _use.is_wanted or is_commanded()


def _start_early() -> None:
    """Starts workers once, for a future `fit`, if its requirements are already known."""
    if _use.has_started or not _is_on() or settings().role != Role.LAUNCH:
        return
    _use.has_started = True
    _use.has_left_gpus |= leave_gpus_to_workers(_use.config, _use.resource_info)
    with suppress(ParallaxError):  # which `fit` raises
        start_workers(calls.upcoming_call(), _use.config, _use.resource_info)


def _fit(original: Callable[..., KerasHistory], model: KerasModel, *args: Argument, **kwargs: Argument) -> KerasHistory:
    if not _is_on():
        return original(model, *args, **kwargs)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
    number = calls.next_call()
    launches = calls.is_launching()
    with (
        status_line(launches and arguments.get("verbose") != 0),
        reserved_workers(number, _use.config, _use.resource_info) if launches else nullcontext() as workers,
    ):
        show_status("tracing the steps of fit")  # workers start concurrently
        fit = _read(model, arguments)
        if workers is None:
            calls.perform_here(number, fit.graph.graph, _config_of(number), _use.resource_info)
        check_folder({one.name: one.variable for one in fit.graph.list_variables()}, _tables())
        with workers.session(fit.graph, fit.steps, _config_of(number)) as steps:
            history, values = run_fit(fit, functools.partial(original, model), steps, _tables())
            restore_state(fit, values)  # the model has them, whatever happens at the end of the session
    if library_of(model) is keras3:
        number_of_workers = calls.count_workers(_use.config, _use.resource_info)
        _use.last_fit = LastFit.of(fit, number_of_workers, steps.examples_per_s, _tables())
    return history


def _look(which: str, original: Callable[..., Nest], model: KerasModel, *args: Argument, **kwargs: Argument) -> Nest:
    """`evaluate` or `predict`: on workers, if that pays off and their step can be in a graph."""
    last = _use.last_fit
    if last is None or not _is_on() or training_of(model) is not None or not last.is_of(model):
        return original(model, *args, **kwargs)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
    arguments.update(arguments.pop("kwargs", {}))
    if not last.is_for_workers(which, arguments, _use.has_left_gpus):
        return original(model, *args, **kwargs)
    with status_line(arguments.get("verbose") != 0):
        show_status("tracing the step")
        try:
            look = trace_call(model, which, arguments, last)
        except (GraphError, TypeError, ValueError) as error:  # the script's own errors are raised again here
            log.info(f"{original.__name__} runs in this process alone: {error}")
            return original(model, **arguments)
        config = replace(_use.config, ckpt_config=CheckPointConfig(), hooks=(), chief_only_hooks=())
        with (
            reserved_workers(calls.upcoming_call(), _use.config, _use.resource_info) as reserved,
            reserved.session(look.call.graph, look.call.steps, config) as running,
        ):
            _use.last_fit = last.after(look.call)
            return run_call(look, functools.partial(original, model), running)


def _read(model: KerasModel, arguments: dict[str, Argument]) -> FitCall:
    parts = calls.count_batch_parts(_use.config, _use.resource_info)
    last, has_checkpoints = _use.last_fit, _use.config.ckpt_config.keeps_state
    before = last.call if last is not None and last.is_of(model) else None
    with statistics_of(_use.config.batch_norm):
        return read_fit(model, arguments, parts, _use.merge_rows, has_checkpoints, before)


def _config_of(number: int) -> Config:
    """The settings of a call: checkpoints of a script's later calls are in separate folders."""
    saved = _use.config.ckpt_config
    if number == 1 or saved.ckpt_dir is None:
        return _use.config
    return replace(_use.config, ckpt_config=replace(saved, ckpt_dir=Path(saved.ckpt_dir) / f"fit-{number}"))


def _train_on_batch(original: Callable[..., Nest], model: KerasModel, *args: Argument, **kwargs: Argument) -> Nest:
    if _is_on():
        arguments = inspect.signature(original).bind(model, *args, **kwargs).arguments
        prepare_model(model, arguments, _use.config, _use.resource_info, _use.merge_rows)
    return original(model, *args, **kwargs)
