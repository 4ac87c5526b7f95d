"""What is cut of the updates that a row has missed is nothing that shows, whatever the numbers and the schedule."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.row_programs import OPTIMIZERS
from tests.graph.test_row_updates import both, same_bits

WEIGHTS = [0, -0.0, 1e-44, 1e-38, -1e-30, 1e-20, 1e-9, 0.05, 1, -3e4, 1e30, np.inf, np.nan]
GRADIENTS = [0, 1e-44, 1e-38, -1e-30, 1e-22, 1e-19, 1e-10, -1e-3, 1, 1e6, 1e18, 1e30, np.inf, np.nan]
SCHEDULES = {
    "even": lambda t: 0.01,
    "much more after a pause": lambda t: 1e-4 if t < 330 else 0.1,
    "none for a while": lambda t: 0.01 if t < 6 or t > 200 else 0.0,
    "none for some updates, then more": lambda t: 0.01 if t < 6 else 0.1 if t > 30 else 0.0,
    "almost none at first": lambda t: 1e-20 if t < 300 else 1.0,
    "up and down": lambda t: 10.0 ** -(t % 7),
    "none": lambda t: 0.0,
}


def _all_pairs(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):
        weights, gradients = np.meshgrid(np.array(WEIGHTS, dtype), np.array(GRADIENTS, dtype))
    return weights.ravel(), gradients.ravel()


def _pause(name: str, schedule: str, updates: int, known: bool = True, dtype: type = np.float32, width: int = 1):
    """States after one update with each gradient on each weight, and then `updates` without."""
    weights, gradients = (np.repeat(x[:, None], width, 1) for x in _all_pairs(dtype))
    rate = SCHEDULES[schedule]
    with np.errstate(all="ignore"), both(OPTIMIZERS[name], weights, known=known) as pair:
        pair.step(range(len(weights)), gradients, rate(1))
        for t in range(updates):
            pair.pause(1, rate(t + 2))
        return pair.states()


def _close(lazy: np.ndarray, dense: np.ndarray, updates: int) -> bool:
    digits = np.finfo(dense.dtype).nmant
    # Where (0 - m) * 0.001 is rounded to zero, the dense computation leaves m as it is.
    stays = np.finfo(dense.dtype).smallest_normal / 0.001
    with np.errstate(all="ignore"):
        near = np.abs(lazy - dense) <= updates * 2.0**-digits * np.abs(dense) + stays
    return bool(np.all(near | (lazy == dense) | (lazy != lazy) & (dense != dense)))


HARD = ("much more after a pause", "none for a while", "none for some updates, then more", "up and down")
OTHERS = ("momentum", "amsgrad", "adamax", "nadam", "adam_forgetful", "adam_unguarded")


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "schedule"),
    [*(("adam", schedule) for schedule in SCHEDULES), *((name, schedule) for name in OTHERS for schedule in HARD)],
)
def test_no_schedule_and_no_number_makes_a_cut_show(name: str, schedule: str) -> None:
    states = _pause(name, schedule, 500)
    assert [_close(*state, 500) for state in states] == [True] * len(states)
    # Without a rate nothing moves, so it is cut at once; a rate that comes again then finds rounded slots.
    assert same_bits(*states[0]) or (name, schedule) == ("adam_forgetful", "none for a while")


@pytest.mark.parametrize("updates", [1, 8, 9, 16, 17, 63, 64, 65, 129, 1100])
def test_a_cut_may_be_anywhere(updates: int) -> None:
    states = _pause("adam", "up and down", updates)
    assert same_bits(*states[0])
    assert [_close(*state, updates) for state in states] == [True] * 3


def test_what_shrinks_by_itself_is_cut_within_the_rounding() -> None:
    states = _pause("adamw", "up and down", 500)
    assert [_close(*state, 500) for state in states] == [True] * 3


def test_doubles_are_cut_where_doubles_no_longer_change() -> None:
    states = _pause("adam", "much more after a pause", 800, dtype=np.float64)
    assert same_bits(*states[0])
    assert [_close(*state, 800) for state in states] == [True] * 3


@pytest.mark.parametrize("name", ["adam", "rmsprop", "lion", "ftrl", "adadelta"])
def test_without_known_decays_special_numbers_are_computed_as_they_are(name: str) -> None:
    assert [same_bits(*state) for state in _pause(name, "even", 60, known=False)] == [True] * OPTIMIZERS[name].states
