"""Finds the lengths in a graph for a fixed batch that are multiples of it, from the axes that an open batch opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import combinations
from math import prod
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from parallax.analysis.reading.lowering.infer_shapes import infer_shapes_again
from parallax.base.types import Array, GraphDef, NodeDef
from parallax.graph.control_flow import MERGES
from parallax.graph.view import NEXT_ITERATIONS, GraphView, node_of

_REGROUPS = ("Reshape", "Tile")
"""The ops that derive a multiple of the batch length from another one; results of others have another meaning."""

Dims = tuple[int, ...]
Shape = tuple[int | None, ...]
IsBatch = Callable[[str, int], bool | None]
JOINS = ("ConcatV2", "Pack")
SHAPE_SLOT = {
    "Fill": 0,
    "RandomUniform": 0,
    "RandomStandardNormal": 0,
    "TruncatedNormal": 0,
    "BroadcastTo": 1,
    "Tile": 1,
    "ScatterNd": 2,
    "SparseToDense": 1,
}
"""For ops that create tensors, the input that is the shape, or the number of repetitions."""
LISTS = {
    **dict.fromkeys(("TensorListReserve", "EmptyTensorList"), 0),
    **dict.fromkeys(("TensorListStack", "TensorListFromTensor", "TensorListPopBack", "TensorListConcatV2"), 1),
    **dict.fromkeys(("TensorListGetItem", "TensorListGather"), 2),
}
"""For ops that create or read a list of tensors, the input with the shape of its elements."""
EXAMPLES_SLOT = dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"), 2)
"""For ops whose first input is the shape of the result, the input that has as many examples."""
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask")


_OF_SHAPES = ("Index", "Tidx", "Tmultiples", "Tpaddings", "Tperm", "Tshape")
_SHAPES = ("crop_size", "input_sizes", "size")
"""The names of inputs that are shapes and have no type of their own."""


@cache
def find_shape_slots(op: str) -> tuple[bool, ...]:
    """For each input of an op, by its definition, whether it is a shape, or has an entry for each axis of another."""
    definition = op_def_registry.get(op)
    if definition is None or any(one.number_attr or one.type_list_attr for one in definition.input_arg):
        return ()  # one of several tensors has no fixed input number
    return tuple(one.type_attr in _OF_SHAPES or one.name in _SHAPES for one in definition.input_arg)


_FACTOR = 3
"""Ratio of the other length to the fixed one, which keeps divisibility by parts of the batch."""
_MOST_LETTERS = 160


class OpenLengths(NamedTuple):
    """The former lengths of axes.

    Attributes:
        of_batch: of axes that are multiples of the batch.
        others: of axes next to these that are not; the depth of a OneHot may be computed from the batch length.
        sizes: numbers of entries along some axes of a tensor, including the batch's: a mean over them divides by that.
    """

    of_batch: Set[int] = frozenset()
    others: Set[int] = frozenset()
    sizes: Set[int] = frozenset()


def find_open_lengths(view: GraphView, inferred: GraphView, forward: Set[str]) -> OpenLengths:
    """Compares a graph for a fixed batch with the same graph with an open batch.

    The first open axis of a tensor is the batch's. A length that TensorFlow cannot infer may open others.

    Args:
        view: the graph for the fixed batch.
        inferred: the same with an open batch, which has additional nodes.
        forward: the nodes to compare.
    """
    of_batch, others, sizes, multiples = set[int](), set[int](), set[int](), dict[str, int]()
    for node in inferred.topological_order():
        if node not in view.nodes:
            opened = [(tensor, inferred.shape(tensor)) for tensor in inferred.outputs(node)]
            multiples.update((tensor, 0) for tensor, now in opened if now and now[0] is None)
            continue
        input_multiples = [multiples[tensor] for tensor in inferred.inputs(node) if tensor in multiples]
        is_mixed = any(_is_open(inferred, tensor) and tensor not in multiples for tensor in inferred.inputs(node))
        for tensor in inferred.outputs(node) if node in forward else ():
            fixed, now = view.shape(tensor), inferred.shape(tensor)
            if fixed is None or now is None or len(fixed) != len(now) or None not in now:
                continue
            begun = [(axis, n) for axis, n in enumerate(fixed) if n is not None and now[axis] is None]
            if not begun:
                continue
            axis, length = begun[0]
            others.update(n for n in now if n is not None)
            sizes.update(_find_sizes(fixed, axis))
            is_kept = (
                length in input_multiples or 0 in input_multiples or (input_multiples and view.op(node) in _REGROUPS)
            )
            is_kept = is_kept or (view.op(node) == "ConcatV2" and length == sum(input_multiples))
            if not is_mixed and (is_kept or not input_multiples):
                multiples[tensor] = length
                of_batch.add(length)
    depths = {int(n) for node in view.nodes_of(["OneHot"]) if (n := view.constant(view.inputs(node)[1])) is not None}
    return OpenLengths(of_batch, others - depths, sizes)


def find_open_axis(view: GraphView, inferred: GraphView, tensor: str) -> int | None:
    """The first open axis of a tensor; None where it has none, or another rank in the graph for the fixed batch."""
    return next(iter(find_open_axes(view, inferred, tensor)), None)


def find_open_axes(view: GraphView, inferred: GraphView, tensor: str) -> list[int]:
    """The open axes of a tensor; none where it has another rank in the graph for the fixed batch."""
    before = view.shape(tensor) if node_of(tensor) in view.nodes else inferred.shape(tensor)
    now = inferred.shape(tensor)
    if now is None or before is None or len(now) != len(before):
        return []
    return [axis for axis, n in enumerate(now) if n is None]


def fixed_shape(view: GraphView, tensor: str) -> Dims | None:
    """The shape of a tensor in the graph for the fixed batch."""
    shape = view.shape(tensor)
    return None if shape is None or None in shape else tuple(n for n in shape if n is not None)


def find_stated_lengths(view: GraphView, node: str, numbers: Sequence[int]) -> list[int]:
    """The lengths of a result's axes in the shape that a node is given; 0 for an axis that it repeats."""
    dims = view.shape(view.inputs(node)[0]) if view.op(node) == "Tile" else None
    return list(numbers) if dims is None else [n if one == 1 else 0 for n, one in zip(numbers, dims, strict=False)]


