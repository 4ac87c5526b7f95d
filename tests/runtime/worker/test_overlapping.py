"""Runs that overlap in one process: every value is that of runs one after the other, whatever takes how long."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.training.monitored_session import _HookedSession

from parallax.runtime.worker.session import overlapping
from parallax.runtime.worker.session.direct import DirectRuns, TraceRequest
from parallax.runtime.worker.session.overlapping import Overlapping
from parallax.transform.passes.turns import add_gates

v1 = tf.compat.v1
STEP = "global_step/Read/ReadVariableOp:0"
OWN_THREADS = v1.ConfigProto(inter_op_parallelism_threads=8, use_per_session_threads=True)
"""A tail that waits takes a thread from the loss; those of the process may be as few as its first session asked for."""


class Model:
    """Two layers by momentum; what `tail` does stands between a gradient and its update, as an all-reduce would.

    Args:
        tail: is called in each run with the gradient's number.
        overlaps: whether runs may.
        has_hooks: whether TensorFlow calls hooks around each run.
        tracer: a hook that traces runs that overlap.
        backward: is called in each run when the loss is there and the first layer's gradient is not.
    """

    def __init__(
        self, tail: Any, overlaps: bool = True, backward: Any = None, has_hooks: bool = False, tracer: Any = None
    ) -> None:
        built = tf.Graph()
        with built.as_default():
            x = v1.placeholder(tf.float32, [4, 3], name="x")
            first = v1.get_variable("first", initializer=np.ones((3, 3), np.float32) / 3)
            second = v1.get_variable("second", initializer=np.ones((3, 1), np.float32))
            noise = tf.random.uniform([4, 1], seed=5)
            hidden = x @ first
            if backward is not None:
                hidden = tf.custom_gradient(lambda h: (tf.identity(h), partial(self._after, backward, -1)))(hidden)
            loss = tf.reduce_mean(tf.square(tf.tanh(hidden) @ second - noise), name="loss")
            step = v1.train.get_or_create_global_step()
            optimizer = v1.train.MomentumOptimizer(v1.train.exponential_decay(0.2, step, 3, 0.9), 0.9)
            pairs = optimizer.compute_gradients(loss)
            late = [(self._after(tail, number, g), v) for number, (g, v) in enumerate(pairs)]
            optimizer.apply_gradients(late, step, name="train")
            v1.global_variables_initializer()
            graph_def = built.as_graph_def()
        if overlaps:
            add_gates(graph_def)
        self.built = built  # holds what numpy_function calls
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        self.graph.finalize()
        self.session = v1.Session(graph=self.graph, config=OWN_THREADS)
        self.session.run("init")
        waits_for = [] if tracer is None else [tracer]
        self.direct = DirectRuns(self.session, waits_for, overlaps=overlaps, has_hooks=has_hooks, tracer=tracer)

    @staticmethod
    def _after(tail: Any, number: int, gradient: Any) -> Any:
        def wait(value: Any) -> Any:
            tail(number)
            return value

        late = tf.numpy_function(wait, [gradient], tf.float32)
        late.set_shape(gradient.shape)
        return late

    def step(self, batch: Any, fetches: tuple[str, ...] = ("train", "loss:0")) -> Any:
        while True:  # the first time it only takes note
            found = self.direct.run(fetches, {"x:0": batch}, overlaps=True)
            if found is not None:
                return found

    def variables(self) -> list[Any]:
        return list(self.session.run(["first/Read/ReadVariableOp:0", "second/Read/ReadVariableOp:0", STEP]))


@pytest.fixture(autouse=True)
def meetings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python functions stand for what workers meet in."""
    monkeypatch.setattr(overlapping, "is_exchange", lambda op: op == "PyFunc")


def nothing(number: int) -> None:
    pass


def drawn(seed: int) -> Iterator[Any]:
    draw = np.random.default_rng(seed)
    while True:
        yield draw.normal(size=(4, 3)).astype(np.float32)


@pytest.fixture
def batches() -> Iterator[Any]:
    return drawn(3)


def trained(model: Model, batches: Any, steps: int) -> tuple[list[float], list[Any]]:
    losses = [float(model.step(next(batches))[1]) for _ in range(steps)]
    return losses, model.variables()


@pytest.mark.parametrize("chunk", range(4))
def test_delays_in_any_order_change_no_value(chunk: int) -> None:
    draw = random.Random(chunk)
    expected = trained(Model(nothing, overlaps=False), drawn(chunk), 250)
    found = trained(Model(lambda number: time.sleep(draw.choice((0, 0, 1e-4, 1e-3)))), drawn(chunk), 250)
    assert found[0] == expected[0]
    for ours, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_nothing_is_changed_that_has_run(batches: Any) -> None:
    model = Model(nothing)
    before = {op.name: op.node_def for op in model.graph.get_operations()}
    trained(model, batches, 3)
    model.step(next(batches), ("train", "loss:0", STEP))
    assert {name: model.graph.get_operation_by_name(name).node_def for name in before} == before


