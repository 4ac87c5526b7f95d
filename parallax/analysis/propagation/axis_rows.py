"""Rules for rows that are dealt out and put back, or added up, by numbers that say to which row of a batch they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_lengths import numbers_of_shape
from parallax.analysis.propagation.axis_part import MIXED, AxisPart
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.analysis.propagation.sparse_batches import are_counted_off, are_examples, is_number_of_rows
from parallax.graph.view import GraphView, Shape, split_tensor

if TYPE_CHECKING:
    from parallax.analysis.propagation.batch_axis import BatchAxes


def stitch(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
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


_UNIQUE = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
_PASSES = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims")


def _behind(view: GraphView, tensor: str, ops: tuple[str, ...] = _PASSES) -> str:
    """The tensor behind ops that leave elements and their order alone."""
    while view.op(split_tensor(tensor)[0]) in ops:
        tensor = view.inputs(split_tensor(tensor)[0])[0]
    return tensor


def gather(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | int | None:
    """By ids of the batch from what is equal on all workers, or by equal ids along another axis than the joined one."""
    params, ids = inputs[0], inputs[1]
    place = axes.constant(inputs[2]) if len(inputs) > 2 else 0
    shape, ids_shape = axes.shape(params), axes.shape(ids)
    if axes.view.flag(node, "batch_dims") or place is None or ids_shape is None:
        return None
    if len(inputs) > 2 and shape is None:
        return None
    at = int(place) % len(shape) if len(inputs) > 2 and shape else 0
    axis = axes.known(ids)
    if axis is not None and axes.fits(params):
        return axis if axis == MIXED and at == 0 and len(ids_shape) == 1 else None if axis == MIXED else at + axis
    if at == 0 and axes.known(params) == 0 and is_every_row(axes, params, ids):
        return 0
    axis = axes.known(params)
    if axis is None or axis == MIXED or not axes.fits(ids) or at == axis:
        return gathered_again(axes, node, inputs)
    return axis if axis < at else axis - 1 + len(ids_shape)


def counted(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """How often each number occurs in each row of a matrix."""
    ids, size, weights = inputs
    are_by_row = axes.known(ids) == 0 and len(axes.shape(ids) or ()) == 2 and _is_settled(axes, size)
    return AxisPart(0) if are_by_row and (axes.known(weights) == 0 or axes.fits(weights)) else None


def _is_settled(axes: BatchAxes, size: str) -> bool:
    """Whether a number is alike on all workers, or at most what it is at least, as `minlength` and `maxlength` say."""
    view, least = axes.view, split_tensor(axes.view.source(size))[0]
    most = next((t for t in view.inputs(least) if view.op(split_tensor(t)[0]) == "Maximum"), "")
    if axes.fits(size) or view.op(least) != "Minimum" or not most:
        return axes.fits(size)
    upper, lower = ([axes.constant(t) for t in view.inputs(node)] for node in (least, split_tensor(most)[0]))
    bounds = [next((int(value) for value in values if value is not None), None) for values in (upper, lower)]
    return bounds[0] is not None and bounds[1] is not None and bounds[1] >= bounds[0]


def found_in_table(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """What a table that nobody changes has for each key."""
    table = axes.view.op(split_tensor(axes.view.source(inputs[0]))[0])
    return axes.known_part(inputs[1]) if table in ("HashTable", "HashTableV2") and axes.fits(inputs[2]) else None


def turned_convolution(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """A transposed convolution: of images, the third input, whose length its sizes begin with."""
    view, part = axes.view, axes.known_part(inputs[2])
    sizes = split_tensor(view.source(inputs[0]))[0]
    is_known = axes.fits(inputs[1]) and view.op(sizes) == "Pack" and axes.others_are_equal(view.inputs(sizes), 0)
    return part if part is not None and part.axis in (0, MIXED) and is_known else None


def gathered_again(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Rows computed once for each distinct element of a vector, given back to its elements; or those of a mask."""
    view = axes.view
    place = axes.constant(inputs[2]) if len(inputs) > 2 else 0
    if place is None or int(place) != 0 or view.flag(node, "batch_dims"):
        return None
    return by_merged(axes, inputs[0], inputs[1]) or _chosen(
        axes, inputs[0], inputs[1], ("Identity", "Squeeze", "Reshape")
    )


