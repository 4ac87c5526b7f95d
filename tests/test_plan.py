"""`parallax.plan`: the plan of a graph without a job, as a notebook asks for it."""

import sys
import types
from dataclasses import replace

import pytest
import tensorflow.compat.v1 as tf

import parallax
from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.entry import api
from parallax.plans.plan import one_host, plan_from_json
from parallax.report.plan_table import plan_table
from parallax.settings.environment import Role


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default() as built:
        table = tf.get_variable("emb", [11, 4])
        weights = tf.get_variable("weights", [4, 1])
        rows = tf.nn.embedding_lookup(table, tf.placeholder(tf.int64, [6]))
        tf.train.AdamOptimizer().minimize(tf.reduce_mean(tf.square(tf.matmul(rows, weights))))
    return built


def test_a_plan_is_what_the_command_prints(graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # without a file, as a notebook's
    found = parallax.plan(graph, parallax_config=parallax.Config(workers=3, routes={"emb": "allgather"}))
    config = parallax.Config(routes={"emb": "allgather"})
    expected = plan_for(analyse(graph), one_host(3), config)
    assert plan_from_json(found.to_json()) == expected
    assert f"{found}\n" == plan_table(expected) and "Plan for 3 workers" in str(found)
    assert found.variable("emb").route == "allgather"


def test_a_plan_with_another_value_has_a_text_too(graph):
    found = parallax.plan(graph, sync=False)
    assert not found.synchronous and len(found.servers) == 1
    assert "note: as told" in str(replace(found, notes=("as told",)))
    assert found == parallax.plan(graph, sync=False)


def test_machines_and_the_command_line_are_those_of_a_job(graph, tmp_path, monkeypatch):
    (tmp_path / "machines").write_text("localhost slots=1\nfar.invalid slots=2\n")
    assert parallax.plan(graph, tmp_path / "machines").hosts == (1, 2)
    monkeypatch.setenv("PARALLAX_WORKERS", "4")
    assert parallax.plan(graph, tmp_path / "machines").num_workers == 4


def test_statistics_of_normalizations_follow_the_setting_of_each_call():
    with tf.Graph().as_default() as built:
        images = tf.placeholder(tf.float32, [None, 4, 4, 2])
        scale, offset = tf.get_variable("scale", [2]), tf.get_variable("offset", [2])
        loss = tf.reduce_mean(tf.square(tf.nn.fused_batch_norm(images, scale, offset)[0]))
        tf.train.AdamOptimizer().minimize(loss)
    for batch_norm in ("global", "own", "global", "own"):
        notes = parallax.plan(built, parallax_config=parallax.Config(workers=2, batch_norm=batch_norm)).notes
        assert any("statistics of the global batch" in note for note in notes) == (batch_norm == "global")


def test_what_a_job_would_refuse_is_refused(graph):
    with pytest.raises(parallax.ConfigError, match="parallax_config must be a parallax.Config"):
        parallax.plan(graph, parallax_config={"workers": 2})
    with pytest.raises(parallax.PlanError, match="no variable 'embb'"):
        parallax.plan(graph, parallax_config=parallax.Config(routes={"embb": "ps"}))
    with pytest.raises(parallax.GraphError, match="must be a tf.Graph"):
        parallax.plan(None)


def test_every_role_of_a_process_has_its_function():
    assert set(api._BY_ROLE) == set(Role)
