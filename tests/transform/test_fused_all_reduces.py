"""Which all-reduces travel as one message, and what a run does that needs some of them only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.runtime.worker.session.names import Names
from parallax.transform.building.collectives import all_reduce
from parallax.transform.building.editor import Worker
from parallax.transform.passes import fused_all_reduces
from parallax.transform.passes.fused_all_reduces import fuse_all_reduces, members_of, unfuse_view
from parallax.transform.pipeline import transform
from tests.equality import models
from tests.transform.test_transform import decided

v1 = tf.compat.v1


def joined(build: Any) -> tuple[Any, list[tuple[str, ...]]]:
    graph = tf.Graph()
    with graph.as_default():
        build()
    graph_def = graph.as_graph_def()
    return graph_def, [one.members for one in fuse_all_reduces(graph_def)]


def reduced(name: str, size: int = 4, dtype: Any = tf.float32, kind: str = "sum", of: Any = None) -> Any:
    with tf.name_scope(name):
        return all_reduce(tf.zeros([size], dtype) if of is None else of, kind)


def two_layers(rows: int) -> None:
    x = models.ids(rows)
    h = tf.nn.embedding_lookup(models.table("a", (100, 8)), x)
    loss = models.squared(models.dense(tf.matmul(h, v1.get_variable("before", [8, 8]))), rows)
    v1.train.AdagradOptimizer(0.1).minimize(loss)


def test_small_ones_of_one_type_kind_and_level_travel_together() -> None:
    def build() -> None:
        a, _ = reduced("a"), reduced("b")
        reduced("c", dtype=tf.float64), reduced("d", kind="max")
        reduced("e", of=a + 1.0), reduced("f", of=a + 2.0)

    _, members = joined(build)
    assert members == [("a/all_reduce", "b/all_reduce"), ("e/all_reduce", "f/all_reduce")]


def test_a_full_message_is_closed_and_a_large_tensor_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_all_reduces, "MESSAGE_BYTES", 64)

    def build() -> None:
        for name, size in (("a", 8), ("large", 16), ("b", 8), ("c", 4), ("d", 4)):
            reduced(name, size)

    _, members = joined(build)
    assert members == [("a/all_reduce", "b/all_reduce"), ("c/all_reduce", "d/all_reduce")]


def test_open_shapes_and_conditionals_are_left_alone() -> None:
    def build() -> None:
        reduced("a"), reduced("open", of=v1.placeholder(tf.float32, [None]))
        v1.cond(v1.placeholder(tf.bool, []), lambda: reduced("taken"), lambda: tf.zeros([4]))

    v1.disable_control_flow_v2()
    try:
        assert joined(build)[1] == []
    finally:
        v1.enable_control_flow_v2()


def test_what_comes_out_of_a_loop_is_later_than_what_goes_around_in_it() -> None:
    def build() -> None:
        early, beside = reduced("early"), reduced("beside")
        body = lambda n, x: (n + 1, x + early)  # noqa: E731
        _, sums = v1.while_loop(lambda n, x: n < 3, body, (tf.constant(0), tf.zeros([4])))
        reduced("late", of=sums), reduced("later", of=sums + beside)

    v1.disable_control_flow_v2()
    try:
        members = joined(build)[1]
    finally:
        v1.enable_control_flow_v2()
    assert members == [("early/all_reduce", "beside/all_reduce"), ("late/all_reduce", "later/all_reduce")]


def test_each_keeps_its_scale() -> None:
    def build() -> None:
        for scale in (0.5, 1.0):
            all_reduce(tf.zeros([4]), scale=scale)

    graph_def, _ = joined(build)
    (message,) = [node for node in graph_def.node if node.op == "ParallaxAllReduce"]
    assert list(message.attr["scales"].list.f) == [0.5, 1.0]


def test_a_run_that_needs_one_member_feeds_the_others_with_nothing() -> None:
    view, rewrites = decided(two_layers)
    made = transform(view, rewrites, Worker(0, 2, 7))
    (message,) = made.fused
    needed, apart = message.members[0], unfuse_view(made.graph_def)
    own = members_of(made.graph_def)[needed].split(":")[0]
    assert own in apart.ancestors({needed}) and not apart.ancestors({needed}) & {*message.members[1:]}
    names = Names(view, made)
    consumer = next(edge.node for edge in apart.consumers(f"{needed}:0") if edge.node in view.nodes)
    resolved = names.resolve((f"{consumer}:0",), frozenset())
    assert set(message.parts[1:]) <= resolved.empty.keys() and message.parts[0] not in resolved.empty
    assert all(np.size(resolved.empty[part]) == 0 for part in message.parts[1:])
