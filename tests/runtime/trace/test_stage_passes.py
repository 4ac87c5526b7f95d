"""Passes of micro-batches from ops made by hand, beside those of a plan; times are microseconds."""

import json
from dataclasses import replace

import pytest
import tensorflow as tf

from parallax.graph.view import GraphView
from parallax.plans.model_stages import StagePlan, StageTurn
from parallax.plans.plan import Plan
from parallax.plans.prediction import Prediction
from parallax.runtime.trace.chrome import trace_text
from parallax.runtime.trace.clocks import SAME_CLOCK
from parallax.runtime.trace.ops import COMPUTE, PULL, PUSH, Op, Step, kind_of
from parallax.runtime.trace.rows import rank_trace
from parallax.runtime.trace.stage_passes import (
    StagePasses,
    add_predictions,
    count_alive_bytes,
    find_passes,
    merge_runs,
    stage_lines,
)

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def trained():
    """A graph, and the nodes that autodiff made."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        weights = v1.get_variable("weights", [2, 2])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights, name="product")), name="loss")
        before = {op.name for op in graph.get_operations()}
        (gradient,) = tf.gradients(loss, [weights])
        autodiff = {op.name for op in graph.get_operations()} - before
        v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, weights)], name="train")
    names = {op.type: op.name for op in graph.get_operations() if op.name in autodiff}
    return GraphView(graph.as_graph_def()), autodiff, names["MatMul"]


def op(name, start_us, end_us, kind=COMPUTE, type=""):
    return Op(name, type, kind, start_us, end_us)


def micro_batch(step, number, begin_us, gradient):
    """A forward pass of 300 us with a pause of 20, a message, a backward pass of 400, and the sum of gradients."""
    ops = (
        op("parallax/pull_0/rows", begin_us, begin_us + 100, PULL),
        op("product", begin_us + 120, begin_us + 300),
        op("parallax/stage/send_0", begin_us + 300, begin_us + 900, PUSH, "ParallaxSend"),
        op(gradient, begin_us + 500, begin_us + 900),
        op("parallax/keep_0/add", begin_us + 900, begin_us + 950),
    )
    return Step(step, ops, number)


def test_ops_belong_to_the_passes_of_their_micro_batch(trained):
    view, autodiff, gradient = trained
    update = op("train/update_weights/ResourceApplyGradientDescent", 2000, 2100)
    runs = [micro_batch(7, 0, 0, gradient), micro_batch(7, 1, 1000, gradient)]
    runs[1] = replace(runs[1], ops=(*runs[1].ops, update))
    passes = [(one.name, one.start_us, one.end_us, one.busy_us) for one in find_passes(runs, view, autodiff)]
    assert passes == [
        ("forward 0", 0, 300, 280),
        ("backward 0", 500, 900, 400),
        ("update 0", 900, 950, 50),
        ("forward 1", 1000, 1300, 280),
        ("backward 1", 1500, 1900, 400),
        ("update 1", 1900, 2100, 150),
    ]
    (merged,) = merge_runs(runs)
    assert merged.number == 7 and len(merged.ops) == 11


def test_tensors_of_all_runs_in_flight_are_counted():
    runs = [Step(0, (), 0, ((10, 400), (50, -400))), Step(0, (), 1, ((20, 300), (30, 50), (35, -50), (60, -300)))]
    assert count_alive_bytes(runs) == 750


def test_messages_are_pushed():
    assert kind_of("parallax/stage/send_3", "ParallaxSend") == PUSH


def staged_plan(turns, step_s):
    stages = tuple(StagePlan((), (), (), 0, 0, 0.5, 0, turns=tuple(turns) if step_s else ()) for _ in range(2))
    prediction = Prediction(step_s)
    return Plan(1, "", (2,), (), "MPI", True, True, (), accumulate_steps=2, stages=stages, prediction=prediction)


TURNS = [StageTurn(number, back, *at) for number, back, at in [(0, False, (0.0, 1e-4)), (0, True, (2e-4, 5e-4))]]


def test_predicted_passes_begin_with_the_step_and_are_drawn_beside_the_measured(trained):
    view, autodiff, gradient = trained
    plan = staged_plan(TURNS, 1e-3)
    runs = [micro_batch(step, number, 5000 * step + 1000 * number, gradient) for step in (3, 4) for number in (0, 1)]
    passes = [StagePasses(stage, find_passes(runs, view, autodiff)) for stage in (0, 1)]
    found = add_predictions(passes, plan)
    assert [(one.name, one.step, one.start_us, round(one.end_us)) for one in found[1].predicted] == [
        ("forward 0", 3, 15000, 15100),
        ("backward 0", 3, 15200, 15500),
        ("forward 0", 4, 20000, 20100),
        ("backward 0", 4, 20200, 20500),
    ]
    trace = replace(rank_trace(0, "h0", SAME_CLOCK, merge_runs(runs), ()), passes=found[0])
    events = json.loads(trace_text([trace]))["traceEvents"]
    rows = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    drawn = {row: [e["name"] for e in events if e["ph"] == "X" and rows[e["tid"]] == row] for row in rows.values()}
    assert drawn["micro-batches"][:3] == ["forward 0", "backward 0", "update 0"] and len(drawn["predicted"]) == 4


def test_a_table_has_measured_times_beside_predicted_ones(trained):
    view, autodiff, gradient = trained
    runs = [micro_batch(step, number, 2000 * step + 1000 * number, gradient) for step in (3, 4) for number in (0, 1)]
    passes = [StagePasses(stage, find_passes(runs, view, autodiff)) for stage in (0, 1)]
    lines = list(stage_lines(passes, staged_plan(TURNS, 1e-3)))
    assert lines[1].split() == "stage forward backward update step idle alive predicted step idle".split()
    # Two micro-batches of 280, 400 and 50 us of ops, and a pause of 20, in a step of 2,000; predicted are 400 of 1,000.
    assert lines[2].split() == "0 0.56 0.80 0.10 2.00 25 % 0 B 0.40 1.00 60 %".split()
    assert lines[3].split()[0] == "1" and "would be idle 33 % of the time" in lines[4]
    lines = list(stage_lines(passes, staged_plan((), None)))
    assert lines[1].split() == "stage forward backward update step idle alive".split()
    assert lines[2].split() == "0 0.56 0.80 0.10 2.00 25 % 0 B".split()


def test_stages_that_have_not_run_have_no_row():
    assert len(list(stage_lines([StagePasses(0, ()), StagePasses(1, ())], staged_plan((), None)))) == 3
