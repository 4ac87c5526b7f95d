"""What is exported, loaded by TensorFlow alone, gives what the user's graph gives; and what cannot be exported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.entry import cli
from parallax.graph.view import GraphView
from parallax.runtime.checkpoint.commands.export import export_model, export_plain
from parallax.runtime.checkpoint.commands.forward import forward_graph, output_candidates
from parallax.runtime.checkpoint.format.stored_tensors import OWN_KEYS

v1 = tf.compat.v1
FOLDER_BYTES = 64  # four rows of `emb` in a chunk
IDS = [1, 2, 10]

# Both loaders of TensorFlow, in a process that knows nothing of this project.
LOADER = """
import json, sys
import tensorflow as tf
found = {}
for name, (folder, output, feeds) in json.loads(sys.argv[1]).items():
    called = tf.saved_model.load(folder).signatures["serving_default"]
    specs = called.structured_input_signature[1]
    values = called(**{key: tf.constant(value, specs[key].dtype) for key, value in feeds.items()})
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        again = session.run(
            signature.outputs[output].name, {signature.inputs[key].name: value for key, value in feeds.items()}
        )
        ops = sorted({op.type for op in session.graph.get_operations()})
    found[name] = [values[output].numpy().tolist(), again.tolist(), ops]
assert not any(module.startswith(("parallax", "horovod")) for module in sys.modules)
print(json.dumps(found))
"""


def trained(graph: Any, loss: Any) -> None:
    """Adds what trains a model."""
    step = v1.train.get_or_create_global_step()
    v1.train.AdamOptimizer(0.05).minimize(loss, global_step=step, name="train")


def by_reference() -> None:
    ids = v1.placeholder(tf.int64, [None], name="ids")
    labels = v1.placeholder(tf.float32, [None, 1], name="labels")
    keep = v1.placeholder_with_default(1.0, [], name="keep")
    with v1.variable_scope("model", use_resource=False):
        emb = v1.get_variable("emb", [11, 4], partitioner=v1.fixed_size_partitioner(3))
        w = v1.get_variable("w", [4, 1])
    logits = tf.matmul(v1.nn.embedding_lookup(emb, ids) * keep, w, name="logits")
    tf.sigmoid(logits, name="probability")
    trained(ids.graph, tf.reduce_mean(tf.square(logits - labels), name="loss"))


def by_resource() -> None:
    ids = v1.placeholder(tf.int64, [None], name="ids")
    labels = v1.placeholder(tf.float32, [None, 1], name="labels")
    with v1.variable_scope("model", use_resource=True):
        emb, w = v1.get_variable("emb", [11, 4]), v1.get_variable("w", [4, 1])
    rows = tf.nn.embedding_lookup(emb, ids)
    rows = tf.cond(tf.reduce_sum(ids) > 5, lambda: rows + tf.nn.embedding_lookup(emb, ids), lambda: rows)
    _, rows = tf.while_loop(lambda i, _: i < 3, lambda i, r: (i + 1, r * tf.reduce_sum(w)), (0, rows))
    logits = tf.matmul(rows, w, name="logits")
    trained(ids.graph, tf.reduce_mean(tf.square(logits - labels), name="loss"))


def from_a_pipeline() -> None:
    data = tf.data.Dataset.from_tensors((["one", "two", "three"], [[1.0], [2.0], [3.0]])).repeat()
    iterator = v1.data.make_initializable_iterator(data)
    words, labels = iterator.get_next()
    pairs = tf.lookup.KeyValueTensorInitializer(["one", "two"], tf.constant([1, 2], tf.int64))
    ids = tf.lookup.StaticHashTable(pairs, 10).lookup(words)
    emb = v1.get_variable("emb", [11, 4])
    logits = tf.reduce_sum(tf.nn.embedding_lookup(emb, ids), 1, keepdims=True, name="logits")
    trained(emb.graph, tf.reduce_mean(tf.square(logits - labels), name="loss"))


def saved(folder: Path, build: Callable[[], None], feeds: dict[str, Any], output: str) -> tuple[Any, Any]:
    """A graph whose trained variables are in a checkpoint in the folder, and the output that it then gives."""
    graph = tf.Graph()
    with graph.as_default(), v1.Session() as session:
        build()
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        session.run([op for op in graph.get_operations() if op.type == "MakeIterator"])
        session.run("train", {} if not feeds else {**feeds, "labels:0": [[1.0], [2.0], [3.0]]})
        v1.train.Saver().save(session, str(folder / "model.ckpt"), 1, write_meta_graph=False)
        return graph, session.run(output, feeds)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> tuple[Any, str]:
    """A graph and the folder with its checkpoint."""
    folder = tmp_path_factory.mktemp("model")
    return saved(folder, by_reference, {"ids:0": IDS}, "logits:0")[0], str(folder)


@pytest.mark.rotates
def test_exported_models_give_in_tensorflow_alone_what_their_graphs_give(tmp_path: Path) -> None:
    cases: dict[str, tuple[Callable[[], None], dict[str, Any], dict[str, Any]]] = {
        "reference": (by_reference, {"ids:0": IDS}, {"ids": IDS}),
        "resource": (by_resource, {"ids:0": IDS}, {"ids": IDS}),
        "pipeline": (from_a_pipeline, {}, {"IteratorGetNext": ["one", "two", "three"]}),
    }
    wanted, asked = {}, {}
    for name, (build, feeds, given) in cases.items():
        graph, wanted[name] = saved(tmp_path / name, build, feeds, "logits:0")
        folder = str(tmp_path / f"{name}-model")
        forward = export_model(graph, str(tmp_path / name), folder, [], ["out=logits"], FOLDER_BYTES)
        assert list(forward.inputs) == list(given) and not any("Adam" in op for op in forward.variables)
        asked[name] = (folder, "out", given)
    done = subprocess.run(
        [sys.executable, "-c", LOADER, json.dumps(asked)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, (called, run, ops) in json.loads(done.stdout).items():
        np.testing.assert_array_equal(np.float32(called), wanted[name], err_msg=name)
        np.testing.assert_array_equal(np.float32(run), wanted[name], err_msg=name)
        assert not [op for op in ops if "Apply" in op or "Iterator" in op or op.startswith("VariableV2")], ops


def test_inputs_may_be_cut_anywhere_and_have_names(model: tuple[Any, str], tmp_path: Path) -> None:
    graph, checkpoint = model
    forward = export_model(graph, checkpoint, str(tmp_path / "x"), ["z=logits"], ["probability"])
    assert forward.inputs == {"z": "logits:0"} and forward.outputs == {"probability": "probability:0"}
    assert forward.variables == () and {node.op for node in forward.graph_def.node} == {"Placeholder", "Sigmoid"}


def test_candidates_are_what_meets_labels_and_what_nobody_reads(model: tuple[Any, str]) -> None:
    view = GraphView(model[0].as_graph_def(add_shapes=True))
    assert output_candidates(view) == ["logits:0", "probability:0", "loss:0"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([], [], "Among them may be: logits:0, probability:0, loss:0."),
        ([], ["logit"], "--output must name a tensor of the graph, and logit is none. Near it are: logits"),
        ([], ["logits:1"], "and logits:1 is none"),
        ([], ["a=logits", "a=probability"], "a is given twice"),
        (["labels"], ["logits"], "logits:0 needs ids:0 too. Add --input ids:0"),
        ([], ["train"], "--output must name a tensor of the graph, and train is none"),
        ([], ["model/w/Assign"], "must not write variables, and model/w/Assign:0 needs model/w/Assign (Assign), which"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    model: tuple[Any, str], inputs: list[str], outputs: list[str], words: str
) -> None:
    with pytest.raises(CheckpointError) as error:
        forward_graph(model[0], inputs, outputs)
    assert words in str(error.value), error.value


def test_python_pipelines_and_local_variables_are_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        called = v1.py_func(lambda: np.float32(1), [], tf.float32, name="python")
        data = v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        local = v1.get_variable("local", [2], collections=[v1.GraphKeys.LOCAL_VARIABLES])
        tf.add(called, 1.0, name="calls")
        tf.add(data, 1, name="reads")
        tf.add(local, 1.0, name="adds")
    with pytest.raises(CheckpointError, match="must not call Python"):
        forward_graph(graph, [], ["calls"])
    with pytest.raises(CheckpointError, match="must not read an input pipeline"):
        forward_graph(graph, ["local"], ["reads"])
    with pytest.raises(CheckpointError, match=r"global variables only.*adds:0 depends on local, which is not one"):
        export_model(graph, str(tmp_path), str(tmp_path / "out"), [], ["adds"])


def test_checkpoints_and_folders_that_do_not_fit_are_refused(model: tuple[Any, str], tmp_path: Path) -> None:
    graph, checkpoint = model
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(CheckpointError, match="full is not empty. Name another"):
        export_model(graph, checkpoint, str(tmp_path / "full"), [], ["logits"])
    with pytest.raises(CheckpointError, match="full is neither"):
        export_model(graph, str(tmp_path / "full"), str(tmp_path / "out"), [], ["logits"])
    with tf.Graph().as_default() as other:
        tf.add(v1.get_variable("model/w", [5, 1]), 1.0, name="logits")
    with pytest.raises(
        CheckpointError, match=r"model/w is \[5, 1\] in the graph and \[4, 1\] in it. Name a checkpoint"
    ):
        export_model(other, checkpoint, str(tmp_path / "out"), [], ["logits"])
    assert not (tmp_path / "out").exists()


def test_a_plain_checkpoint_has_all_but_the_keys_of_this_project(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("emb", [11, 4], partitioner=v1.fixed_size_partitioner(2))
        v1.get_variable("words", initializer=tf.constant(["one", "two"]))
        own = v1.get_variable("own", initializer=tf.constant(3))
        session.run(v1.global_variables_initializer())
        kept = {one.op.name: one for one in v1.global_variables() if one is not own and "emb" not in one.name}
        parts = [one for one in v1.global_variables() if "emb" in one.name]
        v1.train.Saver({**kept, "emb": parts, f"{OWN_KEYS}own": own}).save(
            session, str(tmp_path / "a" / "model.ckpt-7")
        )
        emb, words = session.run([tf.concat(parts, 0), kept["words"]])
    prefix = export_plain(str(tmp_path / "a"), str(tmp_path / "b"), FOLDER_BYTES)
    assert prefix == tf.train.latest_checkpoint(str(tmp_path / "b")) == str(tmp_path / "b" / "model.ckpt-7")
    reader = tf.train.load_checkpoint(prefix)
    assert set(reader.get_variable_to_shape_map()) == {"emb", "words"}
    np.testing.assert_array_equal(reader.get_tensor("emb"), emb)
    np.testing.assert_array_equal(reader.get_tensor("words"), words)


SCRIPT = """
import tensorflow.compat.v1 as tf
import parallax
graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int64, [None], name="ids")
    emb = tf.get_variable("emb", [11, 4])
    out = tf.reduce_sum(tf.nn.embedding_lookup(emb, ids), name="out")
    tf.train.GradientDescentOptimizer(0.1).minimize(out)
parallax.parallel_run(graph)
"""


def test_the_command_takes_the_graph_of_a_script(tmp_path: Path, capsys: Any) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    with tf.Graph().as_default(), v1.Session() as session:
        session.run(v1.get_variable("emb", [11, 4]).initializer)
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), 3)

    def status(*words: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            cli.main(["checkpoint", "export", *words, str(tmp_path), str(folder)])
        return ended.value.code

    assert status() == 1 and "name the script, or give --plain" in capsys.readouterr().err
    assert status("--plain", "--output", "out") == 1 and "remove script, --input" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(["checkpoint", "export", "--output", "out", str(tmp_path), str(folder), str(script)])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"input ids: ids:0\noutput out: out:0\nWritten: {folder}, 1 variable\n"
    assert (folder / "saved_model.pb").is_file()
