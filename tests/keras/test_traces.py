"""When a model's step is traced, and what it has then: as in plain Keras, also where layers are built in the trace."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by

pytestmark = pytest.mark.rotates(days=3)

layers, ops = keras.layers, keras.ops
ROWS = 37
X, Y = (np.random.RandomState(seed).randn(ROWS, width).astype(np.float32) for seed, width in ((1, 6), (2, 3)))


class Scaled(keras.Model):
    """Its step multiplies the loss by a Python number."""

    scale = 1.0

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.scale * tf.reduce_mean(tf.square(self(data[0]) - data[1]))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


def dense_model(kind: Any = keras.Model) -> Any:
    inputs = keras.Input((6,))
    return kind(inputs, layers.Dense(3)(layers.Dense(5, "tanh")(inputs)))


def change_a_number(model: Any) -> None:
    model.scale = 3.0


def freeze_a_layer(model: Any) -> None:
    model.layers[1].trainable = False


def freeze_and_compile(model: Any) -> None:
    freeze_a_layer(model)
    model.compile(keras.optimizers.Adam(0.02))


@pytest.mark.parametrize("kind", [Scaled, keras.Model])
@pytest.mark.parametrize("change", [change_a_number, freeze_a_layer, freeze_and_compile])
def test_a_second_fit_has_the_step_of_the_first_unless_it_was_compiled_again(kind: Any, change: Any) -> None:
    def script(fit: Any) -> Any:
        model = dense_model(kind)
        model.compile("sgd", None if kind is Scaled else "mse")
        logs = []
        for batch_size in (8, 10):
            logs.append(fit(model, X, Y, batch_size=batch_size, shuffle=False, verbose=0).history)
            change(model)
            if change is freeze_and_compile and kind is not Scaled:
                model.compile(keras.optimizers.Adam(0.02), "mae")
        return model, logs

    assert difference(outcome(functools.partial(fit_by, 2), script), outcome(fit_plainly, script)) < 1e-5


@pytest.mark.parametrize("sizes", [(8, 8), (8, 12)])
def test_a_step_is_traced_again_for_batches_of_another_declared_length(sizes: Any) -> None:
    def script(fit: Any) -> Any:
        model, logs = dense_model(Scaled), []
        model.compile("sgd")
        for batch_size in sizes:
            batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size, drop_remainder=True)
            logs.append(fit(model, batches, verbose=0).history)
            change_a_number(model)
        return model, logs

    assert difference(outcome(functools.partial(fit_by, 2), script), outcome(fit_plainly, script)) < 1e-5


class BuiltByName(keras.Model):
    """`build` marks the model as built; its layers have no variables yet."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [layers.Dense(4, "relu"), layers.Dense(3)]

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x * self.scale


class HeadInTraining(BuiltByName):
    """A call without training builds only the first layer."""

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.blocks[0](x)
        return self.blocks[1](x) * self.scale if training else x[:, :3]


@pytest.mark.parametrize("kind", [BuiltByName, HeadInTraining])
def test_layers_get_their_variables_in_the_trace(kind: Any) -> None:
    def script(fit: Any) -> Any:
        model = kind()
        model.build((None, 6))
        if kind is HeadInTraining:
            model(X[:2])
        model.compile("adam", "mse")
        return model, fit(model, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 2), script), outcome(fit_plainly, script)) < 1e-5


class Lookahead(keras.optimizers.SGD):
    """Its `build` assigns to slots, which Keras's `fit` discards: TensorFlow runs the second trace of a step."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        if not hasattr(self, "slow"):
            self.slow = [self.add_variable_from_reference(one, "slow") for one in variables]
            for slow, variable in zip(self.slow, variables, strict=True):
                slow.assign(variable)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        slow = self.slow[self._get_variable_index(variable)]
        slow.assign(slow + 0.5 * (variable - slow))
        variable.assign(slow)


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@pytest.mark.parametrize("make_optimizer", [Lookahead, keras.optimizers.ScheduleFreeAdamW])
@pytest.mark.parametrize("kind", [keras.Model, OwnStep])
def test_values_that_an_optimizer_assigns_as_it_is_built_are_those_of_keras(kind: Any, make_optimizer: Any) -> None:
    def script(fit: Any) -> Any:
        model = dense_model(kind)
        model.compile(make_optimizer(0.05), "mse")
        return model, fit(model, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 2), script), outcome(fit_plainly, script)) < 1e-5


DRAWS = {
    "normal": lambda x: x + keras.random.normal(ops.shape(x), seed=5),
    "a column": lambda x: x * keras.random.uniform((ops.shape(x)[0], 1), seed=5),
    "dropout": lambda x: keras.random.dropout(x, 0.3, seed=5),
    "shuffle": lambda x: x + keras.random.shuffle(x, seed=5),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_a_constant_seed_draws_what_one_process_draws(draw: str) -> None:
    def script(fit: Any) -> Any:
        model = keras.Sequential([keras.Input((6,)), layers.Lambda(DRAWS[draw]), layers.Dense(3)])
        model.compile("sgd", "mse")
        return model, fit(model, X, Y, batch_size=8, shuffle=False, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 3), script), outcome(fit_plainly, script)) < 1e-5