def find_selected_entries(view: GraphView, node: str) -> list[int]:
    """The entries of a vector that a slice selects."""
    vector, *bounds = view.inputs(node)
    values = [view.constant(tensor) for tensor in bounds]
    length = (view.shape(vector) or (0,))[0] or 0
    known = [int(value[0]) for value in values if value is not None and np.shape(value) == (1,)]
    if len(known) < len(values) or any(view.flag(node, mask) for mask in _MASKS):
        return list(range(length))
    places = list(range(length))
    return [places[known[0]]] if view.flag(node, "shrink_axis_mask") else places[slice(*known)]


def find_reshaped_axes(
    view: GraphView,
    inferred: GraphView,
    node: str,
    length: int,
    find_axes_of: Callable[[str, Shape], list[int] | None],
    is_batch: IsBatch,
) -> tuple[list[int], bool] | None:
    """(the axes of a Reshape's result that may be the batch's, whether as many elements lie before one as before).

    None where the Reshape does not read the batch.

    Args:
        view: the graph for the fixed batch.
        inferred: the same with an open batch.
        node: the Reshape.
        length: of the fixed batch.
        find_axes_of: (tensor, shape) -> the axes that must be the batch's; None where that is undecided.
        is_batch: (tensor, axis) -> whether the axis is the batch's; None where that is unknown.
    """
    tensor, made = inferred.inputs(node)[0], fixed_shape(view, f"{node}:0") or ()
    if inferred.shape(tensor) is None:
        certain = find_axes_of(f"{node}:0", made) or []
        return (certain, False) if len(certain) == 1 else None
    fixed, axis = fixed_shape(view, view.inputs(node)[0]), find_open_axis(view, inferred, tensor)
    if fixed is None or axis is None:
        return None
    multiples = [place for place, n in enumerate(made) if n % length == 0 and is_batch(f"{node}:0", place) is not False]
    aligned = [place for place in multiples if prod(made[:place]) == prod(fixed[:axis])]
    return aligned or multiples, len(aligned) == 1


def is_broadcast_of(dims: Shape, shapes: Sequence[Shape]) -> bool:
    """Whether a shape may be the broadcast of others; a length that is known at run time is None."""
    rank = max(map(len, shapes), default=0)
    for place in range(1, rank + 1):
        known = {dims[-place] if place <= len(dims) else 1, *(one[-place] for one in shapes if place <= len(one))}
        if len(known - {1, None}) > 1:
            return False
    return len(dims) == rank


def _find_sizes(dims: Shape, axis: int) -> Iterator[int]:
    """The products of a length and any of the others that are known."""
    others = [n for place, n in enumerate(dims) if place != axis and n is not None]
    for count in range(len(others) + 1):
        for some in combinations(others, count):
            yield (dims[axis] or 0) * prod(some)


def _is_open(inferred: GraphView, tensor: str) -> bool:
    shape = inferred.shape(tensor)
    return node_of(tensor) in inferred.nodes and shape is not None and None in shape


def find_vector(inferred: GraphView, tensor: str) -> Array | None:
    """A constant or a range of constants, or a vector of these from a Pack or a ConcatV2."""
    node = node_of(tensor)
    if inferred.op(node) == "Range":
        bounds = [found for part in inferred.inputs(node) if (found := inferred.constant(part)) is not None]
        return np.arange(*bounds) if len(bounds) == len(inferred.inputs(node)) else None
    if inferred.op(node) not in JOINS:
        return inferred.constant(tensor)
    parts = [find_vector(inferred, part) for part in inferred.inputs(node)]
    known = [part for part in parts[: len(parts) - (inferred.op(node) == "ConcatV2")] if part is not None]
    is_vector = len(known) + (inferred.op(node) == "ConcatV2") == len(parts) and all(one.ndim < 2 for one in known)
    return np.concatenate([np.reshape(one, [-1]) for one in known]) if is_vector else None


