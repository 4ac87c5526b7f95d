"""Rules for rows that are dealt out and put back, or added up, by numbers that say to which row of a batch they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallax.analysis.axis_part import MIXED, Part
from parallax.graph_view import GraphView, split_tensor

if TYPE_CHECKING:
    from parallax.analysis.batch_axis import BatchAxes


def stitch(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> Part | None:
    """Rows looked up part by part and put back where their ids were, as embedding_lookup does with several parts."""
    view, count = axes.view, len(inputs) // 2
    places = {split_tensor(t)[0] for t in inputs[:count]}
    parts = {split_tensor(view.inputs(split_tensor(t)[0])[1])[0] for t in inputs[count:] if _is_gather(view, t)}
    if len(places) != 1 or len(parts) != 1 or not all(_is_gather(view, t) for t in inputs[count:]):
        return None
    (places_by,), (ids_by,) = places, parts
    if view.op(places_by) != "DynamicPartition" or view.op(ids_by) != "DynamicPartition":
        return None
    ids, numbers = view.inputs(ids_by)[0], split_tensor(view.inputs(places_by)[0])[0]
    same_parts = view.inputs(ids_by)[1] == view.inputs(places_by)[1]
    if not same_parts or view.op(numbers) != "Range" or axes.constant(view.inputs(numbers)[0]) != 0:
        return None
    size = split_tensor(view.inputs(numbers)[1])[0]
    whole = view.inputs(size)[0] if view.op(size) == "Size" else ids
    part = axes.known_part(whole)
    return part if part is not None and part.axis in (0, MIXED) and len(axes.shape(whole) or ()) == 1 else None


def _is_gather(view: GraphView, tensor: str) -> bool:
    return view.op(split_tensor(tensor)[0]) in ("GatherV2", "Gather", "ResourceGather")
