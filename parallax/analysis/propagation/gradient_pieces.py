"""Classifies the pieces of each gradient, as its consumers outside autodiff see them, before the traversal begins.

The rows of IndexedSlices come in pieces, one for each lookup. The rows that one process would have depend on the ids:
- `joined`: ids of the batch; one process has the rows of all workers, concatenated.
- `unique`: ids that the forward pass deduplicated, as embedding_lookup_sparse does (distinct_ids.py); one process has
  every row once, so rows of several workers are coalesced before any other op, such as a clip, reads them (`touched`).
- `shared`: the same ids on all workers whatever the batch (positions, shared samples); one process has these rows once.
  Each worker has a part of their sum, which the last worker keeps.
- `unknown`: the analysis cannot tell how many rows a larger batch has of some deduplicated ids. The graph is refused if
  an op reads such rows before the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from parallax.analysis.propagation.distinct_ids import DistinctIds, root
from parallax.analysis.propagation.states import SAME, Indices, State, TouchedIndices, TouchedRows, Values
from parallax.analysis.propagation.walk import Merge, NoRule, Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.base.errors import GraphError
from parallax.graph.batches import batch_by_node
from parallax.graph.ops import is_constant
from parallax.graph.spec import GradientSource
from parallax.graph.view import Edge, GraphView, node_of, split_tensor
from parallax.plans.gradient_rows import AccumulateGradient, Dealt, GradientPiece, SharedRows
from parallax.plans.rewrites import Scale

_TAKES_MERGED = ("UnsortedSegmentSum", "ScatterAdd", "ScatterSub", "ResourceScatterAdd", "ResourceScatterSub")
"""Ops that sum rows by number: the result of one process does not depend on how many parts a row comes in."""

_CHOOSES = ("DynamicPartition", "GatherV2", "Gather", "GatherNd", "StridedSlice", "Slice")
"""Ops whose result is a selection of elements of the first input."""

PieceKinds = Mapping[str, tuple[GradientPiece, ...]]
"""Values tensor -> the pieces of its rows."""


def find_concatenated(view: GraphView, tensor: str) -> list[str]:
    """The tensors of which a tensor is concatenated along its rows; empty when it was not."""
    node = node_of(tensor)
    inputs = list(view.inputs(node))
    pieces, axis = {"ConcatV2": (inputs[:-1], inputs[-1:]), "Concat": (inputs[1:], inputs[:1])}.get(
        view.op(node), ([], [])
    )
    place, shape = view.constant(axis[0]) if axis else None, view.shape(tensor)
    if place is None or int(place) not in ((0,) if shape is None else (0, -len(shape))):
        return []
    return pieces


def find_piece_kinds(walk: Walk) -> PieceKinds:
    """The kinds found by a finished traversal: they need the states of the ids."""
    if not any(s.indices for s in walk.facts.sources):
        return {}
    look = _PieceRules(walk)
    return {s.values: tuple(_find_pieces(look, s)) for s in walk.facts.sources if s.indices is not None}


def marked_by(walk: Walk, kinds: PieceKinds) -> PieceKinds:
    """The kinds that a mark depends on: joined rows are marked like those that are still unknown."""
    raw = {s.values for s in walk.facts.sources if walk.facts.routes.get(s.part) == "raw"}
    return {t: found for t, found in kinds.items() if t in raw or any(piece.kind != "joined" for piece in found)}


class _PieceRules:
    """The context in which pieces are judged."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.unique = DistinctIds(walk.view, lambda tensor: walk.states[tensor].kind in ("same", "fed"))
        self.forward = walk.view.nodes.keys() - autodiff_ops(walk.facts.captured)


def _find_pieces(look: _PieceRules, source: GradientSource) -> list[GradientPiece]:
    walk, waiting, pieces = look.walk, [source.indices or ""], []
    while waiting:
        row_numbers = waiting.pop(0)
        tensor = root(walk.view, row_numbers)
        parts = find_concatenated(walk.view, tensor)
        if walk.facts.layouts is not None and walk.states[row_numbers] == SAME != walk.states[tensor]:
            pieces.append(_classify_equal_ids(look, row_numbers))  # all workers have gathered them
        elif parts and (walk.states[tensor] != SAME or node_of(tensor) not in look.forward):
            waiting = [*parts, *waiting]
        elif walk.states[tensor] == SAME:
            pieces.append(_classify_equal_ids(look, tensor))
        else:
            pieces += _classify_several_kinds(look, tensor) or [_classify_local_ids(look, tensor)]
    return [_without_others(piece, pieces) for piece in pieces]


