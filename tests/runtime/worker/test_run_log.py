"""What a session says of its runs: how long steps took beside the prediction, and that nothing was trained."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import tensorflow.compat.v1 as tf

from parallax.analysis.reading.train_ops import find_ops_after
from parallax.graph.view import GraphView
from parallax.report.logger import log
from parallax.runtime.worker.reports.run_log import FIRST_STEPS, IDLE_RUNS, RunLog, StepTimes, times_text
from tests.report.html.plans import timed, untimed

UPDATES = {"sgd/update/ApplyGradientDescent"}


@pytest.fixture(scope="module")
def view():
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(1.0, use_resource=False, name="w")
        step = tf.Variable(0, use_resource=False, name="step", trainable=False)
        with tf.name_scope("sgd/update"):
            update = tf.raw_ops.ApplyGradientDescent(var=variable._ref(), alpha=0.1, delta=2.0)
        with tf.control_dependencies([update]):
            counted = tf.assign_add(step, 1, name="count").op
        tf.group(counted, name="train_op")
        tf.identity(variable + 1.0, name="loss")
        tf.no_op(name="train/step")
    return GraphView(graph.as_graph_def(add_shapes=True))


@pytest.fixture
def said():
    """What the logger says, as (level, text)."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append((record.levelno, record.getMessage()))
    log.addHandler(handler)
    yield found
    log.removeHandler(handler)


def run(runs, names, times=1, seconds=1.0, pause=0.5, pending=0, plan=None):
    for _ in range(times):
        began = runs.begin(runs._ended_s + pause)
        runs.record_run(names, began, began.began_s + seconds, pending, plan)
        runs.end(began.began_s + seconds)


def test_the_median_step_stands_beside_the_predicted_one_without_the_first(view, said):
    runs = RunLog(view, UPDATES, is_reporter=True)
    run(runs, ("train_op", "loss:0"), FIRST_STEPS, seconds=100.0)
    assert runs.times() is None
    for seconds in (1.0, 2.0, 9.0):
        run(runs, ("loss:0",), seconds=50.0)
        run(runs, ("train_op", "loss:0"), seconds=seconds)
    assert runs.times() == StepTimes(3, 2.0, 0.5)
    runs.finish()
    runs.finish()
    assert said == [(logging.INFO, "A step took 2000 ms (median of 3 steps); between steps the script took 500 ms.")]


def test_a_prediction_says_what_it_is_of():
    times, plan = StepTimes(9, 0.0821, 0.001), timed()
    assert times_text(times, plan) == (
        "A step took 82.1 ms (median of 9 steps; 74.6 ms predicted); between steps the script took 1 ms."
    )
    exchanges = replace(plan, prediction=replace(plan.prediction, has_compute=False))
    assert "; of its exchanges alone, 74.6 ms predicted)" in times_text(times, exchanges)
    assert "predicted" not in times_text(times, untimed())


def test_a_step_is_all_batches_of_an_update(view):
    runs = RunLog(view, UPDATES, is_reporter=True)
    for _ in range(FIRST_STEPS + 2):
        for pending in (1, 2, 0):
            run(runs, ("train_op",), pending=pending)
    assert runs.times() == StepTimes(2, 3.0, 1.5)


def test_runs_of_hooks_within_a_step_are_its_own_time_and_not_the_scripts(view):
    runs = RunLog(view, UPDATES, is_reporter=True)
    for number in range(FIRST_STEPS + 3):
        step = runs.begin(100.0 * number)
        for at_s in (1.0, 11.0):  # of 4 s, and one that fails
            within = runs.begin(step.began_s + at_s)
            if at_s == 1.0:
                runs.record_run(("loss:0",), within, within.began_s + 4.0, 0, None)
            runs.end(within.began_s + 4.0)
        runs.record_run(("train_op",), step, step.began_s + 20.0, 0, None)
        runs.end(step.began_s + 20.0)
    assert runs.times() == StepTimes(3, 20.0, 80.0)


def test_steps_are_those_under_the_plan_in_force(view):
    runs = RunLog(view, UPDATES, is_reporter=True)
    run(runs, ("train_op",), FIRST_STEPS + 4, plan=untimed())
    run(runs, ("train_op",), FIRST_STEPS + 2, seconds=3.0, plan=timed())
    assert runs.times() == StepTimes(2, 3.0, 0.5)


def test_runs_of_which_none_trains_are_told_of_once_with_what_would(view, said):
    runs = RunLog(view, UPDATES, is_reporter=True)
    run(runs, ("loss:0",), IDLE_RUNS - 1)
    assert said == []
    run(runs, ("loss:0",), 2 * IDLE_RUNS)
    runs.finish()
    assert said == [
        (
            logging.WARNING,
            f"None of the first {IDLE_RUNS} runs of this session updated a trained variable. Fetch an op that trains; "
            "the graph has train_op.",
        )
    ]


def test_a_short_session_that_trained_nothing_is_told_of_at_its_end(view, said):
    runs = RunLog(view, UPDATES, is_reporter=True)
    run(runs, ("loss:0",), 3)
    runs.finish()
    (level, text), *more = said
    assert (level, more) == (logging.WARNING, []) and "No run of this session (3 runs) updated" in text


def test_a_second_loop_of_a_session_is_told_of_by_itself(view, said):
    runs = RunLog(view, UPDATES, is_reporter=True)
    for seconds in (1.0, 2.0):
        run(runs, ("train_op",), FIRST_STEPS + 1, seconds=seconds)
        assert runs.step == FIRST_STEPS + 2
        runs.finish()
        assert runs.step == 1
    assert [text.partition(";")[0] for _, text in said] == [
        "A step took 1000 ms (median of 1 step)",
        "A step took 2000 ms (median of 1 step)",
    ]


def test_an_op_that_looks_like_a_training_op_and_updates_nothing_is_told_of_at_once(view, said):
    runs = RunLog(view, UPDATES, is_reporter=True)
    run(runs, ("train/step", "loss:0"), 2)
    assert said == []  # `step` alone is no name of a training op
    renamed = RunLog(view, set(), is_reporter=True)
    run(renamed, ("train_op",))
    ((_, text),) = said
    assert text.startswith("Fetching the op train_op updates no trained variable. No op of the graph writes a variable")


def test_a_session_that_trains_or_runs_nothing_warns_of_nothing(view, said):
    for names, times in ((("train_op",), 1), (("sgd/update/ApplyGradientDescent",), 1), (("loss:0",), 0)):
        runs = RunLog(view, UPDATES, is_reporter=True)
        run(runs, names, times)
        run(runs, ("loss:0",), times * 2 * IDLE_RUNS)
        runs.finish()
    quiet = RunLog(view, UPDATES, is_reporter=False)
    run(quiet, ("loss:0",), 3)
    quiet.finish()
    assert said == []


def test_ops_that_train_are_those_that_no_other_waits_for(view):
    assert find_ops_after(view, UPDATES) == ["train_op"]
