"""The benchmark of islands: its tasks can be learnt, and its table says when each method comes to a loss of all."""

import numpy as np
import pytest
import tensorflow as tf

from ops.bench.islands.command import METHODS, SYNCHRONOUS, TASK_NAMES, lines_of
from ops.bench.islands.tasks import HELD_OUT_ROWS, TASKS
from parallax.settings.islands import Islands


def test_the_table_says_when_each_method_comes_to_the_loss_of_all():
    curves = {
        SYNCHRONOUS: [(0, 0.0, 5.0), (32, 10.0, 2.0), (64, 20.0, 1.0)],
        "islands": [(0, 0.0, 5.0), (32, 1.0, 3.0), (64, 2.0, 1.5), (96, 3.0, 1.75)],
    }
    head, _, *rows = lines_of(curves)
    assert head == "held-out loss 1.5000"
    assert [row.split() for row in rows] == [
        ["synchronous", "64", "20.0", "312.5", "1.00", "1.0000"],
        ["islands", "64", "2.0", "31.2", "10.00", "1.7500"],
    ]


def test_the_command_names_all_tasks():
    assert tuple(TASKS) == TASK_NAMES


def test_methods_are_settings():
    found = {name: Islands.of_text(text) for name, text in METHODS.items() if name != SYNCHRONOUS}
    assert [one.every for one in found.values()] == [8, 32, 8, 32]
    assert [one.outer_momentum for one in found.values()] == [0, 0, 0.9, 0.9]


@pytest.mark.parametrize("name", TASKS)
def test_tasks_can_be_learnt(name):
    task = TASKS[name]()
    held_out = task.batch([0], HELD_OUT_ROWS)
    with tf.compat.v1.Session(graph=task.build()) as session:
        with session.graph.as_default():
            session.run(tf.compat.v1.global_variables_initializer())
        before = session.run("loss:0", held_out)
        for step in range(40):
            batches = [task.batch([1, step, worker], task.rows) for worker in range(4)]
            session.run("train", {key: np.concatenate([one[key] for one in batches]) for key in held_out})
        assert session.run("loss:0", held_out) < 0.9 * before