def _without_others(piece: GradientPiece, every: list[GradientPiece]) -> GradientPiece:
    """A piece of deduplicated ids; `unknown` if another piece has the same ids, as the two cannot be distinguished."""
    is_alone = not piece.merged or [one.merged for one in every].count(piece.merged) == 1
    return piece if is_alone else GradientPiece(piece.ids, "unknown", piece.merged)


def _classify_local_ids(look: _PieceRules, ids: str) -> GradientPiece:
    """Row numbers that differ between workers."""
    distinct = look.unique.of(ids)
    if distinct is not None:
        return GradientPiece(ids, "unique", distinct.key, distinct.merged)
    before = look.unique.any_before(ids)
    return GradientPiece(ids, "unknown", before) if before else GradientPiece(ids, "joined")


def _classify_several_kinds(look: _PieceRules, ids: str) -> list[GradientPiece]:
    """Row numbers selected from ids of the batch and others that are equal on all workers, concatenated; else empty.

    Those that were dealt out to a part of a table can be counted, for both kinds.
    """
    view, chosen = look.walk.view, ids
    while view.op(node_of(chosen)) in _CHOOSES:
        chosen = look.unique.source(view.inputs(node_of(chosen))[0])
    behind = find_concatenated(view, chosen)
    equal = {t: _classify_equal_ids(look, t) for t in behind if look.walk.states[t] == SAME}
    if len(equal) in (0, len(behind)) or all(piece.kind == "joined" for piece in equal.values()):
        return []
    pieces = [equal.get(t) or _classify_local_ids(look, t) for t in behind]
    node, part = split_tensor(ids)
    numbers = view.inputs(node)[1] if view.op(node) == "DynamicPartition" else ""
    sources = {look.unique.source(t) for t in view.inputs(node)[:2]} if numbers else set()
    if sources != {chosen} or any(piece.kind not in ("shared", "joined") for piece in pieces):
        return [GradientPiece(ids, "unknown", node_of(chosen))]
    return [replace(piece, dealt=Dealt(numbers, part, tuple(behind[:place]))) for place, piece in enumerate(pieces)]


def _classify_equal_ids(look: _PieceRules, ids: str) -> GradientPiece:
    """Rows of replicated numbers exist once, and workers have parts of them; or they are one worker's own."""
    return GradientPiece(ids, "shared" if look.walk.facts.captured.synchronous else "joined")


def mark_sparse_gradients(walk: Walk) -> None:
    """Marks every sparse gradient, as far as the kinds of its pieces are known (all joined in the first traversal)."""
    for source in walk.facts.sources:
        if source.indices is not None:
            _mark_source(walk, source, source.indices)


def _mark_source(walk: Walk, source: GradientSource, indices: str) -> None:
    value_edges, index_edges = (
        find_outside_edges(walk, source, source.values),
        find_outside_edges(walk, source, indices),
    )
    pieces = walk.assumptions.kinds.get(source.values, ())
    kinds = {piece.kind for piece in pieces}
    processed = any(walk.view.op(e.node) not in _TAKES_MERGED for e in value_edges)
    if processed:
        _check_pieces(walk, source, pieces)
    walk.pairs.setdefault(indices, []).append(source.values)
    walk.part_of_token[source.values] = walk.part_of_token[indices] = source.part
    is_mean = walk.facts.layouts is None
    if value_edges and is_mean and not any(s.tensor == source.values for s in walk.scales):
        walk.scales.append(Scale(source.values, tuple(value_edges)))
    states: tuple[State, State] = (Values((source.values,)), Indices((indices,)))
    key = f"at {source.values}"
    if walk.facts.routes.get(source.part) == "raw":
        states = (SAME, SAME)
        walk.merges[key] = Merge(source.part, (indices,), index_edges, value_edges, pieces=pieces)
    elif kinds == {"unique"} and len(pieces) == 1 and processed:
        walk.merges[key] = Merge(source.part, (indices,), index_edges, value_edges, merges_equal_rows=False)
        table = walk.assumptions.table_of.get(source.part)
        states = (TouchedRows(table, key), TouchedIndices(table, key)) if table else (SAME, SAME)
    elif "unique" in kinds and processed:
        raise NoRule(source.part, "gradient rows of several merged lookups are changed before they are applied")
    elif "shared" in kinds and (processed or is_mean):  # parts of rows that are summed by number need no prior sum
        walk.shared_rows.append(SharedRows(source.values, tuple(value_edges), pieces))
    for edges, tensor, state in ((value_edges, source.values, states[0]), (index_edges, indices, states[1])):
        walk.marked.update({(tensor, e.node): state for e in edges})


