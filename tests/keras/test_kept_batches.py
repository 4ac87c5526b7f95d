"""Fits on two workers whose updates take two batches (accumulate_steps): plain Keras on batches twice as long."""

import functools

import keras
import numpy as np
import pytest

from parallax import Config
from parallax.analysis.stages import analyse, plan_for
from parallax.plans.plan import Layout
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.test_layouts import IDS, MOST, Y, dense, in_batch_softmax, normalized, positions
from tests.keras.test_layouts import X as FEATURES
from tests.keras.two_here import fit_by, read

KEPT = {"accumulate_steps": 2}


def fitted(model, optimizer, x, batch_size, **options):
    def make(train):
        made = model()
        made.compile(optimizer(0.1), "mse", metrics=["mae"])
        options.update(batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
        return made, train(made, x, Y[: len(x)], **options).history

    return make


@pytest.mark.rotates
@pytest.mark.parametrize("servers, run_option", [(0, None), (2, "PS")])
@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
@pytest.mark.parametrize("model, x", [(functools.partial(dense, 1), FEATURES), (positions, IDS)])
def test_an_update_of_two_batches_is_that_of_both_joined(model, x, optimizer, servers, run_option):
    """22 examples: the fourth update of an epoch takes a batch of 4 and one of 2, and these in unequal shares."""
    plain = outcome(fit_plainly, fitted(model, optimizer, x, 8))
    options = dict(settings=KEPT, servers=servers, run_option=run_option)
    found = outcome(functools.partial(fit_by, 2), fitted(model, optimizer, x, 4, **options))
    assert max(difference(found[name], plain[name]) for name in plain) <= MOST


@pytest.mark.parametrize(
    "model, loss, told",
    [(dense, "mse", ""), (dense, in_batch_softmax, "MatMul"), (normalized, "mse", "SquaredDifference")],
)
def test_the_plan_says_what_is_of_each_batch(model, loss, told):
    made = model()
    made.compile("sgd", loss)
    analysed = analyse(read(made, FEATURES, Y, batch_size=4).graph.graph)
    notes = plan_for(analysed, Layout((2,)), Config(**KEPT)).notes
    assert [note.split()[0] for note in notes if "one of an update's 2 batches at a time" in note] == told.split()


def test_an_update_may_take_batches_of_two_epochs():
    """Three batches an epoch: the second update takes the last batch of one epoch and the first of the next."""

    def plainly(train):
        model = dense(1)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        for part in np.r_[0:12, 0:12].reshape(3, 8):
            train(model, FEATURES[part], Y[part], batch_size=8, verbose=0)
        return model, None

    kept = fitted(functools.partial(dense, 1), keras.optimizers.SGD, FEATURES[:12], 4, settings=KEPT)
    found, plain = outcome(functools.partial(fit_by, 2), kept), outcome(fit_plainly, plainly)
    assert difference(found["weights"], plain["weights"]) <= MOST
