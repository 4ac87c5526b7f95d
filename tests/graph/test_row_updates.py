"""Updates that rows get later are those that the dense computation makes: bit for bit, or within what a cut allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.graph.row_updates import row_update_ops
from tests.graph.row_programs import OPTIMIZERS, Optimizer

v1 = tf.compat.v1
ROWS, UPDATES, PAUSED = 48, 220, (5, 40)


def rate_of(t: int) -> float:
    """Warm-up from almost zero, a plateau, a drop, a rise."""
    return min(t, 40) / 40 * (0.01 if t < 130 else 0.0007 if t < 180 else 0.02)


class Both:
    """One table twice: updated by the ops, and by the dense computation."""

    def __init__(self, optimizer: Optimizer, first: np.ndarray, known: bool = False, ring: int = 16384) -> None:
        dtype = first.dtype.type
        self.optimizer, self.dtype, self.updates = optimizer, dtype, 0
        slots = [np.full_like(first, optimizer.first_slot)] * (optimizer.states - 1)
        self.lazy, self.dense = (
            [
                v1.get_variable(f"{name}{n}", initializer=value, use_resource=True)
                for n, value in enumerate([first, *slots])
            ]
            for name in ("lazy", "dense")
        )
        self.values = v1.placeholder(dtype, [None, *first.shape[1:]])
        self.ids = v1.placeholder(tf.int64, [None])
        self.scalars = v1.placeholder(dtype, [len(optimizer.scalars(1.0, 1))])
        handles = [variable.handle for variable in self.lazy]
        update = row_update_ops().parallax_update_rows(
            values=self.values,
            indices=tf.cast(self.ids, tf.int32 if dtype is np.float64 else tf.int64),
            scalars=self.scalars,
            states=handles,
            program=optimizer.program(dtype, known),
            ring=ring,
        )
        self.update = tf.group(update, self._dense_update())
        self.rows = row_update_ops().parallax_gather_rows(self.ids, handles, T=dtype)
        self.dense_rows = tf.gather(self.dense[0], self.ids)
        self.bring = row_update_ops().parallax_bring_up_to_date(states=handles, T=dtype)
        # What is compared is the arithmetic as written; a graph's optimizer reassociates products with constants.
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.session = v1.Session(config=config)
        self.session.run(v1.global_variables_initializer())

    def _dense_update(self) -> Any:
        gradient = tf.math.unsorted_segment_sum(self.values, self.ids, self.dense[0].shape[0])
        scalars = [self.scalars[n] for n in range(self.scalars.shape[0])]
        states = [variable.read_value() for variable in self.dense]
        made = self.optimizer.dense(gradient, states, scalars, lambda x: tf.constant(self.dtype(x)))
        with tf.control_dependencies([*made, *states]):
            return tf.group(*(variable.assign(value) for variable, value in zip(self.dense, made, strict=True)))

    def step(self, ids: Any, values: Any, rate: float) -> None:
        self.updates += 1
        scalars = self.optimizer.scalars(rate, self.updates)
        self.session.run(self.update, {self.ids: ids, self.values: values, self.scalars: scalars})

    def pause(self, updates: int, rate: float) -> None:
        nothing = np.zeros([0, *self.values.shape[1:]])
        for _ in range(updates):
            self.step([], nothing, rate)

    def looked_up(self, ids: Any) -> tuple[np.ndarray, np.ndarray]:
        return self.session.run((self.rows, self.dense_rows), {self.ids: ids})

    def states(self) -> list[tuple[np.ndarray, np.ndarray]]:
        self.session.run(self.bring)
        return list(zip(*self.session.run((self.lazy, self.dense)), strict=True))


@contextmanager
def both(*args: Any, **options: Any) -> Iterator[Both]:
    with tf.Graph().as_default():
        made = Both(*args, **options)
        with made.session:
            yield made


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes() or bool(np.all((a == b) & (np.signbit(a) == np.signbit(b)) | (a != a) & (b != b)))


def table(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(dtype)


def train(pair: Both, updates: int = UPDATES) -> None:
    """Zipf's ids, with equal ones, some batches empty, and some rows seen at the beginning and the end only."""
    rng = np.random.default_rng(2)
    for t in range(1, updates + 1):
        ids = (rng.zipf(1.3, 6 if t % 17 else 0) - 1) % ROWS
        if 20 < t < 190:
            ids = ids[(ids < PAUSED[0]) | (ids > PAUSED[1])]
        if t % 3 == 0:
            rows, dense_rows = pair.looked_up(ids)
            assert same_bits(rows, dense_rows), t
        pair.step(ids, rng.normal(size=(len(ids), *pair.values.shape[1:])), rate_of(t))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_have_the_bits_of_the_dense_computation(name: str) -> None:
    with both(OPTIMIZERS[name], table(1, ROWS, 3)) as pair:
        train(pair)
        assert [same_bits(*state) for state in pair.states()] == [True] * OPTIMIZERS[name].states


@pytest.mark.parametrize(
    ("shape", "dtype", "ring"),
    [
        ((ROWS,), np.float32, 16384),
        ((ROWS, 1), np.float32, 7),
        ((ROWS, 4, 8), np.float32, 64),
        ((ROWS, 70), np.float32, 65),
        ((ROWS, 5), np.float64, 1),
        ((ROWS, 20), np.float64, 130),
    ],
    ids=str,
)
def test_any_shape_type_and_ring_gives_the_same_bits(shape: tuple[int, ...], dtype: Any, ring: int) -> None:
    with both(OPTIMIZERS["adam"], table(3, *shape, dtype=dtype), ring=ring) as pair:
        train(pair)
        assert [same_bits(*state) for state in pair.states()] == [True] * 3


@pytest.mark.parametrize("name", [name for name, optimizer in OPTIMIZERS.items() if optimizer.known])
def test_a_cut_changes_no_bit_of_what_moves_and_rounds_what_decays(name: str) -> None:
    optimizer, pause = OPTIMIZERS[name], 700
    first = np.linspace(-0.1, 0.1, ROWS * 3).reshape(ROWS, 3).astype(np.float32)
    with both(optimizer, first, known=True) as pair:
        rng = np.random.default_rng(4)
        for _ in range(3):
            pair.step(range(ROWS), rng.normal(size=(ROWS, 3)), 0.01)
        pair.pause(pause, 0.01)
        states = pair.states()
    unmoved = "move s0 c:1" in optimizer.known or "decay s0 c:1" in optimizer.known
    for number, (lazy, dense) in enumerate(states):
        if number == 0 and unmoved:
            assert same_bits(lazy, dense)
        else:
            np.testing.assert_allclose(lazy, dense, rtol=pause * 2.0**-23, atol=2.0**-120)
    is_cut = name != "adam_forgetful"
    assert is_cut != all(same_bits(*state) for state in states)


def test_short_gaps_are_never_cut() -> None:
    with both(OPTIMIZERS["adadelta"], table(5, ROWS, 3), known=True) as pair:
        rng = np.random.default_rng(6)
        for t in range(60):
            ids = [row for row in range(ROWS) if row % 8 == t % 8]
            pair.step(ids, rng.normal(size=(len(ids), 3)), 0.5)
        assert [same_bits(*state) for state in pair.states()] == [True] * 3