def test_a_run_gives_its_loss_before_its_updates_and_others_wait_for_these(batches: Any) -> None:
    gone_on = threading.Event()
    model = Model(lambda number: gone_on.wait(20))
    before = model.session.run(STEP)
    loss = model.step(next(batches))[1]
    assert np.isfinite(loss) and not gone_on.is_set()
    threading.Timer(0.2, gone_on.set).start()
    assert model.session.run(STEP) == before + 1 == model.session.make_callable(STEP)()
    assert gone_on.is_set()


class Looking(v1.train.SessionRunHook):
    """Fetches the loss around each run, requests a trace of one, and reads the step after every fifth."""

    def __init__(self, model: Model, traced: int) -> None:
        self.model, self.traced, self.losses, self.steps = model, traced, [], []

    def before_run(self, run_context: Any) -> Any:
        is_traced = len(self.losses) == self.traced
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE) if is_traced else None
        return v1.train.SessionRunArgs(["loss:0"], options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.losses.append(float(run_values.results[0]))
        assert bool(run_values.run_metadata.step_stats.dev_stats) == (len(self.losses) - 1 == self.traced)
        if len(self.losses) % 5 == 0:
            self.steps.append(int(self.model.session.run(STEP)))


def test_runs_with_hooks_overlap_below_them(batches: Any) -> None:
    draw = random.Random(5)
    expected = trained(Model(nothing, overlaps=False), drawn(5), 30)
    model = Model(lambda number: time.sleep(draw.choice((0, 1e-3))), has_hooks=True)
    hook = Looking(model, traced=12)
    hooked = _HookedSession(model.session, [hook])
    for batch in itertools.islice(drawn(5), 30):
        assert model.direct.run(("train", "loss:0"), {"x:0": batch}, overlaps=True) is None
        with model.direct.below_hooks(overlaps=True):
            _, loss = hooked.run(["train", "loss:0"], {"x:0": batch})
        assert loss == hook.losses[-1]
    assert (hook.losses, hook.steps) == (expected[0], [5, 10, 15, 20, 25, 30])
    for ours, theirs in zip(model.variables(), expected[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_run_with_hooks_returns_before_its_updates(batches: Any) -> None:
    gone_on = threading.Event()
    gone_on.set()
    model = Model(lambda number: gone_on.wait(20), has_hooks=True)
    hooked = _HookedSession(model.session, [v1.train.SessionRunHook()])
    for number in range(3):  # the first ones only take note
        if number == 2:
            model.session.run(STEP)
            gone_on.clear()
        with model.direct.below_hooks(overlaps=True):
            hooked.run(["train", "loss:0"], {"x:0": next(batches)})
    assert not gone_on.is_set()
    threading.Timer(0.1, gone_on.set).start()
    assert model.session.run(STEP) == 3


class Tracing(v1.train.SessionRunHook):
    """Requests traces of some runs, which may overlap."""

    finished = False

    def __init__(self, traced: Any) -> None:
        self.traced, self.runs, self.request, self.found = traced, 0, None, []

    def before_run(self, run_context: Any) -> None:
        self.request = None
        if self.runs in self.traced:
            self.request = TraceRequest(v1.RunOptions.SOFTWARE_TRACE, v1.RunMetadata())
            self.found.append(self.request.run_metadata)
        self.runs += 1


def test_a_trace_of_runs_that_overlap_is_there_when_they_have_ended() -> None:
    gone_on, hook = threading.Event(), Tracing({2, 4})
    gone_on.set()
    expected = trained(Model(nothing, overlaps=False), drawn(7), 6)
    model = Model(lambda number: gone_on.wait(20), tracer=hook)
    hooked, losses = _HookedSession(model.session, [hook]), []
    for number, batch in enumerate(itertools.islice(drawn(7), 6)):
        if number == 4:
            model.session.run(STEP)
            gone_on.clear()
        if number == 5:
            assert not hook.found[1].step_stats.dev_stats
            gone_on.set()
        assert model.direct.run(("train", "loss:0"), {"x:0": batch}, overlaps=True) is None
        with model.direct.below_hooks(overlaps=number != 2):  # which is traced by itself
            losses.append(float(hooked.run(["train", "loss:0"], {"x:0": batch})[1]))
    assert (losses, model.variables()[0].tolist()) == (expected[0], expected[1][0].tolist())
    ops = [[one.timeline_label for one in found.step_stats.dev_stats[0].node_stats] for found in hook.found]
    assert all(any("ApplyMomentum" in label for label in labels) for labels in ops)
    assert [any("ParallaxDeliver" in label for label in labels) for labels in ops] == [False, True]


class Failing(Model):
    """A model whose tails fail from some run on; a few runs have ended."""

    def __init__(self, batches: Any) -> None:
        self.fails = False
        super().__init__(self._fail)
        for _ in range(3):
            self.step(next(batches))
        self.direct.settle()

    def _fail(self, number: int) -> None:
        if self.fails:
            time.sleep(0.1)
            raise ValueError(f"lost gradient {number}")


def test_a_failure_that_another_thread_finds_is_raised_to_the_script_too(batches: Any) -> None:
    model = Failing(batches)
    model.fails = True
    model.step(next(batches))
    found: list[str] = []

    def read() -> None:
        with contextlib.suppress(tf.errors.OpError):
            model.session.run(STEP)
            found.append("nothing")

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(20)
    assert not found
    with pytest.raises(tf.errors.OpError, match="lost gradient"):
        model.session.run(STEP)


def test_what_is_fed_may_be_written_to_after_the_run(batches: Any) -> None:
    memory = np.zeros(12 + 16, np.float32)
    begin = -memory.ctypes.data % 64 // 4  # TensorFlow itself copies what does not begin at 64 bytes
    batch, gone_on = memory[begin : begin + 12].reshape(4, 3), threading.Event()
    batch[:] = next(batches)
    model, plain = Model(nothing, backward=lambda number: gone_on.wait(20)), Model(nothing, overlaps=False)
    plain.step(batch.copy())
    model.step(batch)
    batch[:] = 100.0
    gone_on.set()
    np.testing.assert_array_equal(model.variables()[0], plain.variables()[0])


def test_a_run_is_fed_what_it_takes_or_waits_for(batches: Any) -> None:
    graph = tf.Graph()
    with graph.as_default():
        x, after, unused = (v1.placeholder(tf.float32, [2048], name=name) for name in ("x", "after", "unused"))
        kept = v1.get_variable("kept", initializer=np.float32(0), use_resource=True)
        with tf.control_dependencies([after]):
            kept.assign_add(tf.reduce_sum(x + 0.0 * tf.reduce_sum(x)), name="train")
        tf.identity(unused, name="other")
        graph_def = graph.as_graph_def()
    add_gates(graph_def)
    with tf.Graph().as_default() as own:
        tf.graph_util.import_graph_def(graph_def, name="")
    session = v1.Session(graph=own)
    session.run("kept/Assign")
    ready = Overlapping(session).ready(["train"], ["x:0", "after:0", "unused:0"])
    assert ready is not None and ready.feeds == (0, 1)
    direct = DirectRuns(session, overlaps=True)
    fed = {name: np.ones(2048, np.float32) for name in ("x:0", "after:0", "unused:0")}
    done = sum(direct.run(("train",), fed, overlaps=True) is not None for _ in range(4))
    assert session.run("kept/Read/ReadVariableOp:0") == 2048.0 * done > 0
    other = next(run for _ in range(2) if (run := direct.run(("other:0",), fed, overlaps=True)))
    np.testing.assert_array_equal(other[0], fed["unused:0"])


def test_a_run_that_fails_afterwards_fails_the_next_one_and_then_it_goes_on(batches: Any) -> None:
    model = Failing(batches)
    model.fails = True
    model.step(next(batches))
    with pytest.raises(tf.errors.OpError, match="lost gradient"):
        for _ in range(3):
            model.step(next(batches))
    model.fails = False
    assert np.isfinite(model.step(next(batches))[1])
    model.direct.settle()


def test_a_failure_that_is_reported_late_does_not_fail_runs_after_it_is_raised(
    batches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Failing(batches)
    end = overlapping._native().parallax_turns_end

    def end_late(run: int, error: bytes) -> None:
        time.sleep(0.2)
        end(run, error)

    monkeypatch.setattr(overlapping._native(), "parallax_turns_end", end_late)
    model.fails = True
    model.step(next(batches))
    with pytest.raises(tf.errors.OpError, match="lost gradient"):
        model.session.run(STEP)
    time.sleep(0.3)
    model.fails = False
    assert np.isfinite(model.step(next(batches))[1])
    model.direct.settle()


def test_fetches_of_ops_alone_give_nothing_and_are_counted(batches: Any) -> None:
    model = Model(nothing)
    for _ in range(20):
        assert model.step(next(batches), ("train",)) == [None]
    assert model.session.run(STEP) == 20


def test_the_end_of_the_data_is_told_by_the_run_that_meets_it() -> None:
    graph = tf.Graph()
    with graph.as_default():
        given = v1.data.make_one_shot_iterator(tf.data.Dataset.range(5)).get_next()
        kept = v1.get_variable("kept", initializer=np.int64(0), use_resource=True)
        kept.assign_add(given, name="train")
        graph_def = graph.as_graph_def()
    add_gates(graph_def)
    with tf.Graph().as_default() as own:
        tf.graph_util.import_graph_def(graph_def, name="")
    session = v1.Session(graph=own)
    session.run("kept/Assign")
    direct, done = DirectRuns(session, overlaps=True), 0
    op = next(node.name for node in graph_def.node if node.op == "AssignAddVariableOp")
    with pytest.raises(tf.errors.OutOfRangeError):
        for _ in range(20):
            done += direct.run((op,), {}, overlaps=True) is not None
    assert done == 5 and session.run("kept/Read/ReadVariableOp:0") == 10


def test_several_threads_may_run(batches: Any) -> None:
    model = Model(lambda number: time.sleep(1e-3))
    shared = [next(batches) for _ in range(8)]
    threads = [threading.Thread(target=lambda: [model.step(batch) for batch in shared]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert model.variables()[2] == 24


def test_reference_variables_are_left_to_runs_one_after_the_other() -> None:
    graph = tf.Graph()
    with graph.as_default():
        with v1.variable_scope("", use_resource=False):
            old = v1.get_variable("old", initializer=1.0)
        v1.assign_add(old, 1.0, name="add")
        kept = v1.get_variable("kept", initializer=1.0, use_resource=True)
        kept.assign_add(1.0, name="kept_add")
        v1.global_variables_initializer()
        graph_def = graph.as_graph_def()
    add_gates(graph_def)
    with tf.Graph().as_default() as own:
        tf.graph_util.import_graph_def(graph_def, name="")
    session = v1.Session(graph=own)
    session.run("init")
    direct = DirectRuns(session, overlaps=True)
    done = sum(direct.run(("add", "kept_add"), {}, overlaps=True) is not None for _ in range(4))
    assert session.run("old:0") == session.run("kept/Read/ReadVariableOp:0") == 1.0 + done


def both_ways(build: Any, runs: int = 8) -> tuple[list[Any], list[Any]]:
    """What runs of `shown:0` and `train` give that overlap, and that do not; `late` in the graph takes its time."""
    found = []
    for overlaps in (True, False):
        graph = tf.Graph()
        with graph.as_default():
            with v1.variable_scope("", use_resource=True):
                build()
            v1.global_variables_initializer()
            graph_def = graph.as_graph_def()
        if overlaps:
            add_gates(graph_def)
        with tf.Graph().as_default() as own:
            tf.graph_util.import_graph_def(graph_def, name="")
        session = v1.Session(graph=own, config=OWN_THREADS)
        session.run("init")
        direct = DirectRuns(session, overlaps=overlaps)
        given = [direct.run(("shown:0", "train"), {}, overlaps=True) for _ in range(runs)]
        direct.settle()
        found.append([float(values[0]) for values in given if values is not None])
        del graph
    return found[0], found[1]


def late(value: Any) -> Any:
    def wait(given: Any) -> Any:
        time.sleep(0.02)
        return given

    held = tf.numpy_function(wait, [value], value.dtype)
    held.set_shape(value.shape)
    return held


def updated(variable: Any, after: Any) -> None:
    with tf.control_dependencies([after]):
        tf.group(variable.assign_add(late(tf.constant(1.0))), name="train")


def test_a_variable_that_a_loop_of_the_old_style_reads() -> None:
    def build() -> None:
        a = v1.get_variable("a", initializer=1.0)
        total = v1.while_loop(lambda i, s: i < 2, lambda i, s: (i + 1, s + a.read_value()), [0, 0.0])[1]
        updated(a, tf.identity(total, name="shown"))

    v1.disable_control_flow_v2()
    try:
        found, expected = both_ways(build)
    finally:
        v1.enable_control_flow_v2()
    assert found == expected == [2.0 * step for step in range(1, len(found) + 1)]


def test_what_keeps_state_in_a_branch_that_is_not_taken() -> None:
    def build() -> None:
        a = v1.get_variable("a", initializer=1.0)
        never = v1.placeholder_with_default(False, [])
        value = v1.cond(never, lambda: a * tf.random.uniform([]), lambda: a + 0.0)
        updated(a, tf.identity(value, name="shown"))

    v1.disable_control_flow_v2()
    try:
        found, expected = both_ways(build)
    finally:
        v1.enable_control_flow_v2()
    assert found == expected


def test_a_handle_that_a_conditional_gives() -> None:
    def build() -> None:
        a, b = (v1.get_variable(name, initializer=1.0) for name in "ab")
        handle = tf.cond(v1.placeholder_with_default(True, []), lambda: a.handle, lambda: b.handle)
        shown = tf.identity(a.read_value(), name="shown")
        with tf.control_dependencies([shown]):
            add = tf.raw_ops.AssignAddVariableOp(resource=handle, value=late(tf.constant(1.0)))
        tf.group(add, name="train")

    found, expected = both_ways(build)
    assert found == expected
