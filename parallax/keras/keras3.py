"""The parts specific to Keras 3: how its models are fitted, built and traced, and how its variables are identified."""

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
from parallax.functions.tracing.keras_steps import build_in_trace, record_optimizers, slot_name
from parallax.keras.epochs import NumberedEpochs, PeekedDataset, PeekedDatasets
from parallax.keras.progress import FitProgress
from parallax.keras.step_logs import LateLogs
from parallax.keras.traced_initializers import making_large

TRAINER: type[Any] = TensorFlowTrainer
MODEL: type[KerasModel] = keras.Model
INDEXED: type[Any] = keras.utils.PyDataset
CALLBACKS: ModuleType = keras.callbacks
CALLBACK_LIST: type[Any] = keras.callbacks.CallbackList
CALLBACK_LIST_IN_FIT = "keras.src.backend.tensorflow.trainer.callbacks_module.CallbackList"

unpacked = data_adapter_utils.unpack_x_y_sample_weight
validation_split = array_slicing.train_validation_split
weights_of_classes = data_adapter_utils.class_weight_to_sample_weights


def dataset_of(
    model: KerasModel, x: Nest, y: Nest, sample_weight: Nest, batch_size: int | None, class_weight: Argument
) -> Dataset:
    """The dataset that `fit` makes of its arguments."""
    options = {"class_weight": class_weight, "shuffle": False}
    adapter = get_data_adapter(x, y, sample_weight, batch_size=batch_size, steps_per_epoch=None, **options)
    return adapter.get_tf_dataset()


def begin(dataset: Dataset, batches: Dataset) -> PeekedDataset | None:
    """Reads the first of the batches that Keras makes of a dataset; `numbered_epochs` returns it again."""
    return PeekedDataset(dataset, batches)


def numbered_epochs(progress: FitProgress | None = None, begun: PeekedDatasets = ()) -> AbstractContextManager[object]:
    """A context in which `fit` iterates over row numbers without a dataset, and begins where its progress says."""
    made = partial(NumberedEpochs, progress=progress, begun=begun)
    return mock.patch("keras.src.backend.tensorflow.trainer.TFEpochIterator", made)


def check_resumable() -> None:
    """Raises where `fit` cannot resume within an epoch: it can."""


def converting_layers() -> AbstractContextManager[object]:
    """A context in which layers are called as `fit` calls them: unchanged, without AutoGraph."""
    return nullcontext()


def tracing(model: KerasModel, merges_rows: bool) -> AbstractContextManager[object]:
    """A context for the trace of a training step, whose optimizers see coalesced rows if requested."""
    return record_optimizers(merges_rows)


def check_compiled(model: KerasModel, call: str) -> None:
    """Raises Keras's own error where a model was not compiled."""
    model._assert_compile_called(call)


def compilation_of(model: KerasModel) -> object:
    """The object that `compile` has made of its arguments: a new one each time."""
    return getattr(model, "_compile_config", None)


def optimizer_variables(model: KerasModel) -> list[KerasVariable]:
    """The variables of a model's optimizers: the one passed to `compile`, if any, and others among its attributes."""
    owners = [getattr(model, "optimizer", None), *vars(model).values()]
    owners += [one for several in owners if isinstance(several, Mapping) for one in several.values()]
    owners += [one for several in owners if isinstance(several, list | tuple) for one in several]
    optimizers = {id(one): one for one in owners if isinstance(one, keras.optimizers.Optimizer)}
    return [variable for one in optimizers.values() for variable in one.variables]


def build_optimizer(model: KerasModel) -> None:
    """Builds the optimizer of a built model before Keras's own step is traced, so that one trace is enough.

    A model may be marked as built before its layers have variables; the trace then creates these, and the optimizer.
    """
    optimizer, has_own_step = getattr(model, "optimizer", None), type(model).train_step is not TRAINER.train_step
    is_built = all(layer.built for layer in model._flatten_layers())
    if is_built and optimizer is not None and not optimizer.built and not has_own_step:
        build_in_trace(optimizer, model.trainable_variables)


def slot_path(model: KerasModel, variable: KerasVariable) -> str:
    """The name of an optimizer's variable, below that of its own variable if it is a slot."""
    return slot_name(variable.path, model.trainable_variables)


def trace_large(limit: Callable[[], int]) -> None:
    """Creates variables of `limit()` bytes and more without a value, where their initializers can be traced."""
    original = Variable._initialize_with_initializer

    def initialize(self: KerasVariable, initializer: Callable[..., TensorLike]) -> None:
        with making_large(limit, self._shape, self._dtype):
            original(self, initializer)

    Variable._initialize_with_initializer = initialize


def value(variable: KerasVariable) -> tf.Variable:
    """The tf.Variable of a variable."""
    return variable._value


def path(variable: KerasVariable) -> str:
    """The name of a variable for its users."""
    return str(variable.path)


def steps_at_once(model: KerasModel) -> int:
    """The number of batches for each call of the train function by `fit`."""
    return int(model.steps_per_execution)


def has_trained(model: KerasModel, which: str) -> None:
    """Records that a step was run."""


def late_logs(names: Logs, compute: Callable[[], Logs]) -> Logs:
    """The result of a train function for `fit`, which reads it at the end of an epoch, and where a callback does."""
    return LateLogs(names, compute)


def tell_batch(
    callbacks: KerasCallbackList, hook: str, recipients: list[KerasCallback], batch: int, logs: Logs | None = None
) -> None:
    """Calls a hook between batches of those callbacks of a list that implement it."""
    names = dict.fromkeys([str(number) for number in range(len(logs or ()))])
    for callback in recipients:
        getattr(callback, hook)(batch, logs=LateLogs(names, partial(pythonify_logs, logs)))
