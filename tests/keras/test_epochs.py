"""A `fit` that goes on within an epoch: it is given the batches that are left, of the same shuffles and draws."""

import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.keras.epochs import NumberedEpochs
from parallax.keras.inputs import ROW_NUMBERS
from parallax.keras.progress import FitProgress, ResumedEpoch

DATA = np.arange(30, dtype="int32")
EPOCHS, FIRST_EPOCH, FIRST_BATCH = 4, 2, 3


def drawn():
    random = np.random.RandomState(1)
    while True:
        yield (random.randint(0, 30, 8),)


class Reordered(keras.utils.PyDataset):
    """Batches whose order is drawn after each epoch."""

    def __init__(self):
        super().__init__()
        self.order, self.random = np.arange(4), np.random.RandomState(1)

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return (DATA[8 * self.order[number] : 8 * self.order[number] + 8],)

    def on_epoch_end(self):
        self.random.shuffle(self.order)


def dataset():
    return tf.data.Dataset.from_tensor_slices((DATA,))


KINDS = {
    "row numbers": lambda: {"x": {ROW_NUMBERS: DATA}, "batch_size": 8, "shuffle": True},
    "arrays": lambda: {"x": DATA, "batch_size": 8, "shuffle": True},
    "arrays in order": lambda: {"x": DATA, "batch_size": 8},
    "batches of arrays": lambda: {"x": DATA, "batch_size": 8, "shuffle": "batch"},
    "dataset": lambda: {"x": dataset().shuffle(30).batch(8)},
    "unknown length": lambda: {"x": dataset().filter(lambda one: one != 7).shuffle(30).batch(8)},
    "without an end": lambda: {"x": dataset().shuffle(30).batch(8).repeat(), "steps_per_epoch": 4},
    "generator": lambda: {"x": drawn(), "steps_per_epoch": 4},
    "PyDataset": lambda: {"x": Reordered()},
}

ALIKE = ("row numbers", "arrays", "arrays in order", "batches of arrays")
"""With a seed, Keras draws one order of arrays for all epochs."""


def progress(running=None, **attributes):
    class Model:
        _initial_epoch = None

    made = FitProgress(Model(), running, 0, EPOCHS)
    vars(made).update(attributes)
    return made


def batches_of(kind, at_once=1, first_epoch=0, first_batch=0):
    """(epoch, number of the first batch, batch) of what `fit` gives its training function."""
    keras.utils.set_random_seed(3)
    made = progress(skipped_epochs=first_epoch, skipped_batches=first_batch)
    strategy = tf.distribute.get_strategy()
    epochs = NumberedEpochs(strategy, progress=made, steps_per_execution=at_once, **KINDS[kind]())
    epochs.reset()
    found = []
    for epoch in range(first_epoch, EPOCHS):
        with epochs.catch_stop_iteration():
            for first, _, iterator in epochs:
                taken = [next(iterator), *itertools.islice(iterator, at_once - 1)]
                found += [(epoch, first, np.asarray(*tf.nest.flatten(batch)).tolist()) for batch in taken]
    return found


@pytest.mark.rotates
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_batches_that_are_left_are_those_that_would_have_come(kind, at_once):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        everything = batches_of(kind, at_once)
        left = batches_of(kind, at_once, FIRST_EPOCH, FIRST_BATCH)
    batches = [batch for *_, batch in everything]
    assert len(batches) == 16 and (batches[:4] != batches[4:8]) == (kind not in ALIKE), everything
    assert [batch for *_, batch in left] == batches[FIRST_EPOCH * 4 + FIRST_BATCH :]
    if at_once == 1:
        assert [place for *place, _ in left] == [place for *place, _ in everything[FIRST_EPOCH * 4 + FIRST_BATCH :]]


class Running:
    """In the place of a worker's steps: what is noted can be read."""

    rank = 0

    def __init__(self, resumed_step=None, noted=(0, 0, -1)):
        self.resumed_step, self.steps, self.noted = resumed_step, resumed_step or 0, noted

    def read_epoch(self):
        return self.noted

    def note_epoch(self, epoch, step, batches):
        self.noted = epoch, step, -1 if batches is None else batches


def begun(resumed_step, noted, callback=lambda model: None):
    made = progress(Running(resumed_step, noted))
    with made.within("on_train_begin"):
        callback(made.model)
    return made.model._initial_epoch, made.skipped_epochs, made.skipped_batches


@pytest.mark.parametrize(
    ("resumed_step", "noted", "expected"),
    [
        (None, (0, 0, -1), (None, 0, 0)),
        (9, (2, 8, 4), (2, 2, 1)),
        (9, (2, 8, -1), (2, 2, 1)),
        (12, (2, 8, 4), (3, 3, 0)),
        (16, (3, 12, 4), (4, 4, 0)),
    ],
)
def test_a_fit_begins_after_the_batches_of_its_checkpoint(resumed_step, noted, expected):
    assert begun(resumed_step, noted) == expected


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_callback_that_restores_a_backup_says_where_fit_begins(epoch):
    def restore(model):
        assert isinstance(model._initial_epoch, ResumedEpoch)
        model._initial_epoch = epoch

    assert begun(9, (2, 8, 4), restore) == (epoch, 0, 0)


def test_the_length_of_an_epoch_that_nobody_knows_beforehand_is_that_of_the_last():
    running = Running()
    made = progress(running)
    for epoch, length in enumerate([4, 3]):
        with made.within("on_epoch_begin", epoch):
            pass
        assert running.noted == (epoch, 4 * epoch, 4 if epoch else -1)
        running.steps += length
        with made.within("on_epoch_end", epoch):
            pass
    assert running.noted == (2, 7, 3)
