"""The analysis's claims about single tensors, and their checks: the workers' values against those of one process.

Every state (parallax/analysis/propagation/states.py) is a claim about the workers' values of a tensor, compared with
the one process:
- `same`: every worker has the one process's value;
- partial sum, mean, minimum or maximum: the reduction of all parts is the one process's value;
- `values`, `touched`: the rows of all workers, or owners, add up to the one process's, and so do their squares. The
  order of rows is no claim: the one process has the rows of a first lookup of all workers, then those of a second.
  Nor is it one where ids are the same on all workers: only worker 0 has values there, and the others have zeros;
- a gradient that leaves autodiff as joined rows: the mean over the workers of all rows' sum is the one process's sum;
- `rows`: every owner has its rows of the one process's value.

Where tensors have layouts (parallax/plans/layouts.py), these are the claims up to where gradients leave autodiff: a
replicated tensor is the same on all workers, a partial tensor is a part of a reduction, and the shards of a sharded
tensor, concatenated, are the one process's value.

Other states claim nothing. Not checked are tensors inside conditionals and loops; references to variables, which change
during a run; and tensors behind the exchange of gradient rows of a replicated variable, because these rows come in a
different order than in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from parallax.analysis.propagation.walk import Walk
from parallax.base.types import Array, Value
from parallax.graph.control_flow import branches_of
from parallax.graph.view import GraphView, node_of
from parallax.plans.layouts import Layout, LengthValue, Partial, Replicated, Sharded

Values = Mapping[str, Value]
"""Tensor -> its value in one run."""

SAME = "the same on all workers"
OWNED = "an owner's rows"
GRADIENT = "a gradient of rows"
PART = "a part of a {kind}"
PIECE = "a piece of the batch"
ROWS = "rows ({kind})"

_SHARES = frozenset(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient PreventGradient CheckNumerics Bitcast Cast EnsureShape "
    "Slice StridedSlice Split SplitV Unpack Pack Concat ConcatV2 AddN Transpose BroadcastTo Snapshot Merge Switch Sum "
    "Mean Max Min Prod".split()
)
"""Ops that may return the memory of their inputs, if there is nothing to compute."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that is false.

    Attributes:
        tensor: its subject.
        op: the tensor's op type.
        statement: the claim.
        observed: how far the workers are from it.
    """

    tensor: str
    op: str
    statement: str
    observed: str

    def __str__(self) -> str:
        return f"{self.op} {self.tensor!r} is said to be {self.statement}, and {self.observed}"


class CheckedClaim(NamedTuple):
    """A checked claim: its text, and how far the workers are from it, relative to the tensor's size."""

    statement: str
    gap: float


def find_watched(view: GraphView, op: str) -> tuple[str, ...]:
    """The tensors between batch and update that can be fetched together with the update, in topological order."""
    watched: list[str] = []
    needed, branches, fleeting = view.ancestors([op]), branches_of(view), set[str]()
    for node in view.topological_order():
        shares = view.op(node) in _SHARES and any(node_of(t) in fleeting for t in view.inputs(node))
        if shares or view.gives_reference(node):
            fleeting.add(node)
        if node not in needed or node in fleeting or branches[node] or view.op(node) == "Switch":
            continue
        for tensor in view.outputs(node):
            dtype = tf.as_dtype(view.dtype(tensor))
            if dtype.is_floating or dtype.is_integer or dtype.is_bool:
                watched.append(tensor)
    return tuple(watched)


