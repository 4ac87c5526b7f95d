"""Where the generators of random numbers stand from which a script's input draws: Python's, NumPy's and TensorFlow's.

Shuffles of one process go on from each other. So what was drawn on worker 0 (by a callback too) is drawn everywhere:
the other workers, later jobs and the launching process go on from its states.
"""

from __future__ import annotations

import random

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from parallax.types import RandomStates


def random_states() -> RandomStates:
    """The states of this process, which can be pickled; None for TensorFlow where nobody has seeded it."""
    eager = context.context()
    state = None if eager._seed is None else (eager._seed, eager._rng.getstate())  # of tf.data's shuffles too
    return random.getstate(), np.random.get_state(legacy=True), state


def take_random_states(states: RandomStates) -> None:
    """Goes on from the states of another process."""
    of_python, of_numpy, of_tensorflow = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_tensorflow is not None:
        eager, (seed, state) = context.context(), of_tensorflow
        if eager._seed != seed:
            tf.random.set_seed(seed)
        eager._rng.setstate(state)


def have_parted(before: RandomStates, after: RandomStates) -> bool:
    """Whether something was drawn or seeded between two looks."""
    (_, keys, *rest), (_, later, *later_rest) = before[1], after[1]
    is_numpy_alike = rest == later_rest and np.array_equal(keys, later)
    return not (is_numpy_alike and before[0] == after[0] and before[2] == after[2])
