"""Layout rules of tensors concatenated along the first axis, such as a batch's labels and shared samples, or padded.

Each piece keeps its own layout through a lookup of the concatenated ids, through the slices that split the rows again,
and through the gradients of these ops. Any other op requires a concatenated tensor to be replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallax.analysis.layouts.rules.facts import BLANK, COUNTED, LENGTHS, REPLICATED, SUM, Fact
from parallax.analysis.layouts.rules.reshaping import keep_plain
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.analysis.layouts.rules.values import flatten_matrix
from parallax.graph.lengths import Length, multiply
from parallax.plans.layouts import Concatenated, Layout, Sharded

Rule = Callable[[StepWalk, str], list[Fact] | None]
_OPEN = Length.of(-1)
_Piece = tuple[Length, Length, Layout]  # its start, its end, and its layout


def make_concatenation_rule(of_others: Rule) -> Rule:
    """The rule of ConcatV2: without a common layout the result is concatenated from sharded and replicated pieces."""

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        facts = of_others(step, node)
        if facts is not None:
            return facts
        *tensors, place = step.inputs(node)
        if place.numbers() != [0] or any(f.axis != 0 and not f.is_same for f in tensors):
            return None
        pieces = [(f.dims[0], f.layout) for f in tensors if f.dims]
        return _concatenate(pieces, tensors[0]) if len(pieces) == len(tensors) else None

    return rule


def pass_on(step: StepWalk, node: str) -> list[Fact] | None:
    """Ops on one tensor, entry by entry."""
    fact = step.inputs(node)[0]
    return [Fact(fact.layout, fact.dims)]


def look_up(step: StepWalk, node: str) -> list[Fact] | None:
    """Lookups in a replicated tensor, by concatenated ids."""
    table, ids, *others = step.inputs(node)
    if not table.is_same or not isinstance(ids.layout, Concatenated) or ids.rank != 1:
        return None
    if others and others[0].numbers() != [0]:
        return None
    row = (step.fact(f"{node}:0", REPLICATED).dims or (Length(),))[1:]
    pieces = tuple((length, REPLICATED if one == BLANK else one) for length, one in ids.layout.pieces)
    return [Fact(Concatenated(pieces), (ids.layout.length, *row))]


def take_piece(step: StepWalk, node: str) -> list[Fact] | None:
    """Slice: one of the pieces, or several."""
    fact, begin, size = step.inputs(node)
    first, count = (values[0] if (values := f.values()) else None for f in (begin, size))
    if not isinstance(fact.layout, Concatenated) or fact.dims is None or first is None or count is None:
        return None
    last = fact.layout.length if count.number == -1 else first + count
    matching = [piece for piece in _place_pieces(fact.layout) if piece[:2] == (first, last)]
    if not matching or any(f.is_same and f.numbers() is None for f in (begin, size)):
        return None
    step.keep_local(node)
    layout = REPLICATED if matching[0][2] == BLANK else matching[0][2]
    return [step.fact(f"{node}:0", layout, (last - first, *fact.dims[1:]))]


def add_zeros(of_others: Rule) -> Rule:
    """The rule of Pad: zeros before or after a tensor with a layout along the first axis, as in a slice's gradient."""

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        fact, paddings = step.inputs(node)[:2]
        values = flatten_matrix(step, step.view.inputs(node)[1])
        known = [n for n in values if n is not None] if isinstance(values, tuple) else []
        is_along_first = known[2:] == [Length()] * (len(known) - 2) and fact.rank == len(known) // 2 > 0
        is_of_batch = any(map(step.has_batch, known[:2])) or (fact.axis == 0 and known[:2] != [Length()] * 2)
        is_local = paddings.is_lengths or not any(map(step.has_batch, known))
        if not (is_along_first and is_of_batch and is_local and fact.dims) or not isinstance(values, tuple):
            return of_others(step, node)
        if len(known) < len(values) or not (fact.is_same or fact.is_sum or fact.axis == 0):
            return of_others(step, node)
        pieces = [(known[0], BLANK), (fact.dims[0], fact.layout), (known[1], BLANK)]
        step.keep_local(node)
        return _concatenate([piece for piece in pieces if piece[0] != Length()], fact)

    return rule


def add_up(step: StepWalk, node: str) -> list[Fact] | None:
    """AddN and Add of tensors with matching pieces: the sum of each piece."""
    facts = step.inputs(node)
    layouts = [fact.layout for fact in facts if isinstance(fact.layout, Concatenated)]
    if len(layouts) < len(facts) or len({layout.length for layout in layouts}) > 1:
        return None
    merged: dict[tuple[Length, Length], Layout] = {}
    for first, last, layout in (piece for one in layouts for piece in _place_pieces(one)):
        if layout != BLANK:
            before = merged.setdefault((first, last), layout)
            sums = {before, layout}
            if len(sums) > 1 and not sums <= {SUM, COUNTED}:
                return None
            merged[first, last] = COUNTED if sums == {COUNTED} else SUM if SUM in sums else layout
    chain = _chain(merged, layouts[0].length)
    return None if chain is None else _concatenate(chain, facts[0])


