"""What a call of `fit` gives the process that launched it, and how a worker of a later call takes it over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from parallax.errors import SessionError
from parallax.functions.traced import InFile, portable_values, take_values
from parallax.keras.fitting import FitCall
from parallax.keras.libraries import library_of
from parallax.keras.randomness import random_states, take_random_states
from parallax.keras.steps import variables_of
from parallax.logger import log
from parallax.report.text import bytes_text
from parallax.types import Argument, KerasCallback, KerasHistory, KerasModel, Picklable, PortableValue

_UNKNOWN = (
    "Workers run the script anew, and the model of an earlier call of `fit` has no variable {name!r} here, which "
    "it has in the launching process. Build the same models in the same order in all processes."
)
_FORGOTTEN = (
    "What the models of this script had after their first calls of `fit` is more than {limit} "
    "(TableConfig.whole_bytes), and the workers of later calls are not told it: data that the script computes of them "
    "would differ there, and be refused."
)


def state_of(fit: FitCall) -> dict[str, PortableValue]:
    """The values of a model's variables by name, in the launching process; see `portable_values`."""
    return portable_values({one.name: one.variable for one in fit.graph.taken()})


def take_state(fit: FitCall, values: dict[str, PortableValue]) -> None:
    """Gives a model's variables values by name."""
    take_values({one.name: one.variable for one in fit.graph.variables}, values)


def result_of(fit: FitCall, history: KerasHistory, values: dict[str, PortableValue]) -> dict[str, Picklable]:
    """What the launching process is given of a call of `fit`: plain values and arrays."""
    return {
        "history": {name: list(numbers) for name, numbers in history.history.items()},
        "epoch": list(history.epoch),
        "params": dict(history.params),
        "callbacks": [_plain_attributes(one) for one in _callbacks_in(fit.arguments)],
        "random": random_states(),
        "values": values,
    }


def forget_values(results: Sequence[dict[str, Picklable]], most_bytes: int) -> None:
    """Leaves out of the results of calls the values of the earliest ones, so that workers are not sent too much.

    What the script has computed of such values and gives to a later call is compared with the launching process's.

    Args:
        results: of `result_of`, in order.
        most_bytes: how much all values may have.
    """
    left = most_bytes
    for result in reversed(results):
        left -= sum(value.nbytes for value in result["values"].values() if not isinstance(value, InFile))
        if left < 0 and result["values"]:
            result["values"] = {}
            log.info(_FORGOTTEN.format(limit=bytes_text(most_bytes)))


def replay(
    model: KerasModel,
    result: dict[str, Picklable],
    arguments: Mapping[str, Argument],
    read: Callable[[], FitCall],
) -> KerasHistory:
    """A call of `fit` that an earlier job has carried out: the model, its optimizer and its metrics are as after it.

    Args:
        model: the model.
        result: of `result_of`.
        arguments: of the call by name.
        read: reads the call, which makes what the model has no variables for yet.

    Returns:
        What `fit` returned.

    Raises:
        SessionError: the model has not the variables that it has in the launching process.
    """
    values = result["values"]
    variables = {one.name: one.variable for one in variables_of(model)} if model.built else {}
    if not values.keys() <= variables.keys():
        variables = {one.name: one.variable for one in read().graph.variables}
    if unknown := [name for name in values if name not in variables]:
        raise SessionError(_UNKNOWN.format(name=unknown[0]))
    take_values(variables, values)
    return history_of(model, result, arguments)


def history_of(
    model: KerasModel, result: dict[str, Picklable], arguments: Mapping[str, Argument] | None = None
) -> KerasHistory:
    """What `fit` returns, in a process that did not train, and whose random numbers go on from there.

    Args:
        model: the model.
        result: of `result_of`.
        arguments: of the call; its callbacks get what those of worker 0 had at the end.
    """
    for callback, values in zip(_callbacks_in(arguments or {}), result["callbacks"], strict=False):
        vars(callback).update(values)
    take_random_states(result["random"])
    history = library_of(model).CALLBACKS.History()
    history.set_model(model)
    history.set_params(result["params"])
    history.history, history.epoch = result["history"], result["epoch"]
    model.history = history
    return history


def has_backup(arguments: Mapping[str, Argument]) -> bool:
    """Whether a call of `fit` goes on where an earlier one that failed has left its last epoch."""
    kinds = (kind.__name__ for one in _callbacks_in(arguments) for kind in type(one).__mro__)
    return "BackupAndRestore" in kinds


def _callbacks_in(arguments: Mapping[str, Argument]) -> list[KerasCallback]:
    return [one for one in tf.nest.flatten(arguments.get("callbacks") or []) if one is not None]


def _plain_attributes(callback: KerasCallback) -> dict[str, object]:
    """What a callback knows that is made of numbers, texts and arrays."""
    return {name: value for name, value in vars(callback).items() if not name.startswith("_") and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic)
