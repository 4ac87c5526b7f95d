"""Slices, ranges of rows and the files themselves, without other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import ConfigError
from parallax.graph.batches import mark_batch
from parallax.graph.view import GraphView
from parallax.runtime.checkpoint.checkpoints import check_global_step
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.folder import latest
from parallax.runtime.checkpoint.format.sorted_string_table import DamagedCheckpoint
from parallax.runtime.checkpoint.format.stored_rows import copy, stored_parts
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry, chunks, stored_variables
from parallax.runtime.checkpoint.format.writer import Writer
from parallax.runtime.checkpoint.step_runs import _writers
from parallax.settings.parts import CheckPointConfig

v1 = tf.compat.v1
WHOLE = np.arange(44, dtype=np.float32).reshape(11, 4)


def saved(path: Path, build: Any) -> str:
    """What tf.train.Saver writes for a graph."""
    with tf.Graph().as_default(), v1.Session() as session:
        build()
        session.run(v1.global_variables_initializer())
        return str(v1.train.Saver().save(session, str(path / "model.ckpt"), write_meta_graph=False))


def test_chunks_are_whole_rows_within_the_limit() -> None:
    assert chunks(11, 16, 64) == [(0, 4), (4, 4), (8, 3)]
    assert chunks(2, 100, 64) == [(0, 1), (1, 1)]
    assert chunks(3, 0, 64) == [(0, 3)]
    assert chunks(0, 16, 64) == [(0, 0)]


def test_slices_are_named_as_saver_names_them() -> None:
    part = CheckpointEntry("emb/part_1", "emb", "float32", 4, (5, 4), (11, 4), (6, 0), is_part=True)
    assert part.slice_spec(0, 5) == "11 4 6,5:0,4"
    assert part.slice_spec(2, 1) == "11 4 8,1:0,4"
    whole = CheckpointEntry("emb", "emb", "float32", 4, (11, 4), (11, 4), (0, 0), is_part=False)
    assert (whole.slice_spec(0, 11), whole.slice_spec(3, 2)) == ("", "11 4 3,2:0,4")
    assert CheckpointEntry("step", "step", "int64", 8, (), (), (), is_part=False).slice_spec(0, 1) == ""


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_any_box_of_what_saver_wrote_is_read(tmp_path: Path, axis: int | None) -> None:
    partitioner = None if axis is None else v1.fixed_size_partitioner(3, axis=axis)

    def initial(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        row, column = partition_info.var_offset if partition_info else (0, 0)
        return WHOLE[row : row + shape[0], column : column + shape[1]]

    prefix = saved(tmp_path, lambda: v1.get_variable("emb", [11, 4], initializer=initial, partitioner=partitioner))
    opened = Bundle(prefix)
    for first in range(11):
        for count in range(1, 12 - first):
            np.testing.assert_array_equal(opened.read("emb", (first, 0), (count, 4)), WHOLE[first : first + count])
    np.testing.assert_array_equal(opened.read("emb", (2, 1), (5, 2)), WHOLE[2:7, 1:3])
    ranges = opened.ranges("emb", 0, 11, 16, 64)
    assert sum(count for _, count in ranges) == 11 and max(count for _, count in ranges) <= 4


def test_slots_that_saver_has_under_names_of_their_own_for_each_part_are_read(tmp_path: Path) -> None:
    def build() -> None:
        with v1.variable_scope("layer"):
            parts = v1.get_variable("parts", [5, 2], partitioner=v1.fixed_size_partitioner(2))
            v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(tf.convert_to_tensor(parts)))

    opened = Bundle(saved(tmp_path / "made", build))
    second = "layer/parts/art_1/Adam"  # by TensorFlow's counting of letters
    assert opened.tensors[second].shape == (5, 2)
    np.testing.assert_array_equal(opened.read(second, (3, 0), (2, 2)), np.zeros((2, 2)))
    with pytest.raises(DamagedCheckpoint, match="a part of .* is missing"):
        opened.read(second, (0, 0), (5, 2))
    writer = Writer(str(tmp_path), 3, 64)
    writer.begin()
    copy(opened, [part for tensor in opened.tensors.values() for part in stored_parts(tensor)], writer, 64)
    with tf.Graph().as_default(), v1.Session() as session:
        build()
        v1.train.Saver().restore(session, writer.finish())


def test_a_table_of_many_names_is_read(tmp_path: Path) -> None:
    names = [f"layer_{i}/kernel" for i in range(300)]  # more than one block of the index
    prefix = saved(tmp_path, lambda: [v1.get_variable(n, initializer=WHOLE[:1] + i) for i, n in enumerate(names)])
    opened = Bundle(prefix)
    assert sorted(opened.tensors) == sorted(names)
    np.testing.assert_array_equal(opened.read(names[217], (0, 0), (1, 4)), WHOLE[:1] + 217)


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    for chunk_bytes, add in ((64, 0), (2**20, 1)):
        writer = Writer(str(tmp_path), 3, chunk_bytes)
        writer.begin()
        for first, count in chunks(11, 16, chunk_bytes):
            one = CheckpointEntry("emb", "emb", "float32", 4, (11, 4), (11, 4), (0, 0), is_part=False)
            writer.add("emb", one.slice_spec(first, count), "float32", WHOLE[first : first + count] + add)
        writer.finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint",
        "model.ckpt-3.data-00000-of-00001",
        "model.ckpt-3.index",
    ]
    assert latest(str(tmp_path)) == str(tmp_path / "model.ckpt-3")
    np.testing.assert_array_equal(tf.train.load_variable(str(tmp_path), "emb"), WHOLE + 1)


@pytest.mark.parametrize("use_resource", [True, False])
def test_what_writes_the_global_step_is_known(use_resource: bool) -> None:
    with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=use_resource):
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", [2])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w), global_step=step)
        tf.identity(step + 1, name="reads")
        writers = _writers(GraphView(graph.as_graph_def(add_shapes=True)), "global_step")
        assert train.name in writers or any(i.op.name in writers for i in [*train.inputs, *train.outputs]), writers
        assert not {name for name in writers if name.startswith(("reads", "w/", "add"))}
        assert [s.key for s in stored_variables(graph)] == ["global_step", "w"]
        check_global_step(graph, CheckPointConfig("here", 5))
    check_global_step(tf.Graph(), CheckPointConfig())
    with pytest.raises(ConfigError, match="named by the global step.*get_or_create_global_step"):
        check_global_step(tf.Graph(), CheckPointConfig("here", 5))
    with tf.Graph().as_default() as graph:
        mark_batch(v1.placeholder(tf.float32, [None]), "train")
    with pytest.raises(ConfigError, match="train_on_batch.*CheckpointManager.*Remove ckpt_config"):
        check_global_step(graph, CheckPointConfig("here", 5))