def by_merged(axes: BatchAxes, rows: str, numbers: str) -> AxisPart | None:
    """What the rows at these numbers are, where both come of one Unique: a function of the elements that it took."""
    view, numbers = axes.view, _behind(axes.view, numbers, ("Identity", "Cast"))
    node, output = split_tensor(numbers)
    if view.op(node) not in _UNIQUE or output != 1 or not _is_by_row(axes, rows, f"{node}:0"):
        return None
    part = axes.known_part(view.inputs(node)[0])
    return part if part is not None and part.axis in (0, MIXED) else None


def _is_by_row(axes: BatchAxes, tensor: str, vector: str) -> bool:
    """Whether row i of a tensor is a function of element i of a vector, the same on all workers."""
    view, (node, _) = axes.view, split_tensor(tensor)
    op, inputs, shape = view.op(node), view.inputs(node), axes.shape(tensor)
    if tensor == vector:
        return True
    if op == "Identity":
        return _is_by_row(axes, inputs[0], vector)
    if op in ("GatherV2", "Gather", "ResourceGather"):
        whole = axes.constant(inputs[2]) if len(inputs) > 2 else 0
        is_plain = whole is not None and int(whole) == 0 and not view.flag(node, "batch_dims")
        return is_plain and axes.fits(inputs[0]) and _is_by_row(axes, inputs[1], vector)
    if op == "ConcatV2":
        return _is_put_together(axes, node, vector)
    if op not in FORWARD_ELEMENTWISE or shape is None or op == "Select":
        return False
    own = [t for t in inputs if not axes.fits(t)]
    others = [axes.shape(t) for t in inputs if axes.fits(t)]
    narrow = all(other is not None and (len(other) < len(shape) or other[0] == 1) for other in others)
    full = all(len(axes.shape(t) or ()) == len(shape) for t in own)
    return bool(own) and narrow and full and all(_is_by_row(axes, t, vector) for t in own)


def _is_put_together(axes: BatchAxes, node: str, vector: str) -> bool:
    """Whether rows of one table, looked up by cuts of the vector, are put behind one another in its order."""
    view, pieces, place = axes.view, axes.view.inputs(node)[:-1], axes.constant(axes.view.inputs(node)[-1])
    gathers = [split_tensor(_behind(view, piece, ("Identity",)))[0] for piece in pieces]
    if place is None or int(place) != 0 or len(pieces) != 2 or not all(_is_gather(view, f"{g}:0") for g in gathers):
        return False
    if len({view.inputs(g)[0] for g in gathers}) != 1 or not axes.fits(view.inputs(gathers[0])[0]):
        return False
    cuts = [split_tensor(_behind(view, view.inputs(g)[1], ("Identity", "Cast")))[0] for g in gathers]
    if any(view.op(cut) != "StridedSlice" or view.inputs(cut)[0] != vector for cut in cuts):
        return False
    given = [[axes.constant(t) for t in view.inputs(cut)[1:]] for cut in cuts]
    bounds = [[int(b[0]) for b in three if b is not None and b.size == 1] for three in given]
    if any(len(three) != 3 or three[2] != 1 for three in bounds):
        return False
    first, second = (view.nodes[cut].attr for cut in cuts)
    is_whole = first["begin_mask"].i == 1 and second["end_mask"].i == 1 and not second["begin_mask"].i
    shrinks = first["shrink_axis_mask"].i or second["shrink_axis_mask"].i or first["end_mask"].i
    return bool(is_whole and not shrinks and bounds[0][1] == bounds[1][0] >= 0)


def _chosen(axes: BatchAxes, rows: str, places: str, passes: tuple[str, ...]) -> AxisPart | None:
    """Those elements of the batch that a mask of the batch, as long as they are, has chosen."""
    where = split_tensor(_behind(axes.view, places, passes))[0]
    if axes.view.op(where) != "Where" or axes.known(rows) != 0:
        return None
    return AxisPart(0) if _is_masked_alike(axes, rows, where) else None


def _is_masked_alike(axes: BatchAxes, rows: str, where: str) -> bool:
    mask = axes.view.inputs(where)[0]
    shape, chosen_of = axes.shape(rows), axes.shape(mask)
    if not shape or not chosen_of or axes.known(mask) != 0:
        return False
    if None not in chosen_of:
        return shape[: len(chosen_of)] == chosen_of
    return len(shape) == len(chosen_of) and _is_made_of(axes, mask, axes.view.source(rows))


