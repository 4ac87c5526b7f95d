"""Pass: makes the batch length a constant in runs of a full batch, in place of the ops that compute it.

A graph of batches of any length computes shapes in every run: of gradients, of sums and of exchanges. Where a graph
states the length of all its batches but the last of an epoch, a batch of that length is fed to another placeholder, of
known shape, from which the batch's own placeholder reads. TensorFlow optimizes a graph for each set of feeds, so in
that of full batches it folds everything that depends on lengths alone. Both variants compute the same values, but all
workers must run the same variant: a collective of lengths may be folded in one and not in the other, and a share of a
shorter batch may be as long as that of a full one. So the length of the global batch selects the variant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from parallax.base.types import DType, GraphDef, NodeDef, Value
from parallax.graph.batches import batch_of, full_length, length_of_batch, locate_part
from parallax.transform.building.editor import Worker


@dataclass(frozen=True, slots=True)
class FullBatch:
    """The feeds of a batch.

    Attributes:
        batch: the tensor that is fed a batch of any length.
        full: the tensor that is fed instead where the batch is full.
        rows: the number of this worker's rows of a full batch.
        length: the tensor that is fed the length of the global batch.
        total: that of a full one.
    """

    batch: str
    full: str
    rows: int
    length: str
    total: int


def add_full_batches(
    graph_def: GraphDef, worker: Worker, micro_batches: int = 1, cut: Collection[str] = ()
) -> tuple[FullBatch, ...]:
    """Adds a second placeholder for full batches to each batch placeholder of a worker's graph, which is modified.

    Args:
        graph_def: the graph.
        worker: the worker whose graph it is.
        micro_batches: the number of micro-batches of some steps; these are full where all have one length.
        cut: the names of these steps.
    """
    nodes = {node.name: node for node in graph_def.node}
    batches = []
    marked = [(name, node, full_length(node)) for name, node in nodes.items() if node.op == "Placeholder"]
    for name, node, of_all in marked:
        begin, after = locate_part(of_all, worker.island, worker.islands)
        total = after - begin
        length = length_of_batch(nodes, node) if total else ""
        if batch_of(node) in cut:
            total = total // micro_batches if total % (micro_batches * worker.size) == 0 else 0
        if total < worker.size or not length or f"{name}/full" in nodes:
            continue
        first, end = locate_part(total, worker.rank, worker.size)
        _add_full(graph_def, node, end - first)
        batches.append(FullBatch(f"{name}:0", f"{name}/full:0", end - first, f"{length}:0", total))
    return tuple(batches)


def redirect_to_full(feeds: Mapping[str, Value], full: Sequence[FullBatch]) -> dict[str, Value] | None:
    """The feeds of a run, redirected to the placeholders of full batches; None where some batch is not full.

    Args:
        feeds: tensor -> its value, including the lengths of global batches.
        full: the batches among them.
    """
    if not full or not all(_is_full(one, feeds) for one in full):
        return None
    led = {one.batch: one.full for one in full}
    return {led.get(name, name): value for name, value in feeds.items()}


def _is_full(one: FullBatch, feeds: Mapping[str, Value]) -> bool:
    length = feeds.get(one.length)
    has_rows = tuple(getattr(feeds[one.batch], "shape", ()))[:1] == (one.rows,)
    return has_rows and length is not None and int(length) == one.total


def _add_full(graph_def: GraphDef, batch: NodeDef, rows: int) -> None:
    dtype, device = batch.attr["dtype"], batch.device
    shape = TensorShapeProto()
    shape.CopyFrom(batch.attr["shape"].shape)
    shape.dim[0].size = rows
    full = graph_def.node.add(op="PlaceholderWithDefault", name=f"{batch.name}/full", device=device)
    full.input.append(_add_default(graph_def, full.name, dtype.type, shape, device))
    full.attr["dtype"].CopyFrom(dtype)
    full.attr["shape"].shape.CopyFrom(shape)
    # TensorFlow infers no shape for fed tensors.
    known = graph_def.node.add(op="EnsureShape", name=f"{full.name}/known", input=[full.name], device=device)
    known.attr["T"].CopyFrom(dtype)
    known.attr["shape"].shape.CopyFrom(shape)
    batch.op = "PlaceholderWithDefault"
    batch.input.append(known.name)


def _add_default(graph_def: GraphDef, name: str, dtype: int, shape: TensorShapeProto, device: str) -> str:
    """The default of a full batch's placeholder, which no op reads while no full batch is fed.

    TensorFlow's optimizer makes constants wait for a batch from which they were folded. The default runs for that
    purpose, though it is fed; a plain Placeholder would not run. Any reader would notice its values: NaN, or no row of
    a table.
    """
    kind = tf.as_dtype(dtype)
    lengths = tf.make_tensor_proto([max(dim.size, 0) for dim in shape.dim], tf.int32)
    inputs = {"dims": (tf.int32, lengths), "value": (kind, tf.make_tensor_proto(_make_filler(kind), kind))}
    for part, (of_type, value) in inputs.items():
        node = graph_def.node.add(op="Const", name=f"{name}/default/{part}", device=device)
        node.attr["dtype"].type = of_type.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(value)
    fill = graph_def.node.add(op="Fill", name=f"{name}/default", device=device)
    fill.input.extend(f"{fill.name}/{part}" for part in inputs)
    fill.attr["T"].type, fill.attr["index_type"].type = dtype, tf.int32.as_datatype_enum
    return str(fill.name)


def _make_filler(dtype: DType) -> float | int | bytes | bool:
    """A value that is not a number, or no row of a table."""
    if dtype.is_floating or dtype.is_complex:
        return float("nan")
    if dtype.is_integer:
        return int(dtype.max if dtype.is_unsigned else dtype.min)
    return b"" if dtype == tf.string else False
