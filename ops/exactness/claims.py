"""What the analysis says of single tensors, tried: the first op, in topological order, of which it says what is not so.

Every state (parallax/analysis/states.py) is a claim about what the workers hold of a tensor, against the one process:
- `same`: every worker has the one process's value;
- a part of a sum, mean, minimum or maximum: all parts put together are the one process's value;
- `values`, `touched`: the rows of all workers, or owners, add up to the one process's, and so do their squares. The
  order of rows is no claim: the one process has the rows of a first lookup of all workers, then those of a second.
  Nor is it one where ids are the same on all workers: only worker 0 has values there, and the others have zeros;
- a gradient that leaves autodiff as joined rows: the mean over the workers of all rows' sum is the one process's sum;
- `rows`: every owner has its rows of the one process's value.

Other states claim nothing. Not looked at are tensors inside of conditionals and loops, and those behind the exchange of
gradient rows whose variable all workers hold, as these rows come in another order than in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallax.analysis.walk import Walk
from parallax.control_flow import branches_of
from parallax.graph_view import GraphView, split_tensor

Values = Mapping[str, Any]
"""Tensor -> its value in one run."""

_REFERENCES = ("VariableV2", "Variable")


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that is false.

    Attributes:
        tensor: of which something is said.
        op: its type.
        said: what is said.
        seen: how far the workers are from it.
    """

    tensor: str
    op: str
    said: str
    seen: str

    def __str__(self) -> str:
        return f"{self.op} {self.tensor!r} is said to be {self.said}, and {self.seen}"


def watched(view: GraphView, op: str) -> tuple[str, ...]:
    """The tensors between batch and an update that can be fetched with it, in topological order.

    References to variables change while a run goes on: a graph that has any is not looked at.
    """
    import tensorflow as tf

    if any(view.op(node) in _REFERENCES for node in view.nodes):
        return ()
    found: list[str] = []
    needed, branches = view.ancestors([op]), branches_of(view)
    for node in view.topological_order():
        if node not in needed or branches[node] or view.op(node) == "Switch":
            continue
        for tensor in view.outputs(node):
            dtype = tf.as_dtype(view.dtype(tensor))
            if dtype.is_floating or dtype.is_integer or dtype.is_bool:
                found.append(tensor)
    return tuple(found)


def first_false(walk: Walk, expected: Values, found: Sequence[Values], tolerance: float) -> Claim | None:
    """The first claim that does not hold in a run.

    Args:
        walk: that has the claims.
        expected: what the one process has, in topological order.
        found: what each worker has.
        tolerance: of the size of a value, or of the terms of a sum.
    """
    behind = _behind(walk.view, {edge.node for merge in walk.merges.values() for edge in merge.indices})
    for tensor, value in expected.items():
        if split_tensor(tensor)[0] not in behind and all(tensor in values for values in found):
            parts = [np.asarray(values[tensor]) for values in found]
            said, gap = _gap(walk, tensor, np.asarray(value), parts, found)
            if not gap <= tolerance:
                return Claim(tensor, walk.view.op(split_tensor(tensor)[0]), said, f"is off by {gap:.2g} of its size")
    return None


def _behind(view: GraphView, nodes: set[str]) -> set[str]:
    """Some nodes, and all that take anything of them."""
    found = set(nodes)
    for node in view.topological_order():
        if any(split_tensor(tensor)[0] in found for tensor in view.inputs(node)):
            found.add(node)
    return found


def _gap(walk: Walk, tensor: str, value: Any, parts: list[Any], found: Sequence[Values]) -> tuple[str, float]:
    """What is said of a tensor, and how far it is from that, relative to its size."""
    put_together = {one.tensor: one for one in walk.all_reduces}
    state = walk.states.get(tensor)
    if tensor in put_together:
        one = put_together[tensor]
        weights = [len(values[one.weight]) for values in found] if one.kind == "rows_mean" else None
        whole = _PUT_TOGETHER[one.kind](parts, weights) if _are_alike([value, *parts]) else None
        return f"a part of a {one.kind}", _relative(whole, value)
    if tensor in {scale.tensor for scale in walk.scales}:
        sums = [part.sum(0) / len(parts) for part in parts]
        return "a gradient of rows", _relative(sum(sums), value.sum(0), np.abs(value).sum(0))
    if state is None:
        return "", 0.0
    if state.kind == "same":
        return "the same on all workers", max(_relative(part, value) for part in parts)
    if state.kind == "values" and walk.shared_rows:
        return "", 0.0
    if state.kind in ("values", "touched") and value.ndim and np.issubdtype(value.dtype, np.floating):
        of_sums = _relative(sum(part.sum(0) for part in parts), value.sum(0), np.abs(value).sum(0))
        of_squares = _relative(sum((part**2).sum(0) for part in parts), (value**2).sum(0))
        return f"rows ({state.kind})", max(of_sums, of_squares)
    if state.kind == "rows" and value.ndim:
        ownership = walk.tables[state.key[0]].ownership(len(parts))
        rows = [[ownership.row(rank, local) for local in range(len(part))] for rank, part in enumerate(parts)]
        if sum(map(len, rows)) != len(value):
            return "an owner's rows", float("inf")
        return "an owner's rows", max(_relative(part, value[of]) for part, of in zip(parts, rows, strict=True))
    return "", 0.0


def _are_alike(values: Sequence[Any]) -> bool:
    return len({value.shape for value in values}) == 1


def _relative(found: Any, expected: Any, size: Any = None) -> float:
    if found is None or np.shape(found) != np.shape(expected):
        return float("inf")
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if np.array_equal(found, expected, equal_nan=True):
        return 0.0
    scale = float(np.max(np.abs(expected if size is None else size), initial=0.0))
    gap = float(np.max(np.abs(found - expected)))
    return gap / scale if scale else gap


_PUT_TOGETHER: dict[str, Callable[[list[Any], list[int] | None], Any]] = {
    "sum": lambda parts, _: np.sum(parts, 0),
    "mean": lambda parts, _: np.mean(parts, 0),
    "workers_mean": lambda parts, _: np.mean(parts, 0),
    "min": lambda parts, _: np.min(parts, 0),
    "max": lambda parts, _: np.max(parts, 0),
    "rows_mean": lambda parts, weights: np.average(parts, 0, weights),
}
