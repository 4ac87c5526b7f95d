"""What Keras 3 has of its own: how its models are fitted, built and traced, and its variables known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.core import Variable
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils, get_data_adapter
from keras.src.utils.python_utils import pythonify_logs

from parallax.base.types import (
    Argument,
    Dataset,
    KerasCallback,
    KerasCallbackList,
    KerasModel,
    KerasVariable,
    Logs,
    Nest,
    TensorLike,
)
from parallax.functions.tracing.keras_steps import optimizers_seen, slot_name
from parallax.keras.epochs import BegunDataset, BegunDatasets, NumberedEpochs
from parallax.keras.progress import FitProgress
from parallax.keras.step_logs import LateLogs
from parallax.keras.traced_initializers import making_large

TRAINER: type[Any] = TensorFlowTrainer
MODEL: type[KerasModel] = keras.Model
RNN: type[Any] = keras.layers.RNN
CALLBACKS: ModuleType = keras.callbacks
CALLBACK_LIST: type[Any] = keras.callbacks.CallbackList
CALLBACK_LIST_IN_FIT = "keras.src.backend.tensorflow.trainer.callbacks_module.CallbackList"

unpacked = data_adapter_utils.unpack_x_y_sample_weight
validation_split = array_slicing.train_validation_split
weights_of_classes = data_adapter_utils.class_weight_to_sample_weights


def dataset_of(x: Nest, y: Nest, sample_weight: Nest, batch_size: int | None, class_weight: Argument) -> Dataset:
    """The dataset that `fit` makes of its arguments."""
    options = {"class_weight": class_weight, "shuffle": False}
    adapter = get_data_adapter(x, y, sample_weight, batch_size=batch_size, steps_per_epoch=None, **options)
    return adapter.get_tf_dataset()


def begin(dataset: Dataset, batches: Dataset) -> BegunDataset | None:
    """Takes the first of the batches that Keras makes of a dataset, for `numbered_epochs` to give it again."""
    return BegunDataset(dataset, batches)


def numbered_epochs(progress: FitProgress | None = None, begun: BegunDatasets = ()) -> AbstractContextManager[object]:
    """Within it `fit` goes over row numbers without a dataset, and begins where its progress says."""
    made = partial(NumberedEpochs, progress=progress, begun=begun)
    return mock.patch("keras.src.backend.tensorflow.trainer.TFEpochIterator", made)


def check_resumable() -> None:
    """Raises where `fit` cannot go on within an epoch: it can."""


def converting_layers() -> AbstractContextManager[object]:
    """Within it layers are called as `fit` calls them: as they are written, without AutoGraph."""
    return nullcontext()


def tracing(model: KerasModel, merges_rows: bool) -> AbstractContextManager[object]:
    """Within it a training step is traced, whose optimizers see merged rows where that is wanted."""
    return optimizers_seen(merges_rows)


def check_compiled(model: KerasModel, call: str) -> None:
    """Raises Keras's own error where a model was not compiled."""
    model._assert_compile_called(call)


def compiled_loss(model: KerasModel) -> object:
    """What `compile` has made of a model's loss: another object each time."""
    return getattr(model, "_compile_loss", None)


def optimizer_variables(model: KerasModel) -> list[KerasVariable]:
    """The variables of a model's optimizers: that it was compiled with, if any, and others among its attributes."""
    held = [getattr(model, "optimizer", None), *vars(model).values()]
    held += [one for several in held if isinstance(several, Mapping) for one in several.values()]
    held += [one for several in held if isinstance(several, list | tuple) for one in several]
    optimizers = {id(one): one for one in held if isinstance(one, keras.optimizers.Optimizer)}
    return [variable for one in optimizers.values() for variable in one.variables]


def build_optimizer(model: KerasModel) -> None:
    """Builds the optimizer of a built model before Keras's own step is traced, so that one trace is enough."""
    optimizer, is_own = getattr(model, "optimizer", None), type(model).train_step is not TRAINER.train_step
    if model.built and optimizer is not None and not optimizer.built and not is_own:
        optimizer.build(model.trainable_variables)


def slot_path(model: KerasModel, variable: KerasVariable) -> str:
    """The name of an optimizer's variable, below that of its own where it is a slot."""
    return slot_name(variable.path, model.trainable_variables)


def trace_large(limit: Callable[[], int]) -> None:
    """Has variables of `limit()` bytes and more be made without a value, where their initializers can be traced."""
    own = Variable._initialize_with_initializer

    def initialize(self: KerasVariable, initializer: Callable[..., TensorLike]) -> None:
        with making_large(limit, self._shape, self._dtype):
            own(self, initializer)

    Variable._initialize_with_initializer = initialize


def value(variable: KerasVariable) -> tf.Variable:
    """The tf.Variable of a variable."""
    return variable._value


def path(variable: KerasVariable) -> str:
    """The name of a variable by which users know it."""
    return str(variable.path)


def steps_at_once(model: KerasModel) -> int:
    """Over how many batches `fit` wants one call of the train function to go."""
    return int(model.steps_per_execution)


def has_trained(model: KerasModel, which: str) -> None:
    """Takes in that a step was made."""


def late_logs(names: Logs, compute: Callable[[], Logs]) -> Logs:
    """What a train function gives `fit`, which looks at it at the end of an epoch, and where a callback does."""
    return LateLogs(names, compute)


def tell_batch(
    callbacks: KerasCallbackList, hook: str, told: list[KerasCallback], batch: int, logs: Logs | None = None
) -> None:
    """Calls a hook between batches of those callbacks of a list that have it."""
    names = dict.fromkeys([str(number) for number in range(len(logs or ()))])
    for callback in told:
        getattr(callback, hook)(batch, logs=LateLogs(names, partial(pythonify_logs, logs)))
