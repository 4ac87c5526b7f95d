"""Pass: a run of a full batch has its length as a constant, and not the ops that find it out.

A graph of batches of any length computes shapes in every run: of gradients, of what is summed and exchanged. Where a
graph says how long its batches are but for the last of an epoch, a batch that is so long is fed elsewhere: to a
placeholder whose shape is known, from which the batch's own takes it. TensorFlow prepares a graph for each set of feeds
anew, so in that of full batches it folds all that depends on lengths alone. Both compute the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parallax.graph.batches import full_length, place_of_share
from parallax.transform.building.editor import Worker
from parallax.types import GraphDef, NodeDef, Value


@dataclass(frozen=True, slots=True)
class FullBatch:
    """Where a batch is fed.

    Attributes:
        batch: the tensor that is fed a batch of any length.
        full: the tensor that is fed in its place where the batch is full.
        rows: how many of a full batch this worker has.
    """

    batch: str
    full: str
    rows: int


def add_full_batches(graph_def: GraphDef, worker: Worker) -> tuple[FullBatch, ...]:
    """Gives the placeholders of a worker's graph, which is changed, another one each for full batches."""
    nodes = {node.name: node for node in graph_def.node}
    found = []
    for name, node in nodes.items():
        first, end = place_of_share(full_length(node), worker.rank, worker.size)
        if node.op == "Placeholder" and first < end and f"{name}/full" not in nodes:
            _add_full(graph_def, node, end - first)
            found.append(FullBatch(f"{name}:0", f"{name}/full:0", end - first))
    return tuple(found)


def led_to_full(feeds: Mapping[str, Value], full: Sequence[FullBatch]) -> dict[str, Value] | None:
    """The feeds of a run, by the tensors to which they go where all its batches are full; None where they are not.

    Args:
        feeds: tensor -> what it is fed.
        full: of the batches among them.
    """
    if not full or any(tuple(getattr(feeds[one.batch], "shape", ()))[:1] != (one.rows,) for one in full):
        return None
    led = {one.batch: one.full for one in full}
    return {led.get(name, name): value for name, value in feeds.items()}


def _add_full(graph_def: GraphDef, batch: NodeDef, rows: int) -> None:
    dtype, shape = batch.attr["dtype"], batch.attr["shape"]
    full = graph_def.node.add(op="Placeholder", name=f"{batch.name}/full", device=batch.device)
    full.attr["dtype"].CopyFrom(dtype)
    full.attr["shape"].CopyFrom(shape)
    full.attr["shape"].shape.dim[0].size = rows
    # Of what is fed, TensorFlow believes no shape.
    known = graph_def.node.add(op="EnsureShape", name=f"{full.name}/known", input=[full.name], device=batch.device)
    known.attr["T"].CopyFrom(dtype)
    known.attr["shape"].CopyFrom(full.attr["shape"])
    batch.op = "PlaceholderWithDefault"
    batch.input.append(known.name)