class Claims:
    """The analysis's claims about the tensors of its graph."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._reductions = {one.tensor: one for one in walk.all_reduces}
        self._scaled = {scale.tensor for scale in walk.scales}
        self._layouts = _find_layouts(walk)
        merges = walk.merges.values()
        edges = [e for m in merges for e in m.indices]
        edges += [e for m in merges if m.part not in walk.assumptions.table_of for e in m.values]
        self._unordered = _find_descendants(walk.view, {edge.node for edge in edges})

    def op(self, tensor: str) -> str:
        """The type of the op that computes a tensor."""
        return self._walk.view.op(node_of(tensor))

    def describe(self, tensor: str) -> str:
        """The claim about a tensor; empty if there is none."""
        node, state = node_of(tensor), self._walk.states.get(tensor)
        if node in self._unordered:
            return ""
        if tensor in self._layouts and (state is None or state.kind in _UP_TO_GRADIENTS):
            return _claim_of(self._layouts[tensor])
        if tensor in self._reductions:
            return PART.format(kind=self._reductions[tensor].kind)
        if tensor in self._scaled:
            return GRADIENT
        if state is None:
            return ""
        if state.kind == "values" and self._walk.shared_rows:
            return ""
        along_rows = {kind: ROWS.format(kind=kind) for kind in ("values", "touched")}
        return {"same": SAME, "rows": OWNED, **along_rows}.get(state.kind, "")

    def needs(self, tensor: str) -> tuple[str, ...]:
        """The tensors by which the claim about one is checked: itself, and the weight of its parts."""
        one = self._reductions.get(tensor)
        return (tensor, one.weight) if one is not None and one.weight else (tensor,)

    def check_claim(self, tensor: str, value: Value, by_worker: Sequence[Values]) -> CheckedClaim | None:
        """Checks the claim about a tensor; None if there is none, or some worker does not have it.

        Args:
            tensor: of the graph.
            value: the one process's.
            by_worker: each worker's; of one worker, if the claim is about the full tensor.
        """
        statement = self.describe(tensor)
        if not statement or not all(name in values for values in by_worker for name in self.needs(tensor)):
            return None
        gap = self._gap(
            tensor, statement, np.asarray(value), [np.asarray(values[tensor]) for values in by_worker], by_worker
        )
        return None if gap is None else CheckedClaim(statement, gap)

    def _gap(
        self, tensor: str, statement: str, value: Array, parts: list[Array], by_worker: Sequence[Values]
    ) -> float | None:
        """The relative difference of parts from the claim about them; None if rows are not numeric."""
        layout = self._layouts.get(tensor)
        if statement == PIECE and isinstance(layout, Sharded):
            return _relative(np.concatenate(parts, layout.axis), value)
        if isinstance(layout, Partial) and statement == _claim_of(layout):
            return _relative(_PUT_TOGETHER[layout.kind](parts, None), value) if _are_alike([value, *parts]) else None
        if tensor in self._reductions:
            one = self._reductions[tensor]
            weights = [len(values[one.weight]) for values in by_worker] if one.kind == "rows_mean" else None
            whole = _PUT_TOGETHER[one.kind](parts, weights) if _are_alike([value, *parts]) else None
            return _relative(whole, value)
        if statement == GRADIENT:
            sums = [part.sum(0) / len(parts) for part in parts]
            return _relative(sum(sums), value.sum(0), np.abs(value).sum(0))
        if statement == SAME or (statement == OWNED and len(parts) == 1):
            return max(_relative(part, value) for part in parts)
        if not value.ndim or (statement != OWNED and not np.issubdtype(value.dtype, np.floating)):
            return None
        if statement == OWNED:
            return self._gap_of_owners(tensor, value, parts)
        of_sums = _relative(sum(part.sum(0) for part in parts), value.sum(0), np.abs(value).sum(0))
        of_squares = _relative(sum((part**2).sum(0) for part in parts), (value**2).sum(0))
        return max(of_sums, of_squares)

    def _gap_of_owners(self, tensor: str, value: Array, parts: list[Array]) -> float:
        ownership = self._walk.facts.tables[self._walk.states[tensor].of].ownership(len(parts))
        rows = [[ownership.row(rank, local) for local in range(len(part))] for rank, part in enumerate(parts)]
        if sum(map(len, rows)) != len(value):
            return float("inf")
        return max(_relative(part, value[of]) for part, of in zip(parts, rows, strict=True))


_UP_TO_GRADIENTS = ("same", "batch", "local", "mean")


def _find_layouts(walk: Walk) -> dict[str, Layout]:
    """The layouts of the workers' tensors, if the graph has layouts: before means are weighted and sums are reduced."""
    layouts = walk.facts.layouts
    if layouts is None:
        return {}
    layout_by_tensor: dict[str, Layout] = {tensor: fact.layout for tensor, fact in layouts.facts.items()}
    for change in layouts.rewrites.changes:
        if layout_by_tensor.get(change.tensor) == change.after:
            layout_by_tensor[change.tensor] = change.before
    for node in (*(one.node for one in layouts.rewrites.means), *(one.node for one in layouts.rewrites.ranges)):
        layout_by_tensor[f"{node}:0"] = LengthValue()
    return layout_by_tensor


def _claim_of(layout: Layout) -> str:
    """The claim of a layout; empty for per-worker values."""
    if isinstance(layout, Partial):
        return PART.format(kind={"min": "minimum", "max": "maximum"}.get(layout.kind, layout.kind))
    if isinstance(layout, Sharded) and layout.part.blocks == 1:
        return PIECE
    return SAME if isinstance(layout, Replicated) else ""


def false_claim(claims: Claims, tensor: str, checked: CheckedClaim) -> Claim:
    """The report of a checked claim that is false."""
    return Claim(tensor, claims.op(tensor), checked.statement, f"is off by {checked.gap:.2g} of its size")


def _find_descendants(view: GraphView, nodes: set[str]) -> set[str]:
    """Some nodes, and their descendants."""
    descendants = set(nodes)
    for node in view.topological_order():
        if any(node_of(tensor) in descendants for tensor in view.inputs(node)):
            descendants.add(node)
    return descendants


def _are_alike(values: Sequence[Array]) -> bool:
    return len({value.shape for value in values}) == 1


def _relative(received: Any, expected: Any, size: Any = None) -> float:
    if received is None or np.shape(received) != np.shape(expected):
        return float("inf")
    received, expected = np.asarray(received, np.float64), np.asarray(expected, np.float64)
    if np.array_equal(received, expected, equal_nan=True):
        return 0.0
    scale = float(np.max(np.abs(expected if size is None else size), initial=0.0))
    gap = float(np.max(np.abs(received - expected)))
    return gap / scale if scale else gap


_PUT_TOGETHER: dict[str, Callable[[list[Array], list[int] | None], Value]] = {
    "sum": lambda parts, _: np.sum(parts, 0),
    "mean": lambda parts, _: np.mean(parts, 0),
    "min": lambda parts, _: np.min(parts, 0),
    "max": lambda parts, _: np.max(parts, 0),
    "rows_mean": lambda parts, weights: np.average(parts, 0, weights),
}
