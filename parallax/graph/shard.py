"""Each worker's shard of a dataset, as in Parallax 2019: `shard.shard(dataset)`.

The number of shards and the index of this process's shard are two tensors of the user's graph, equal in all processes
(one shard, index 0). They carry a mark, by which the transform finds them and inserts each worker's values.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.data.ops import dataset_ops

from parallax.base.errors import GraphError
from parallax.base.types import Dataset, NodeDef, Operation, Tensor

MARK = "_parallax_shard"
"""The node attribute that identifies which of the two a node is."""
NUM_SHARDS, SHARD_ID = b"num_shards", b"shard_id"

_COLLECTION = "parallax_shards"
_SHARE = "_parallax_share"
_ONE_FOR_ONE = frozenset(
    """
    MapDataset ParallelMapDataset ParallelMapDatasetV2 PrefetchDataset OptionsDataset ModelDataset
    MaxIntraOpParallelismDataset PrivateThreadPoolDataset
    """.split()
)
"""Datasets with one element for each input element, in order: every second element derives from every second input."""
_PASSED = _ONE_FOR_ONE | frozenset(
    """
    FilterDataset IgnoreErrorsDataset
    ShuffleDataset ShuffleDatasetV2 ShuffleDatasetV3 ShuffleAndRepeatDataset ShuffleAndRepeatDatasetV2 RepeatDataset
    BatchDataset BatchDatasetV2 ParallelBatchDataset PaddedBatchDataset PaddedBatchDatasetV2 MapAndBatchDataset
    """.split()
)
"""Datasets before which a shard may be taken: all shards together still have each element once."""
_CACHES = ("CacheDataset", "CacheDatasetV2")
_FLAT = frozenset(
    """
    FlatMapDataset InterleaveDataset ParallelInterleaveDataset ParallelInterleaveDatasetV2 ParallelInterleaveDatasetV3
    ParallelInterleaveDatasetV4 LegacyParallelInterleaveDatasetV2 UnbatchDataset
    """.split()
)
"""Datasets that expand one element into many: lines or records of a file."""


def mark_of(node: NodeDef) -> bytes:
    """The mark of a node: NUM_SHARDS, SHARD_ID, or empty for a node that is neither."""
    return bytes(node.attr[MARK].s) if MARK in node.attr else b""


def create_num_shards_and_shard_id() -> tuple[Tensor, Tensor]:
    """The number of workers and this worker's rank, as scalar int64 tensors of the default graph.

    They are 1 and 0 where the graph runs without Parallax. All calls for one graph return the same two tensors, which
    may be used anywhere, including functions of datasets.

    Raises:
        GraphError: when TensorFlow executes eagerly, so that there is no graph.
    """
    with tf.init_scope():  # outside functions, where the analysis would not see which tensors differ between workers
        if tf.executing_eagerly():
            raise GraphError(
                "Sharding must be called while the graph for parallel_run is being built, but TensorFlow is executing "
                "eagerly here. Call it inside `with graph.as_default():`."
            )
        graph = tf.compat.v1.get_default_graph()
        made = graph.get_collection(_COLLECTION)
        if not made:
            made = [_mark("num_shards", 1, NUM_SHARDS), _mark("shard_id", 0, SHARD_ID)]
            for tensor in made:
                graph.add_to_collection(_COLLECTION, tensor)
    num_shards, shard_id = made
    return num_shards, shard_id


def shard(dataset: Dataset) -> Dataset:
    """This worker's shard of a dataset: every element goes to exactly one worker.

    The shard is taken as early as possible, so that no worker reads or computes elements of the others:

    - before maps, filters, batches, shuffles, repeats, prefetches and in-memory caches at the end of the dataset;
    - of the files, when the dataset reads at least as many as there are workers; else of their lines or records;
    - of each part of a zip, before its maps.

    It is not taken before anything else (take, skip, concatenate, windows, a cache in a file): there the results are
    sharded, and a preceding shuffle must be seeded, else each worker shuffles otherwise. Shards differ in size when the
    number of elements is no multiple of the workers, when files differ, or when a filter drops more of one; `repeat`
    the dataset, or train a number of steps that all workers have. Changed: 2019 read all elements on every worker,
    dropped those of others, and sharded after a shuffle.

    Args:
        dataset: a `tf.data.Dataset` built in the default graph.

    Returns:
        A dataset of the same elements, of the class's older interface when the given one has it.

    Raises:
        GraphError: when TensorFlow executes eagerly, or a dataset is sharded twice.
    """
    num_shards, shard_id = create_num_shards_and_shard_id()
    _check_not_sharded(dataset._variant_tensor.op)
    tensor, runs = _path(dataset._variant_tensor)
    with tf.name_scope("shard_dataset"):
        to_take = tf.constant(True)
        for number, run in enumerate(runs):
            is_last = number == len(runs) - 1
            here = to_take if is_last else to_take & _is_enough(tensor, num_shards)
            to_take = to_take & ~here
            one = tf.constant(1, tf.int64)
            tensor = _share(tensor, tf.where(here, num_shards, one), tf.where(here, shard_id, one - one))
            for op in run:
                tensor = _rebuilt(op, [tensor])
    shared = dataset_ops._VariantDataset(tensor, dataset.element_spec)
    is_older = isinstance(dataset, dataset_ops.DatasetV1)
    return dataset_ops.DatasetV1Adapter(shared) if is_older else shared


def _mark(name: str, value: int, mark: bytes) -> Tensor:
    """A tensor that shape inference does not fold into the constant that it is before the transform."""
    constant = tf.constant(value, tf.int64, name=f"{name}/default")
    tensor = tf.raw_ops.PlaceholderWithDefault(input=constant, shape=[], name=name)
    tensor.op._set_attr(MARK, attr_value_pb2.AttrValue(s=mark))
    return tensor


def _path(tensor: Tensor) -> tuple[Tensor, list[list[Operation]]]:
    """The earliest tensor that can be sharded, and the dataset ops after it, split where sharding is possible again."""
    runs: list[list[Operation]] = [[]]
    while tensor.op.type in _PASSED or tensor.op.type in _FLAT or _is_cache_in_memory(tensor.op):
        if tensor.op.type in _FLAT:
            runs.insert(0, [])
        runs[0].insert(0, tensor.op)
        tensor = tensor.op.inputs[0]
    return tensor, runs


def _is_cache_in_memory(op: Operation) -> bool:
    if op.type not in _CACHES:
        return False
    name = tf.get_static_value(op.inputs[1])
    return name is not None and name.item() == b""


def _is_enough(tensor: Tensor, num_shards: Tensor) -> Tensor:
    """Whether a dataset has an element for every worker; one of unknown length is taken to have enough."""
    number = tf.raw_ops.DatasetCardinality(input_dataset=tensor)
    return (number < 0) | (number >= num_shards)


def _share(tensor: Tensor, num_shards: Tensor, shard_id: Tensor) -> Tensor:
    """Every `num_shards`-th element from number `shard_id` on, taken before ops that map elements one to one."""
    if tensor.op.type == "ZipDataset" or tensor.op.type in _ONE_FOR_ONE or _is_cache_in_memory(tensor.op):
        parts = tensor.op.inputs if tensor.op.type == "ZipDataset" else tensor.op.inputs[:1]
        return _rebuilt(tensor.op, [_share(part, num_shards, shard_id) for part in parts])
    attributes = tensor.op.node_def.attr
    types = attributes["output_types" if "output_types" in attributes else "Toutput_types"].list.type
    shared = tf.raw_ops.ShardDataset(
        input_dataset=tensor,
        num_shards=num_shards,
        index=shard_id,
        output_types=[tf.as_dtype(number) for number in types],
        output_shapes=[tf.TensorShape(shape) for shape in attributes["output_shapes"].list.shape],
    )
    shared.op._set_attr(_SHARE, attr_value_pb2.AttrValue(b=True))
    return shared


def _rebuilt(op: Operation, datasets: list[Tensor]) -> Tensor:
    """Rebuilds a dataset op on other input datasets, which come first among its inputs."""
    inputs = [*datasets, *op.inputs[len(datasets) :]]
    made = op.graph.create_op(
        op.type, inputs, [o.dtype for o in op.outputs], attrs=dict(op.node_def.attr), op_def=op.op_def
    )
    return made.outputs[0]


def _check_not_sharded(op: Operation) -> None:
    """Refuses to shard a shard, which would leave most elements to no worker."""
    waiting, seen = [op], set()
    while waiting:
        op = waiting.pop()
        if _SHARE in op.node_def.attr:
            raise GraphError(
                f"This dataset is already sharded by {op.name!r}; sharding it again would drop examples. Remove one "
                "of the calls."
            )
        seen.add(op)
        waiting += [i.op for i in op.inputs if i.op not in seen and i.dtype.name == "variant"]
