"""Random ops whose positions are in variables: the same numbers, and a later session goes on where one was."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, rewrites_of
from parallax.analysis.planner import make_plan
from parallax.analysis.reading.construction import record
from parallax.plans.plan import PlanConstraints, one_host
from parallax.transform.building.editor import Worker
from parallax.transform.passes.random_positions import RandomStreams
from parallax.transform.pipeline import WorkerGraph, transform

v1 = tf.compat.v1
record.install()

DRAWS = ("uniform", "normal", "truncated", "numbers", "of_any_shape", "seeded", "of_half", "candidates", "expected")


def build(graph: Any) -> None:
    with graph.as_default():
        size = v1.placeholder(tf.int32, [1], name="size")
        w = v1.get_variable("w", [4, 3], initializer=v1.random_normal_initializer())
        draws = [
            tf.random.uniform([3]),
            tf.random.normal([5, 2]),
            tf.random.truncated_normal([7]),
            tf.random.uniform([9], 3, 50, tf.int64),
            tf.random.normal(size),
            tf.random.uniform([2], seed=5),
            tf.random.normal([3], dtype=tf.float16),
        ]
        classes = tf.constant([[5], [40]], tf.int64)
        draws.append(v1.nn.log_uniform_candidate_sampler(classes, 1, 20, True, 100).sampled_candidates)
        draws.append(v1.nn.uniform_candidate_sampler(classes, 1, 30, False, 100).sampled_expected_count)
        for name, drawn in zip(DRAWS, draws, strict=True):
            tf.identity(drawn, name=name)
        tf.while_loop(lambda i: i < 2, lambda i: i + tf.cast(tf.random.uniform([]) * 0, tf.int32) + 1, [0], name="loop")
        tf.random.shuffle(tf.range(5), name="shuffled")
        loss = tf.reduce_mean(tf.square(tf.nn.dropout(w, rate=0.5)))
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def made(worker: Worker) -> WorkerGraph:
    graph = tf.Graph()
    v1.disable_control_flow_v2()
    with graph.as_default():
        build(graph)
    analysed = analyse(graph)
    plan = make_plan(analysed.spec, one_host(worker.size), PlanConstraints())
    return transform(analysed.captured.view, rewrites_of(analysed, plan), worker)


class Opened:
    """A session on what one worker draws; `positions` are read and written as checkpoints do."""

    def __init__(self, made: WorkerGraph) -> None:
        wanted = [*DRAWS, *(one.initializer for one in made.streams.saved)]
        cut = v1.graph_util.extract_sub_graph(made.graph_def, [*wanted, "size"])  # the collectives need a job
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(cut, name="")
            handles = [self.graph.get_tensor_by_name(f"{one.variable}:0") for one in made.streams.saved]
            self.read = tf.stack([tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64) for handle in handles])
            self.given = v1.placeholder(tf.int64, self.read.shape)
            writes = [tf.raw_ops.AssignVariableOp(resource=h, value=self.given[n]) for n, h in enumerate(handles)]
            self.write = tf.group(*writes)
        self.session = v1.Session(graph=self.graph)
        self.session.run([one.initializer for one in made.streams.saved])

    def draw(self, names: Any = DRAWS, size: int = 4) -> Any:
        return self.session.run([f"{name}:0" for name in names], {"size:0": [size]})


def test_the_same_numbers_are_drawn_and_a_later_session_goes_on_with_them() -> None:
    usual, kept = Opened(made(Worker(1, 2, 7))), Opened(made(Worker(1, 2, 7, keeps_positions=True)))
    for size in (4, 1, 5):
        np.testing.assert_equal(kept.draw(size=size), usual.draw(size=size))
    np.testing.assert_equal(kept.draw(["uniform"]), usual.draw(["uniform"]))  # each op has a position of its own
    resumed = Opened(made(Worker(1, 2, 7, keeps_positions=True)))
    resumed.session.run(resumed.write, {resumed.given: kept.session.run(kept.read)})
    for size in (2, 6):
        np.testing.assert_equal(resumed.draw(size=size), usual.draw(size=size))


def test_what_keeps_no_position_is_named_and_initial_values_are_left_alone() -> None:
    graph = made(Worker(0, 2, 7, keeps_positions=True))
    assert len(graph.streams.saved) == len(DRAWS) + 1
    assert any("dropout" in one.op for one in graph.streams.saved)
    assert [name.rpartition("/")[2] for name in graph.streams.unsaved] == ["RandomUniform", "shuffled"]
    ops = {node.name: node.op for node in graph.graph_def.node}
    assert ops["w/Initializer/random_normal/RandomStandardNormal"] == "RandomStandardNormal"
    assert made(Worker(0, 2, 7)).streams == RandomStreams()
