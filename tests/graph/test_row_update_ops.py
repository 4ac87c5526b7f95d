"""The ops of rows that are updated later: what they share, what they refuse, and what they leave alone."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import TransformError
from parallax.graph.row_updates import ROW_UPDATE_OPS, row_update_ops
from tests.graph.row_programs import OPTIMIZERS
from tests.graph.test_row_updates import Both, both, same_bits, table

v1 = tf.compat.v1
ADAM = OPTIMIZERS["adam"]


def test_a_library_that_is_not_built_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(TransformError, match="libparallax_rows.so, which does not exist. Build it: `parallax setup`"):
        row_update_ops.__wrapped__()


def test_the_ops_are_those_that_are_named() -> None:
    registered = {name for name in dir(row_update_ops()) if name.startswith("Parallax")}
    assert registered >= {*ROW_UPDATE_OPS}


def test_equal_ids_are_one_row_with_the_sum_of_their_values() -> None:
    with both(ADAM, table(1, 6, 2)) as pair:
        pair.step([3, 1, 3, 3], [[1, 2], [5, 5], [1e-9, -3], [-1, 1]], 0.01)
        pair.pause(3, 0.01)
        assert all(same_bits(*state) for state in pair.states())


def test_ids_of_a_lookup_may_have_any_shape() -> None:
    with both(ADAM, table(2, 6, 2)) as pair:
        pair.step([0, 5], np.ones([2, 2]), 0.01)
        pair.pause(5, 0.01)
        handles = [variable.handle for variable in pair.lazy]
        found = row_update_ops().parallax_gather_rows([[[5, 4], [5, 0]]], handles, T=tf.float32)
        assert found.shape == [1, 2, 2, 2]
        assert same_bits(pair.session.run(found)[0, 1], pair.session.run(pair.dense[0])[[5, 0]])


def test_what_has_been_read_stays_as_it_was() -> None:
    with both(ADAM, table(3, 6, 2)) as pair:
        read = pair.lazy[0].read_value()
        with tf.control_dependencies([read]):  # the read may share the variable's memory
            update = row_update_ops().parallax_update_rows(
                pair.values, pair.ids, pair.scalars, [v.handle for v in pair.lazy], program=ADAM.program(np.float32)
            )
        with tf.control_dependencies([update]):
            before = tf.identity(read)
        fed = {pair.ids: range(6), pair.values: np.ones([6, 2]), pair.scalars: [0.5]}
        assert same_bits(pair.session.run(before, fed), table(3, 6, 2))
        assert not same_bits(pair.session.run(pair.lazy[0]), table(3, 6, 2))


def test_threads_that_look_up_and_update_at_once_lose_no_update() -> None:
    rows, steps = 3000, 30
    with both(OPTIMIZERS["weight_decay"], np.ones([rows, 4], np.float32)) as pair:
        handles = [variable.handle for variable in pair.lazy]
        update = row_update_ops().parallax_update_rows(
            pair.values,
            pair.ids,
            pair.scalars,
            handles,
            program=OPTIMIZERS["weight_decay"].program(np.float32),
            ring=16384,
        )
        # Powers of a half are exact, so the order of updates does not matter to the decay.
        fed = {pair.ids: range(0, rows, 3), pair.values: np.zeros([rows // 3, 4]), pair.scalars: [0.5]}

        def work(seed: int) -> None:
            for step in range(steps):
                found = pair.session.run(pair.rows, {pair.ids: np.random.default_rng(seed).integers(rows, size=200)})
                assert np.all(np.log2(found) % 1 == 0)
                if step % 3 == 0:
                    pair.session.run(update, fed)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        pair.session.run(pair.bring)
        assert np.all(pair.session.run(pair.lazy[0]) == 0.5 ** (4 * steps / 3))


def test_a_table_is_as_it_is_before_its_first_update() -> None:
    with both(ADAM, table(4, 6, 2)) as pair:
        pair.session.run(pair.bring)
        assert same_bits(*pair.looked_up([5, 0, 5]))


def test_a_table_that_is_initialized_again_misses_nothing() -> None:
    with both(OPTIMIZERS["weight_decay"], table(5, 6, 2)) as pair:
        pair.pause(20, 0.5)
        pair.session.run(tf.raw_ops.DestroyResourceOp(resource=pair.lazy[0].handle, ignore_lookup_error=False))
        pair.session.run(pair.bring)
        pair.session.run(pair.lazy[0].initializer)
        assert same_bits(pair.states()[0][0], table(5, 6, 2))


def test_updates_become_others_when_no_row_is_behind() -> None:
    with both(ADAM, table(9, 6, 2)) as pair:
        pair.step([1], np.ones([1, 2]), 0.01)
        pair.session.run(pair.bring)
        other = OPTIMIZERS["amsgrad"].program(np.float32).replace("states 4", "states 3").replace("max s3", "max r6")
        other = other.replace("set s3 r7", "")
        pair.session.run(_update(pair, [0], np.ones([1, 2]), other), {pair.scalars: [0.01]})
        with pytest.raises(tf.errors.FailedPreconditionError, match="updated by another one"):
            pair.step([1], np.ones([1, 2]), 0.01)


@pytest.mark.parametrize("id_", [-1, 6])
def test_ids_that_are_no_rows_are_refused_before_anything_is_written(id_: int) -> None:
    with both(ADAM, table(6, 6, 2)) as pair:
        pair.step([1], np.ones([1, 2]), 0.01)
        error = rf"indices\[1\] = {id_} is not in \[0, 6\)"
        update = _update(pair, [0, id_], np.ones([2, 2]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=error):
            pair.session.run(update, {pair.scalars: [0.01]})
        with pytest.raises(tf.errors.InvalidArgumentError, match=error):
            pair.session.run(pair.rows, {pair.ids: [0, id_]})
        assert all(same_bits(*state) for state in pair.states())


def _update(pair: Both, ids: Any, values: Any, program: str = ADAM.program(np.float32)) -> Any:
    return row_update_ops().parallax_update_rows(
        tf.constant(values, tf.float32),
        tf.constant(ids, tf.int64),
        pair.scalars,
        [variable.handle for variable in pair.lazy],
        program=program,
    )


def test_what_does_not_fit_is_refused() -> None:
    with both(ADAM, table(7, 6, 2)) as pair:
        pair.step([1], np.ones([1, 2]), 0.01)
        refused = {
            r"shape of as many rows as there are indices, \[2,2\], and these are \[2,3\]": _update(
                pair, [0, 1], np.ones([2, 3])
            ),
            "All updates of a table run one program, and lazy0 has been updated by another one": _update(
                pair, [0], np.ones([1, 2]), ADAM.program(np.float32, known=True)
            ),
            "has as many states as the op, and has 1 where the op has 3": _update(
                pair, [0], np.ones([1, 2]), OPTIMIZERS["weight_decay"].program(np.float32)
            ),
        }
        for error, update in refused.items():
            with pytest.raises(tf.errors.OpError, match=error):
                pair.session.run(update, {pair.scalars: [0.01]})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Scalars are \[1\], as the program says"):
            two = row_update_ops().parallax_update_rows(
                np.ones([1, 2], np.float32),
                [0],
                [0.1, 0.1],
                [variable.handle for variable in pair.lazy],
                program=ADAM.program(np.float32),
            )
            pair.session.run(two)


def test_what_is_not_initialized_is_refused_as_tensorflow_does() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        handles = [v1.get_variable(f"v{n}", [4, 2], use_resource=True).handle for n in range(2)]
        program = OPTIMIZERS["momentum"].program(np.float32)
        ops = row_update_ops()
        update = ops.parallax_update_rows(tf.ones([1, 2]), [0], [0.1], handles, program=program)
        for op in (update, ops.parallax_gather_rows([0], handles, T=tf.float32)):
            with pytest.raises((tf.errors.NotFoundError, tf.errors.FailedPreconditionError), match="v0"):
                session.run(op)
        session.run(ops.parallax_bring_up_to_date(handles, T=tf.float32))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("r1 = add s0 s0", "registers are written once, in order, and the next is r0"),
        ("r0 = plus s0 s0", "there is no operation `plus`"),
        ("r0 = add s0", "`add` takes 2 operands"),
        ("r0 = add s0 s1", "`s1` is none of the 1 states"),
        ("r0 = add s0 h1", "`h1` is none of the 1 scalars"),
        ("r0 = add s0 r0", "`r0` is none of the 0 registers written so far"),
        ("r0 = add s0 c:1x", "`c:1x` is no number in C's notation"),
        ("r0 = add s0 g1", "`g1` is none of the 1 gradients"),
        ("r0 = add s0 x", "an operand is sI, g, gI, hI, rI or c:NUMBER, and not `x`"),
        ("set s0", "`set` takes a state and an operand"),
        ("decay s0 s0", "the factor of `decay` or `move` depends on no state"),
        ("move s0 c:1 c:1 s0:1", "a leaf is a state or scalar with its lowest and highest power, like s1:-0.5:1"),
        ("states 1", "`states` and `scalars` are told once"),
        ("hello", "a line is `rI = OP operands`"),
    ],
)
def test_an_error_in_a_program_names_the_line_and_the_rule(line: str, rule: str) -> None:
    with both(OPTIMIZERS["weight_decay"], table(8, 2, 2)) as pair:
        update = _update(pair, [0], np.ones([1, 2]), f"states 1\nscalars 1  # of one\n\n{line}")
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            pair.session.run(update, {pair.scalars: [1.0]})
    assert f"Line 4 of the program: {rule}" in raised.value.message
    assert f"The line is `{line}`." in raised.value.message


def test_what_a_bound_is_made_of_decays() -> None:
    with both(OPTIMIZERS["momentum"], table(8, 2, 2)) as pair:
        program = OPTIMIZERS["momentum"].program(np.float32, known=True).replace("s1:1:1", "s0:1:1")
        with pytest.raises(tf.errors.InvalidArgumentError, match="leaves of a `move` has a `decay`; s0 has not"):
            pair.session.run(_update(pair, [0], np.ones([1, 2]), program), {pair.scalars: [1.0]})
