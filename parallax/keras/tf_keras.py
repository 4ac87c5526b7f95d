"""The parts specific to tf_keras, the Keras before version 3; the names are those of keras3.py.

Its optimizers, including the legacy ones, coalesce equal rows of sparse gradients themselves. Its metrics keep the
methods that they were created with, so each marks the values that Means receive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.core.converter import ConversionOptions
from tf_keras.src.engine import base_layer_utils, data_adapter
from tf_keras.src.optimizers.optimizer import Optimizer

from parallax.base.errors import ConfigError
from parallax.base.types import (
    Argument,
    Dataset,
    DType,
    KerasCallback,
    KerasCallbackList,
    KerasModel,
    KerasOptimizer,
    Logs,
    Nest,
    Tensor,
    TensorLike,
    TensorShape,
    Variable,
)
from parallax.functions.tracing.layer_marks import mark_layers
from parallax.keras.epochs import PeekedDataset, PeekedDatasets
from parallax.keras.progress import FitProgress
from parallax.keras.traced_initializers import making_large

TRAINER: type[Any] = tf_keras.Model
MODEL: type[KerasModel] = tf_keras.Model
INDEXED: tuple[type[Any], ...] = ()
CALLBACKS: ModuleType = tf_keras.callbacks
CALLBACK_LIST: type[Any] = tf_keras.callbacks.CallbackList
CALLBACK_LIST_IN_FIT = "tf_keras.src.engine.training.callbacks_module.CallbackList"

unpacked = data_adapter.unpack_x_y_sample_weight
validation_split = data_adapter.train_validation_split


def weights_of_classes(y: TensorLike, class_weight: Argument) -> Tensor:
    """The weight of each example."""
    _, _, weights = data_adapter._make_class_weight_map_fn(class_weight)(None, tf.convert_to_tensor(y))
    return weights


def dataset_of(
    model: KerasModel, x: Nest, y: Nest, sample_weight: Nest, batch_size: int | None, class_weight: Argument
) -> Dataset:
    """The dataset that `fit` makes of its arguments; a batch of a generator builds the model, if it is not built."""
    options = {"class_weight": class_weight, "shuffle": False, "model": model}
    if isinstance(x, tf.data.Dataset):
        options["steps_per_epoch"] = 1  # else one without an end is refused; nothing is read of it here
    handler = data_adapter.get_data_handler(x, y, sample_weight=sample_weight, batch_size=batch_size, **options)
    return handler._dataset


def begin(dataset: Dataset, batches: Dataset) -> PeekedDataset | None:
    """None: the iterator over the batches is created anyway."""
    return None


def numbered_epochs(progress: FitProgress | None = None, begun: PeekedDatasets = ()) -> AbstractContextManager[object]:
    """A context in which `fit` iterates over row numbers as it does over any arrays."""
    return nullcontext()


def check_resumable() -> None:
    """Raises where `fit` cannot resume within an epoch.

    Raises:
        ConfigError: always; the epochs of tf_keras cannot begin in the middle.
    """
    raise ConfigError(
        "CheckPointConfig supports only Keras 3: the `fit` of a tf_keras model cannot resume within an epoch. Pass "
        "tf_keras.callbacks.BackupAndRestore to `fit`, and remove ckpt_config."
    )


@contextmanager
def converting_layers() -> Iterator[None]:
    """A context in which AutoGraph converts the `call` of the user's own layers, as in the functions of tf_keras."""
    with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED, ConversionOptions(recursive=True)):
        yield


def tracing(model: KerasModel, merges_rows: bool) -> AbstractContextManager[object]:
    """Within it a training step is traced, and what its layers return is marked."""
    marked: AbstractContextManager[object] = mark_layers(tf_keras.layers.Layer)
    return marked


def check_compiled(model: KerasModel, call: str) -> None:
    """Raises Keras's own error where a model was not compiled."""
    model._assert_compile_was_called()


def optimizer_variables(model: KerasModel) -> list[Variable]:
    """The variables of a model's optimizer."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def build_optimizer(model: KerasModel) -> None:
    """Creates nothing before the trace: the step creates the optimizer's slots, and is then traced again."""


def slot_path(model: KerasModel, variable: Variable) -> str:
    """The name of an optimizer's variable, which contains that of its own variable if it is a slot."""
    return path(variable)


def trace_large(limit: Callable[[], int]) -> None:
    """Creates variables of `limit()` bytes and more without a value, where their initializers can be traced."""
    of_layer, of_optimizer = base_layer_utils.make_variable, Optimizer.add_variable_from_reference

    def make_variable(
        name: str | None,
        shape: TensorShape | None = None,
        dtype: DType = tf.float32,
        *args: Argument,
        **kwargs: Argument,
    ) -> Variable:
        known = shape if shape is not None and tf.TensorShape(shape).is_fully_defined() else None
        with making_large(limit, known, dtype or tf.float32):
            return of_layer(name, shape, dtype, *args, **kwargs)

    def add_slot(
        self: KerasOptimizer,
        model_variable: Variable,
        variable_name: str,
        shape: TensorShape | None = None,
        initial_value: TensorLike | None = None,
    ) -> Variable:
        if initial_value is not None or shape is not None or not model_variable.shape.is_fully_defined():
            return of_optimizer(self, model_variable, variable_name, shape, initial_value)
        shape, dtype = model_variable.shape, getattr(model_variable, "true_dtype", model_variable.dtype)
        with making_large(limit, shape, dtype):
            return of_optimizer(self, model_variable, variable_name, None, lambda: tf.zeros(shape, dtype))

    base_layer_utils.make_variable, Optimizer.add_variable_from_reference = make_variable, add_slot


def value(variable: Variable) -> Variable:
    """The tf.Variable of a variable: itself."""
    return variable


def path(variable: Variable) -> str:
    """The name of a variable for its users."""
    return str(variable.name).split(":")[0]


def steps_at_once(model: KerasModel) -> int:
    """The number of batches for each call of the train function by `fit`."""
    return 1 if model._steps_per_execution is None else int(model._steps_per_execution.numpy())


def has_trained(model: KerasModel, which: str) -> None:
    """Counts a step, as the functions created by tf_keras do."""
    (model._train_counter if which == "train" else model._test_counter).assign_add(1)


def late_logs(names: Logs, compute: Callable[[], Logs]) -> Logs:
    """The result of a train function for `fit`, which reads it after every batch."""
    return compute()


def tell_batch(
    callbacks: KerasCallbackList, hook: str, recipients: list[KerasCallback], batch: int, logs: Logs | None = None
) -> None:
    """Calls a hook between batches of a list of callbacks, which knows which of them implement it."""
    getattr(super(type(callbacks), callbacks), hook)(batch, logs)
