"""Classes, evidence and errors of whole graphs; no cluster."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis import graph_to_plan
from parallax.analysis.graph_to_plan import adopt_analysis, analyse, plan_for, rewrites_of
from parallax.analysis.reading.capture import capture
from parallax.analysis.reading.construction import record
from parallax.analysis.reading.gradients import find_gradients
from parallax.base.errors import GraphError
from parallax.graph.spec import GraphSpec, VariableClass
from parallax.plans.plan import one_host
from parallax.settings.config import Config
from tests.equality import models

v1 = tf.compat.v1
record.install()


def spec_of(build: Any, rows: int = 6) -> GraphSpec:
    graph = tf.Graph()
    with graph.as_default():
        build(rows)
    return analyse(graph, layouts=False).spec


def classes(spec: GraphSpec) -> dict[str, str]:
    return {v.name: v.cls.value for v in spec.variables}


def test_lookups_make_a_variable_sparse_and_are_its_evidence() -> None:
    emb = spec_of(lambda rows: models.two_lookups(rows, "Adagrad", True)).variable("emb")
    assert emb.cls == VariableClass.SPARSE
    assert emb.lookups == ("embedding_lookup", "embedding_lookup_1")
    assert emb.touched_rows_bound == min(11, 12)
    assert "rows looked up by ResourceGather embedding_lookup" in emb.evidence
    assert [s.name for s in emb.slots] == ["emb/Adagrad"]


def test_a_bias_looked_up_by_row_is_sparse_and_a_weight_is_dense() -> None:
    found = classes(spec_of(lambda rows: models.two_lookups(rows, "Adam", False)))
    assert found == {
        "beta1_power": "untrained",
        "beta2_power": "untrained",
        "bias": "sparse",
        "emb": "sparse",
        "global_step": "untrained",
        "w": "dense",
    }


@pytest.mark.parametrize("model", ["tied", "whole regulariser", "partitioned, mod"])
def test_a_worker_takes_the_launchers_classes_and_decides_as_the_launcher(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> Any:
        with tf.Graph().as_default() as graph:
            models.MODELS[model](6)
        return graph

    launcher, graph = analyse(build(), layouts=False), build()
    monkeypatch.setattr(graph_to_plan, "classify", None)
    worker = adopt_analysis(graph, launcher.to_json(), launcher.spec.fingerprint)
    assert (worker.spec, worker.sources) == (launcher.spec, launcher.sources)
    plan = plan_for(launcher, one_host(2), Config())
    assert rewrites_of(worker, plan) == rewrites_of(launcher, plan)


@pytest.mark.parametrize("model", ["tied", "whole regulariser"])
def test_a_table_also_read_whole_is_mixed(model: str) -> None:
    assert spec_of(models.MODELS[model]).variable("emb").cls == VariableClass.MIXED


@pytest.mark.parametrize(
    ("model", "op"),
    [("conditional", "If 'cond'"), ("gather_nd", "ResourceGatherNd"), ("sorted rows", "Mul 'mul'")],
)
def test_an_op_without_a_rule_makes_a_table_not_shardable_and_is_named(model: str, op: str) -> None:
    emb = spec_of(models.MODELS[model]).variable("emb")
    assert emb.cls == VariableClass.NOT_SHARDABLE
    assert op in emb.reason


def test_parts_of_a_partitioned_variable_are_one_variable() -> None:
    emb = spec_of(models.MODELS["partitioned, div"]).variable("emb")
    assert emb.cls == VariableClass.SPARSE
    assert [(p.op, p.rows, p.row_offset) for p in emb.parts] == [("emb/part_0", 6, 0), ("emb/part_1", 5, 6)]
    assert [(s.name, s.ops) for s in emb.slots] == [
        ("emb/Adam", ("emb/part_0/Adam", "emb/part_1/Adam")),
        ("emb/Adam_1", ("emb/part_0/Adam_1", "emb/part_1/Adam_1")),
    ]


def test_what_each_worker_writes_from_its_batch_is_local() -> None:
    def build(rows: int) -> None:
        models.two_lookups(rows, "Adagrad", False)
        seen = v1.get_variable("seen", [], trainable=False)
        v1.assign_add(seen, tf.reduce_mean(v1.get_default_graph().get_tensor_by_name("y:0")))

    assert classes(spec_of(build))["seen"] == "local"


@pytest.mark.parametrize("write", [lambda v, x: v1.assign(v, 0.9 * v + 0.1 * x), lambda v, x: v1.assign_sub(v, v - x)])
def test_a_moving_statistic_of_the_batch_is_local_however_it_is_written(write: Any) -> None:
    def build(rows: int) -> None:
        models.two_lookups(rows, "Adagrad", False)
        seen = v1.get_variable("seen", [], trainable=False)
        write(seen, tf.reduce_mean(v1.get_default_graph().get_tensor_by_name("y:0")))

    assert classes(spec_of(build))["seen"] == "local"


def test_a_value_fed_whole_is_the_same_on_all_workers() -> None:
    def build(rows: int) -> None:
        models.two_lookups(rows, "Adagrad", False)
        v1.assign(v1.get_variable("rates", [3], trainable=False), v1.placeholder(tf.float32, [3]))

    assert classes(spec_of(build))["rates"] == "untrained"


def test_a_variable_without_update_is_untrained() -> None:
    def build(rows: int) -> None:
        models.two_lookups(rows, "Adagrad", False)
        v1.get_variable("frozen", [3])

    assert classes(spec_of(build))["frozen"] == "untrained"


@pytest.mark.parametrize("model", ["moving averages", "bags, clipped", "sampled softmax", "partitioned, mod"])
def test_a_graph_without_a_record_is_classified_alike_and_says_so(model: str) -> None:
    graph = tf.Graph()
    with graph.as_default():
        models.MODELS[model](6)
    recorded = analyse(graph, layouts=False).spec
    del graph._parallax_gradient_records
    found = analyse(graph, layouts=False).spec
    assert classes(found) == classes(recorded)
    assert "found by name scope" in found.notes[0]
    assert found.notes[1:] == recorded.notes


def test_the_same_graph_has_the_same_fingerprint_and_another_one_another() -> None:
    first, again = (spec_of(models.tied) for _ in range(2))
    assert first == again
    assert first.fingerprint != spec_of(models.tied, rows=7).fingerprint


def test_a_schedule_changes_neither_fingerprint_nor_the_key_of_a_profile_and_a_batch_both() -> None:
    def build(rows: int, steps: int = 100, more: bool = False) -> None:
        loss = models.squared(tf.nn.embedding_lookup(models.table(), models.ids(rows)), rows)
        step = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.5, step, steps, 0.9)
        v1.train.AdagradOptimizer(rate).minimize(loss, step)
        if more:
            v1.summary.scalar("rate", rate)

    first, longer = spec_of(build), spec_of(lambda rows: build(rows, steps=200))
    summed, larger = spec_of(lambda rows: build(rows, more=True)), spec_of(build, rows=8)
    assert first.fingerprint == longer.fingerprint != summed.fingerprint
    assert first.model_key == longer.model_key == summed.model_key != larger.model_key


def _no_trainable(rows: int) -> None:
    v1.get_variable("w", [3], trainable=False)


def _no_update(rows: int) -> None:
    models.dense(tf.ones([rows, 4]))


def _rate_of_the_batch(rows: int) -> None:
    loss = models.squared(models.dense(tf.nn.embedding_lookup(models.table(), models.ids(rows))), rows)
    first = v1.get_default_graph().get_tensor_by_name("y:0")[0, 0]
    v1.train.GradientDescentOptimizer(0.1 * loss * first).minimize(loss)


def _unknown_update(rows: int) -> None:
    w = v1.get_variable("w", [4, 1])
    (gradient,) = tf.gradients(models.squared(tf.ones([rows, 4]) @ w, rows), [w])
    v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, w)])
    y = v1.get_default_graph().get_tensor_by_name("y:0")
    tf.raw_ops.ResourceStridedSliceAssign(ref=w.handle, begin=[0, 0], end=[1, 1], strides=[1, 1], value=y[:1])


def test_rows_written_back_beside_a_recorded_gradient_are_not_one() -> None:
    graph = tf.Graph()
    with graph.as_default():
        emb, x = models.table(), models.ids(6)
        loss = models.squared(models.dense(tf.nn.embedding_lookup(emb, x)), 6)
        with v1.control_dependencies([v1.train.GradientDescentOptimizer(0.1).minimize(loss)]):
            v1.scatter_update(emb, x, tf.nn.l2_normalize(tf.gather(emb.read_value(), x), 1))
            v1.scatter_add(emb, x, tf.ones([6, models.WIDTH]))
    sources = find_gradients(capture(graph, by_layouts=False))
    assert [(s.part, s.found_by) for s in sources] == [("emb", "recorded"), ("w", "recorded")]


def test_a_gradient_that_the_script_computes_beside_recorded_ones_is_no_unrecorded_one() -> None:
    graph = tf.Graph()
    with graph.as_default():
        emb, x = models.table(), models.ids(6)
        w, y = v1.get_variable("w", [models.WIDTH, 1]), v1.placeholder(tf.float32, [6, 1])
        rows = tf.nn.embedding_lookup(emb, x)
        error = rows @ w - y
        (gradient,) = tf.gradients(tf.reduce_mean(tf.square(error)), [emb])
        by_hand = 2 / 6 * tf.matmul(rows, error, transpose_a=True)
        v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, emb), (by_hand, w)])
    found = analyse(graph)
    assert {s.part: s.found_by for s in found.sources} == {"emb": "recorded", "w": "computed by the script"}
    assert not any("not recorded" in note for note in found.spec.notes)


def _written_from_the_batch(rows: int) -> None:
    models.two_lookups(rows, "Adagrad", False)
    w = v1.trainable_variables()[-1]
    v1.assign_sub(w, tf.zeros(w.shape) + v1.get_default_graph().get_tensor_by_name("y:0")[0, 0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_no_trainable, "The graph has no trainable variable"),
        (_no_update, r"None of the 1 trainable variables \(w\) is updated from its gradient. Call optimizer.minimize"),
        (
            _rate_of_the_batch,
            "depends on each worker's own batch and is not its gradient: a gradient taken within a loop",
        ),
        (_unknown_update, "ResourceStridedSliceAssign .* updates variable 'w', but Parallax does not know how"),
        (_written_from_the_batch, "AssignSubVariableOp .*depends on each worker's own batch and is not its gradient"),
    ],
)
def test_a_graph_that_cannot_be_right_is_refused_and_the_op_named(build: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        spec_of(build)


def test_a_graph_that_was_built_too_early_is_told_so_before_all_else() -> None:
    graph = tf.Graph()
    with graph.as_default():
        _rate_of_the_batch(6)
    del graph._parallax_gradient_records
    with pytest.raises(
        GraphError,
        match="^Import parallax before building the graph.* The gradients of emb, w were not recorded .*depends on",
    ):
        analyse(graph, layouts=False)