def _is_made_of(axes: BatchAxes, mask: str, rows: str) -> bool:
    """Whether a mask is made element by element of some rows, and so is as long as they are.

    Others that it is made of besides have no longer axis.
    """
    view, node, shape = axes.view, split_tensor(mask)[0], axes.shape(rows) or ()
    if _are_as_many(view, view.source(mask), rows):
        return True
    if view.op(node) not in FORWARD_ELEMENTWISE or view.op(node) == "Select":
        return False
    own: list[Shape] = []
    others: list[Shape] = []
    for tensor in view.inputs(node):
        (others if axes.fits(tensor) else own).append(axes.shape(tensor))
    narrow = all(other is not None and set(other) <= {1} and len(other) <= len(shape) for other in others)
    full = all(len(one or ()) == len(shape) for one in own)
    return narrow and full and any(_is_made_of(axes, t, rows) for t in view.inputs(node) if not axes.fits(t))


def _are_as_many(view: GraphView, one: str, other: str) -> bool:
    """Whether two tensors are one, or gathered by the same numbers."""
    gathers = [split_tensor(tensor)[0] for tensor in (one, other)]
    if one == other or not all(view.op(gather) in ("GatherV2", "Gather") for gather in gathers):
        return one == other
    return view.source(view.inputs(gathers[0])[1]) == view.source(view.inputs(gathers[1])[1])


