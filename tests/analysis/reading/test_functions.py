"""Gradients and shapes of graphs with functions, and what recording leaves alone; no cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.propagation.classify import classify
from parallax.analysis.reading.capture import CapturedGraph, capture
from parallax.analysis.reading.construction import record
from parallax.analysis.reading.gradients import find_gradients
from parallax.base.errors import GraphError
from parallax.graph.spec import OPEN_SHAPE
from tests.equality import gradient_models, models

v1 = tf.compat.v1
record.install()
ROOT = Path(__file__).resolve().parents[3]


def captured(build: Any, *args: Any) -> CapturedGraph:
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=True):
        build(*args)
    return capture(graph)


def test_an_input_taken_twice_in_a_function_stays_twice() -> None:
    view = captured(gradient_models.repeated_inputs, 6).view
    (product,) = [n for n in view.nodes if n.endswith("PartitionedCall/mul")]
    assert view.inputs(product)[0] == view.inputs(product)[1]
    assert {len(view.inputs(n)) for n in view.nodes if view.op(n) == "ConcatV2"} == {3}


def test_gradients_taken_in_a_function_are_found_at_every_call() -> None:
    found = find_gradients(captured(gradient_models.MODELS["gradients in nested functions"], 6))
    assert {(s.part, s.found_by) for s in found} == {("emb", "recorded"), ("w", "recorded")}
    assert len({(s.part, s.values.split("/")[0]) for s in found}) == 4  # of each variable in both calls
    assert all(s.outside for s in found)


def test_a_gradient_in_a_function_leaves_autodiff_within_it() -> None:
    found = captured(gradient_models.update_in_a_function, 6)
    (of_w,) = [s for s in find_gradients(found) if s.part == "w"]
    assert all(found.view.nodes[node].name.startswith("StatefulPartitionedCall/") for node in of_w.outside)


def test_gradients_in_functions_of_a_graph_from_a_file_are_found_by_their_scopes() -> None:
    graph, again = tf.Graph(), tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=True):
        gradient_models.MODELS["gradients in a function"](6)
        meta = v1.train.export_meta_graph()
    with again.as_default():
        v1.train.import_meta_graph(meta)
    recorded, found = (find_gradients(capture(g, by_layouts=False)) for g in (graph, again))
    assert {s.found_by for s in found} == {"name scope"}
    assert {(s.part, s.values, s.outside) for s in found} <= {(s.part, s.values, s.outside) for s in recorded}
    assert {s.part for s in found} == {"emb", "w"}


def test_shapes_set_on_a_loop_are_known_beside_a_function() -> None:
    def build() -> None:
        x = v1.placeholder(tf.int32, [6, 3])
        body = lambda i, total: (i + 1, total + tf.nn.embedding_lookup(models.table(), x[:, i]))  # noqa: E731
        v1.disable_control_flow_v2()
        try:
            _, h = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.zeros([6, models.WIDTH])])
        finally:
            v1.enable_control_flow_v2()
        loss = tf.reduce_mean(tf.function(tf.square)(models.dense(h)), name="loss")
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    def without_function() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tf, "function", lambda f: f)
            build()

    with_call, plain = captured(build).view, captured(without_function).view
    shapes = {t: plain.shape(t) for n in plain.nodes if n.startswith("gradients/while/") for t in plain.outputs(n)}
    assert shapes
    assert {t: with_call.shape(t) for t in shapes} == shapes


@pytest.mark.parametrize("resource", [True, False])
def test_a_variable_of_open_shape_has_that_of_its_initial_value_or_none(resource: bool) -> None:
    def specs(build: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        graph = tf.Graph()
        with graph.as_default(), v1.variable_scope("", use_resource=resource):
            build(6)
        spec, _ = classify(capture(graph))
        notes = [note for note in spec.notes if "not proven" not in note]  # of products of which no shape is known
        assert bool(notes) == (build is gradient_models.open_shape)
        return {v.name: (v.cls.value, v.shape) for v in spec.variables}

    rows = "sparse" if resource else "not shardable"  # TensorFlow itself gives the resource variable the known shape
    assert specs(gradient_models.open_shape_of_rows) == {"emb": (rows, (11, 4)), "w": ("dense", (4, 1))}
    assert specs(gradient_models.open_shape)["w"] == ("dense", OPEN_SHAPE)


def test_rows_of_a_variable_without_any_known_shape_are_refused() -> None:
    def build() -> None:
        start = v1.placeholder_with_default(tf.ones([5, 4]), None)
        emb = v1.get_variable("emb", initializer=start, validate_shape=False)
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.nn.embedding_lookup(emb, models.ids(6))))

    with pytest.raises(
        GraphError,
        match="The shape of variable 'emb', whose rows are looked up, is unknown, and so is",
    ):
        classify(captured(build))


PRINTS = """
import sys
if sys.argv[1] == "recorded":
    from parallax.analysis.reading.construction import record
    record.install()
import tensorflow as tf
from tests.equality import gradient_models, models
for name in ("tape", "function", "loop", "alternating, same"):
    gradient_models.MODELS[name] = models.MODELS[name]
for name, build in gradient_models.MODELS.items():
    graph = tf.Graph()
    with graph.as_default():
        build(6)
    for node in graph.as_graph_def().node:
        print(name, node.name, node.op, *node.input)
    for number, function in enumerate(graph.as_graph_def().library.function):
        print(name, number, *(f"{node.name} {node.op} {len(node.input)}" for node in function.node_def))
"""


@pytest.mark.rotates
def test_recording_changes_no_op_of_any_graph() -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", PRINTS, how], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for how in ("recorded", "plain")
    ]
    recorded, plain = (run.communicate(timeout=300)[0].splitlines() for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert {line.split(" ")[0] for line in plain} >= {"adapted", "tape"}
    assert recorded == plain
