"""A recurrent cell for `tf.compat.v1.nn.dynamic_rnn`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


class Cell:
    """A cell with a state `[batch, 4]`, which scales its inputs `[batch, 4]`."""

    state_size = output_size = 4

    def __init__(self, scale: Any = 1.0) -> None:
        self.scale = scale

    def zero_state(self, batch: Any, dtype: Any) -> Any:
        return tf.zeros([batch, 4], dtype)

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> Any:
        return tf.zeros([batch_size, 4], dtype)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
        state = tf.tanh(inputs * self.scale + state @ v1.get_variable("recurrent", [4, 4]))
        state.set_shape([inputs.shape[0], 4])
        return state, state