def _check_pieces(walk: Walk, source: GradientSource, pieces: tuple[GradientPiece, ...]) -> None:
    """Requires that ops which read single rows find those of one process."""
    for piece in pieces:
        if piece.kind == "unknown":
            raise NoRule(
                source.part,
                f"what the graph does to its gradient rows at {piece.ids!r} depends on their number, and {piece.of!r} "
                "does not show how that number grows with the batch; leave the batch dimension of the placeholders "
                "open (None), and look rows up by the ids of the batch or by all merged ids",
            )
        if piece.kind == "unique" and piece.of and walk.facts.routes.get(source.part) != "raw":
            raise NoRule(source.part, f"its row indices {piece.ids!r} may be equal for distinct ids {piece.of!r}")


def list_accumulated_gradients(walk: Walk) -> tuple[AccumulateGradient, ...]:
    """The gradients to accumulate where updates use several batches: every gradient, once.

    Raises:
        GraphError: a gradient is computed from a value that depends on another one.
    """
    layouts, batches = walk.facts.layouts, batch_by_node(walk.view)
    accumulated: dict[str, AccumulateGradient] = {}
    for source in walk.facts.sources:
        value_edges, index_edges = find_outside_edges(walk, source, source.values), []
        before = accumulated.get(source.values)
        if before is not None:
            value_edges = list(dict.fromkeys([*before.value_edges, *value_edges]))
        if source.indices is not None:
            index_edges = find_outside_edges(walk, source, source.indices)
        pieces = walk.assumptions.kinds.get(source.values, ())
        constant = tuple(piece.kind == "shared" and is_constant(walk.view, [piece.ids]) for piece in pieces)
        indices = source.indices or ""
        batch = batches.get(node_of(source.values), "") if layouts is not None else ""
        is_counted = layouts is not None and layouts.leaves_counted(source.values)
        accumulated[source.values] = AccumulateGradient(
            source.values, tuple(value_edges), indices, tuple(index_edges), pieces, constant, batch, is_counted
        )
    keeps = tuple(keep for keep in accumulated.values() if keep.value_edges or keep.index_edges)
    _check_order(walk.view, keeps)
    return keeps


def _check_order(view: GraphView, keeps: tuple[AccumulateGradient, ...]) -> None:
    """Requires that every batch has its gradients before the first update."""
    takers = {e.node: keep.values for keep in keeps for e in (*keep.value_edges, *keep.index_edges)}
    after = view.descendants(takers, waits=True)
    for keep in (one for one in keeps if node_of(one.values) in after):
        early = view.ancestors([node_of(keep.values)]) & takers.keys()
        if early:
            node = min(early)
            raise GraphError(
                "With accumulate_steps, all gradients of a batch must be computed before any is applied, but "
                f"{keep.values!r} is computed after {node!r}, which uses the gradient {takers[node]!r}. Train them "
                "with separate train_ops, or leave accumulate_steps at 1."
            )


def find_outside_edges(walk: Walk, source: GradientSource, tensor: str) -> list[Edge]:
    """The edges by which a gradient's values, or row numbers, leave autodiff."""
    return [e for e in walk.view.consumers(tensor) if e.node in source.outside]
