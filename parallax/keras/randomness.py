"""Where the generators of random numbers stand from which a script draws: Python's, NumPy's and TensorFlow's."""

from __future__ import annotations

import random

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from parallax.types import RandomStates


def random_states() -> RandomStates:
    """The states now; None for TensorFlow where nobody has seeded it."""
    eager = context.context()
    state = None if eager._seed is None else (eager._seed, eager._rng.getstate())  # of tf.data's shuffles too
    return random.getstate(), np.random.get_state(legacy=True), state


def take_random_states(states: RandomStates) -> None:
    """Goes on from earlier states."""
    of_python, of_numpy, of_tensorflow = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_tensorflow is not None:
        eager, (seed, state) = context.context(), of_tensorflow
        if eager._seed != seed:
            tf.random.set_seed(seed)
        eager._rng.setstate(state)