def gather_nd(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Those elements of the batch that a mask has chosen; or rows that numbers of the batch say, of what is alike."""
    axis, numbers = axes.known(inputs[1]), axes.shape(inputs[1])
    if axis == 0 and numbers is not None and len(numbers) > 1 and axes.fits(inputs[0]):
        return AxisPart(0)
    return _chosen(axes, inputs[0], inputs[1], ("Identity",))


def is_every_row(axes: BatchAxes, rows: str, numbers: str) -> bool:
    """Whether numbers are the places of all rows of a tensor in their order, as `vectorized_map` takes its elements.

    Where there is but one row they may all be zero instead.
    """
    view, node = axes.view, split_tensor(_behind(axes.view, numbers, ("Identity", "Cast")))[0]
    inputs = view.inputs(node)
    if view.op(node) == "SelectV2":
        asked, value = split_tensor(inputs[0])[0], axes.constant(inputs[2])
        least = axes.constant(view.inputs(asked)[1]) if view.op(asked) == "Greater" else None
        is_asked = least is not None and int(least) == 1 and _measured(view, view.inputs(asked)[0]) == rows
        return is_asked and value is not None and is_every_row(axes, rows, inputs[1])
    if view.op(node) != "Range":
        return False
    start, step = axes.constant(inputs[0]), axes.constant(inputs[2])
    if start is None or step is None or int(start) != 0 or int(step) != 1:
        return False
    limit = split_tensor(inputs[1])[0]
    packed = split_tensor(view.inputs(limit)[0])[0] if view.op(limit) == "Max" else ""
    lengths = view.inputs(packed) if packed and view.op(packed) == "Pack" else inputs[1:2]
    return any(is_length(axes, length) and _measured(view, length) == rows for length in lengths)


def top_k(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> list[AxisPart | None]:
    """(values, their numbers): along another axis than the joined one, or a joined vector put in order whole."""
    view, axis, shape = axes.view, axes.known(inputs[0]), axes.shape(inputs[0])
    if axis is None or shape is None or not axes.others_are_equal(inputs, 0, 1):
        return [None, None]
    if axis not in (MIXED, len(shape) - 1):
        wanted = numbers_of_shape(axes, inputs[1])  # all of another axis, where not a number that is alike
        return [AxisPart(axis)] * 2 if axes.fits(inputs[1]) or (wanted and None not in wanted) else [None, None]
    count = axes.constant(inputs[1])
    before = {_behind(view, tensor, ("Neg", "Identity")) for tensor in (inputs[0], _measured(view, inputs[1]))}
    is_whole = len(before) == 1 if count is None else int(count) == shape[-1]
    return [AxisPart(MIXED) if len(shape) == 1 and is_whole else None, None]


def _measured(view: GraphView, tensor: str) -> str:
    """The tensor of whose shape an element is taken."""
    node = split_tensor(_behind(view, tensor, ("Cast", "Identity")))[0]
    shape = split_tensor(view.inputs(node)[0])[0] if view.op(node) == "StridedSlice" else node
    return view.inputs(shape)[0] if view.op(shape) == "Shape" else tensor


def segment_sum(count: int | None) -> Callable[[BatchAxes, str, tuple[str, ...]], AxisPart | None]:
    """Rows of the batch, added up by numbers that say to which row of the batch they belong.

    Args:
        count: which input says how many rows there are; None where the last number does: rows that nothing belongs to
            are then missing at the end, unless the result's shape is checked.
    """

    def rule(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
        view = axes.view
        is_sparse = view.op(node).startswith("Sparse")
        rows, numbers = inputs[0], inputs[2 if is_sparse else 1]
        part = by_merged(axes, rows, inputs[1]) if is_sparse else axes.known_part(rows)
        if part is None or part.axis != 0:
            return None
        if count is None and are_examples(axes, numbers):
            return AxisPart(0)
        if count is not None and is_number_of_rows(axes, inputs[count]) and are_counted_off(axes, numbers):
            return AxisPart(0)
        length = _numbered(axes, numbers)
        if count is not None:
            return AxisPart(0) if length and _is_as_long(axes, inputs[count], length) else None
        takers = [edge.node for edge in view.consumers(f"{node}:0")]
        checked = [axes.shape(f"{taker}:0") for taker in takers if view.op(taker) == "EnsureShape"]
        is_checked = len(checked) == len(takers) > 0 and all(shape and shape[0] == length for shape in checked)
        return AxisPart(0) if is_checked else None

    return rule


def _is_as_long(axes: BatchAxes, count: str, length: int) -> bool:
    value = axes.constant(count)
    return value is not None and int(value) == length


def _numbered(axes: BatchAxes, numbers: str) -> int | None:
    """Of how many rows of a batch of fixed size a tensor has the numbers, each for an element of that row; or None."""
    view, node = axes.view, split_tensor(_behind(axes.view, numbers, ("Identity", "Cast")))[0]
    inputs = view.inputs(node)
    if view.op(node) == "StridedSlice":  # the first number of each place of a mask
        begin, where = axes.constant(inputs[1]), split_tensor(_behind(view, inputs[0], ("Identity",)))[0]
        attr = view.nodes[node].attr
        is_first = begin is not None and begin.size == 2 and int(begin[1]) == 0 and attr["shrink_axis_mask"].i == 2
        if view.op(where) != "Where" or not is_first or not attr["begin_mask"].i & 1 or not attr["end_mask"].i & 1:
            return None
        shape = axes.shape(view.inputs(where)[0])
        return shape[0] if shape and axes.known(view.inputs(where)[0]) == 0 else None
    if view.op(node) not in ("GatherV2", "Gather"):
        return None
    chosen = split_tensor(_behind(view, inputs[1]))[0]
    if view.op(chosen) != "Where" or not _is_masked_alike(axes, inputs[0], chosen):
        return None
    return _row_numbers(axes, inputs[0])


def _row_numbers(axes: BatchAxes, tensor: str) -> int | None:
    """The length of a Range of which a tensor has each number for every element of that row; None for others."""
    view, lengths = axes.view, set[int | None]()
    while True:
        node = split_tensor(tensor)[0]
        inputs = view.inputs(node)
        if view.op(node) in _PASSES:
            tensor = inputs[0]
        elif view.op(node) == "StridedSlice" and view.nodes[node].attr["new_axis_mask"].i == 2:
            tensor = inputs[0]
        elif view.op(node) == "Tile" and (repeats := axes.constant(inputs[1])) is not None and int(repeats[0]) == 1:
            lengths.add((axes.shape(inputs[0]) or (None,))[0])
            tensor = inputs[0]
        else:
            break
    if view.op(node) != "Range":
        return None
    start, limit, step = (axes.constant(t) for t in inputs)
    if start is None or limit is None or step is None or int(start) != 0 or int(step) != 1:
        return None
    return int(limit) if lengths <= {int(limit)} else None