def make_segment_rule(of_others: Rule) -> Rule:
    """The rule of UnsortedSegmentSum: of concatenated rows by ids in the same pieces, it is a partial sum.

    As the gradient of a table that is looked up by several tensors, to which that of its regularization is added.
    """

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        rows, ids, count = step.inputs(node)
        layouts = rows.layout, ids.layout
        if not isinstance(layouts[0], Concatenated) or not isinstance(layouts[1], Concatenated):
            step.replicate_layouts(node, Concatenated)
            return of_others(step, node)
        pieces = [one.pieces for one in (layouts[0], layouts[1])]
        if [length for length, _ in pieces[0]] != [length for length, _ in pieces[1]]:
            return None
        if not all(_is_sum_by_ids(one, by) for (_, one), (_, by) in zip(*pieces, strict=True)):
            return None
        step.require_layout(node, 2, REPLICATED)
        dims = (count.value, *rows.dims[1:]) if isinstance(count.value, Length) and rows.dims else None
        return step.all_outputs(node, SUM, dims)

    return rule


def _is_sum_by_ids(rows: Layout, ids: Layout) -> bool:
    """Whether sums of a worker's rows by their ids add up over the workers."""
    if isinstance(rows, Sharded):
        return rows == ids
    return rows == BLANK or (rows in (SUM, COUNTED) and ids in (REPLICATED, BLANK))


def reshape_rows(step: StepWalk, node: str) -> list[Fact] | None:
    """Reshape that leaves the first axis unchanged; also of rows of distinct ids."""
    fact, shape = step.inputs(node)
    requested, known = shape.values(), step.fact(f"{node}:0", REPLICATED).dims
    if (
        fact.dims is None
        or not requested
        or requested[0] not in (fact.dims[0], _OPEN)
        or (shape.is_same and requested[0] != _OPEN)
    ):
        return None
    stated_lengths = tuple(length for length in requested[1:] if length is not None and length != _OPEN)
    if len(stated_lengths) < len(requested) - 1:
        stated_lengths = known[1:] if known is not None else fact.dims[1:]
    if multiply(stated_lengths) != multiply(fact.dims[1:]):
        return None
    step.keep_local(node, [1])
    return [Fact(fact.layout, (fact.dims[0], *stated_lengths))]


def read_shape(step: StepWalk, node: str) -> list[Fact] | None:
    """Shape and Size: per-worker lengths; also of rows of distinct ids."""
    fact, is_size = step.inputs(node)[0], step.view.op(node) == "Size"
    if fact.dims is None or (is_size and len(fact.dims) > 1) or _is_unknown(fact.layout):
        return None
    step.keep_local(node)
    return [step.fact(f"{node}:0", LENGTHS, () if is_size else None, fact.dims[0] if is_size else fact.dims)]


def _is_unknown(layout: Layout) -> bool:
    """Whether the length of one process's concatenated tensor does not follow from a worker's."""
    if not isinstance(layout, Concatenated):
        return False
    parts = [piece.part for _, piece in layout.pieces if isinstance(piece, Sharded)]
    lengths = [length.number for length, piece in layout.pieces if not isinstance(piece, Sharded)]
    return None in lengths or (len(parts) > 1 and any(part.factor.number is None for part in parts))


def _concatenate(pieces: Sequence[tuple[Length, Layout]], default: Fact) -> list[Fact]:
    """The fact of a result, whose other axes have the lengths of one of its inputs."""
    layout = Concatenated(tuple(pieces))
    return [Fact(layout, (layout.length, *(default.dims or ())[1:]))]


def _place_pieces(layout: Concatenated) -> list[_Piece]:
    placed, first = list[_Piece](), Length()
    for length, one in layout.pieces:
        placed.append((first, first + length, one))
        first = first + length
    return placed


def _chain(merged: dict[tuple[Length, Length], Layout], total: Length) -> list[tuple[Length, Layout]] | None:
    """The pieces in order, if they cover the axis contiguously from start to end."""
    chain, first = list[tuple[Length, Layout]](), Length()
    while first != total:
        following = [(last, layout) for (begin, last), layout in merged.items() if begin == first]
        if len(following) != 1 or len(chain) > len(merged):
            return None
        last, layout = following[0]
        chain.append((last - first, layout))
        first = last
    return chain


def pad(step: StepWalk, node: str) -> list[Fact] | None:
    """Pad, MirrorPad and its gradient: the sharded axis must have no padding; a partial sum stays one."""
    facts = step.inputs(node)
    if all(f.is_same or f.is_lengths for f in facts):
        return keep_plain(step, node, facts)
    fact, known = facts[0], _find_paddings(step, node)
    if fact.is_sum and step.view.op(node) != "PadV2":
        step.replicate(node, range(1, len(facts)))
        return step.all_outputs(node, fact.layout)
    if fact.axis is None or known[2 * fact.axis : 2 * fact.axis + 2] != [Length(), Length()]:
        return None
    lengths = [length for length in known if length is not None]
    is_local = facts[1].is_lengths and lengths == known and not any(map(step.has_batch, lengths))
    step.replicate(node, range(2 if is_local else 1, len(facts)))
    step.keep_local(node, (1,))
    if fact.dims is None or lengths != known:
        return step.all_outputs(node, fact.layout)
    pairs = zip(fact.dims, lengths[::2], lengths[1::2], strict=True)
    sign = Length.of(-1 if step.view.op(node) == "MirrorPadGrad" else 1)
    dims = tuple(length + sign * (before + behind) for length, before, behind in pairs)
    return step.all_outputs(node, fact.layout, dims)


def _find_paddings(step: StepWalk, node: str) -> list[Length | None]:
    """The paddings before and after each axis, None where unknown; empty where all are unknown."""
    values = flatten_matrix(step, step.view.inputs(node)[1])
    return list(values) if isinstance(values, tuple) else []