def find_shape_value(view: GraphView, tensor: str) -> Array | None:
    """A constant, or the shape of a tensor, in the graph for the fixed batch; None where it is unknown."""
    if view.op(node_of(tensor)) != "Shape":
        return view.constant(tensor)
    shape = fixed_shape(view, view.inputs(node_of(tensor))[0])
    return None if shape is None else np.asarray(shape)


def is_open_length(view: GraphView, inferred: GraphView, tensor: str) -> bool:
    """Whether a tensor is computed from the open batch's length: it took a constant's place, or is an open shape."""
    node = node_of(tensor)
    is_shape = inferred.op(node) == "Shape" and None in (inferred.shape(inferred.inputs(node)[0]) or ())
    return node not in view.nodes or is_shape


def iterate_inputs(view: GraphView, inferred: GraphView, node: NodeDef) -> Iterator[tuple[int, Shape, list[int]]]:
    """For each input of a node: its number, its shape for the fixed batch, and the axes that are open instead."""
    now = inferred.inputs(node.name)
    for slot, tensor in enumerate(view.inputs(node.name)):
        fixed = view.shape(tensor)
        if fixed is not None:
            axes = find_open_axes(view, inferred, now[slot])
            yield slot, fixed, [axis for axis in axes if fixed[axis] is not None]


def find_lost_shapes(
    view: GraphView, inferred: GraphView, open_shape: Callable[[str, Shape], Shape | None]
) -> dict[str, Sequence[Shape | None]]:
    """The shapes that TensorFlow does not infer when it imports a graph, as of TensorFlow 1 loops' variables.

    Args:
        view: the graph for the fixed batch, in which they are known.
        inferred: the same with an open batch.
        open_shape: (tensor, shape for the fixed batch) -> shape with an open batch; None where that is undecided.

    Returns:
        Node -> the shapes of its results with an open batch, where the shapes of its inputs are known.
    """
    found = dict[str, Sequence[Shape | None]]()
    for node in inferred.topological_order() if view.nodes_of(["Enter", "RefEnter"]) else ():
        now = {tensor: inferred.shape(tensor) for tensor in inferred.outputs(node)}
        lost = [t for t, shape in now.items() if shape is None and node in view.nodes and view.shape(t) is not None]
        if not lost:
            continue
        is_merge = inferred.op(node) in MERGES  # of a loop variable's first value, and the one after an iteration
        begun = [t for t in inferred.inputs(node) if not (is_merge and inferred.op(node_of(t)) in NEXT_ITERATIONS)]
        if all(inferred.shape(t) is not None or (is_merge and node_of(t) in found) for t in begun):
            now |= {tensor: open_shape(tensor, view.shape(tensor) or ()) for tensor in lost}
            if any(now[tensor] is not None for tensor in lost):
                found[node] = list(now.values())
    return found


def find_mismatch(opened: GraphDef, names: Mapping[str, str], apart: Set[str], length: int) -> str:
    """What TensorFlow reports of the shapes at another length; empty if they match.

    Args:
        opened: the graph with an open batch.
        names: source of the fixed batch -> that of the open one.
        apart: nodes to leave out, with those computed from them, such as gradients for the fixed length.
        length: of the fixed batch.
    """
    part = type(opened)(versions=opened.versions, library=opened.library)
    sources = {node_of(tensor) for tensor in names.values()}
    view, left = GraphView(opened), {*apart, *map(node_of, names)}
    for name in view.topological_order():
        if name not in sources and not left.isdisjoint((name, *view.nodes_before(name))):
            left.add(name)
    for node in opened.node:
        if node.name not in left:
            copy = part.node.add()
            copy.CopyFrom(node)
            copy.attr.pop("_class", None)  # the colocation may name a missing node
            if node.name in sources:
                copy.op = "Placeholder"
                del copy.input[:]
                copy.attr["shape"].shape.dim[0].size = _FACTOR * length
    try:
        infer_shapes_again(part)
    except tf.errors.InvalidArgumentError as error:
        return str(error).partition("\n")[0][:_MOST_LETTERS]
    return ""


def reach(view: GraphView, begin: Set[str], within: Set[str]) -> set[str]:
    """Some nodes, and all of others that are computed from them, in the next iterations of loops too."""
    reached, before = view.reach(begin, within), set[str]()
    while reached != before:
        before = reached
        reached = reached | view.reach({node for node in reached if view.op(node) in NEXT_ITERATIONS}, within)
    return reached
