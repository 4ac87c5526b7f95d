"""Adds to a graph the losses whose gradients are those of tensors with weights (`grad_ys` of `tf.gradients`).

The gradient of `y` with weights `w` is that of `y * tf.stop_gradient(w)`. As a loss of the forward pass, the product is
read like any other: its weights may be constants that lie along the batch, and be divided by its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parallax.analysis.reading.construction.recorded_gradients import CapturedRecord
from parallax.base.types import Graph, GraphDef, Tensor
from parallax.graph.view import GraphView

_PREFIX = "parallax_weighted_loss"
_SHAPES = "_output_shapes"


def weigh_losses(view: GraphView, records: Sequence[CapturedRecord]) -> tuple[GraphView, tuple[CapturedRecord, ...]]:
    """A graph with weighted losses, and its records, in which these were differentiated.

    Args:
        view: the captured graph.
        records: the records of autodiff.
    """
    if not any(any(record.weights) for record in records):
        return view, tuple(records)
    changed = type(view.graph_def)()
    changed.CopyFrom(view.graph_def)
    weighted_records = []
    for number, record in enumerate(records):
        weights = record.weights or ("",) * len(record.of)
        losses = tuple(
            _add_product(view, changed, f"{_PREFIX}_{number}_{place}", loss, weight) if weight else loss
            for place, (loss, weight) in enumerate(zip(record.of, weights, strict=True))
        )
        weighted_records.append(replace(record, of=losses))
    return GraphView(changed), tuple(weighted_records)


def find_weights(graph: Graph, record: CapturedRecord) -> tuple[list[Tensor], list[Tensor | None]]:
    """(the differentiated tensors, the weights of each) in a graph that was imported from one with weighted losses."""
    losses = [graph.get_tensor_by_name(loss) for loss in record.of]
    weights: list[Tensor | None] = [None] * len(losses)
    for place in (place for place, weight in enumerate(record.weights) if weight):
        losses[place], constant = losses[place].op.inputs
        weights[place] = constant.op.inputs[0]
    return losses, weights


def _add_product(view: GraphView, changed: GraphDef, name: str, loss: str, weight: str) -> str:
    constant = changed.node.add(name=f"{name}/weight", op="StopGradient", input=[weight])
    product = changed.node.add(name=name, op="Mul", input=[loss, f"{name}/weight"])
    for node, like in ((constant, weight), (product, loss)):
        node.attr["T"].type = view.dtype(like)
        shape = node.attr[_SHAPES].list.shape.add()
        dims = view.shape(like)
        if dims is None:
            shape.unknown_rank = True
        for size in dims or ():
            shape.dim.add(size=-1 if size is None else size)
    return f"{name}:0"
