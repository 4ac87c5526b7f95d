"""What steps add to variables of which each worker has a part, as metrics count (graph/batches.py).

The value of such a variable is the sum of all workers' parts. A sum over a worker's examples is its part of what one
process adds. What all workers have alike is added by one of them alone, and a mean over the batch counts by the
worker's share of all examples. Of what is not seen to be either, each worker's own is taken for its part; where
examples meet in it, the plan says so (examples_apart.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_loops import gives_the_same
from parallax.analysis.propagation.axis_meets import is_real
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.choices import comparisons, differentiated
from parallax.analysis.propagation.chosen_rows import PASSES, ChosenRows
from parallax.analysis.propagation.lengths import Lengths
from parallax.analysis.propagation.losses import additions, results, returned_parts, trained_losses, written_within
from parallax.analysis.propagation.sums import is_weighed, trained_sums
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.functions import takes_functions
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.graph.batches import COUNTED, WEIGHT, reported_as, reported_values
from parallax.graph.control_flow import MERGES
from parallax.graph.view import Edge, split_tensor
from parallax.plans.losses import PartAdded

_PASSES = (*(op for op in PASSES if op != "Cast"), "CheckNumerics", "Snapshot", "PreventGradient", "Neg", "EnsureShape")
_ADDS = ("Add", "AddV2", "AddN", "Sub", "Pack")
_DIVISIONS = ("RealDiv", "Div", "DivNoNan")
_RESIZES = (
    *("Sum", "Mean", "BroadcastTo", "Tile", "Cumsum", "ReverseV2", "Transpose", "StridedSlice", "Slice", "Unpack"),
)
"""Of a known number of sums, or of means, they give sums or means."""
_ALIKE, _MEAN, _PART, _SUM, _LENGTH = "alike", "mean", "part", "sum", "length"
_BOTH, _INVERSE, _OTHER = "sum and more", "inverse of a share", "other"
_TOGETHER = {_MEAN: "workers_mean", _SUM: "sum", _LENGTH: "sum"}
_EXTREMES = {"Max": "max", "Min": "min", "All": "min", "Any": "max"}
_SUMS = ("Sum", "L2Loss", "UnsortedSegmentSum")


def find_parts(walk: Walk, batches: Mapping[str, str]) -> tuple[PartAdded, ...]:
    """Additions of a finished walk that are not a part of the one process's as they are.

    Args:
        walk: the walk.
        batches: node -> the batch that it is computed of.
    """
    added = [one for one in additions(walk.view) if one.edge.node not in walk.known.initial]
    if not added:
        return ()
    look, found = _Kinds(walk), []
    for one in added:
        tensor = walk.view.inputs(one.edge.node)[one.edge.slot]
        kind, batch = look.of(tensor), batches.get(split_tensor(tensor)[0], "")
        if kind == _ALIKE:
            found.append(PartAdded(one.edge))
        elif batch and not _is_in_loop(walk, one.edge.node):
            found.append(PartAdded(one.edge, batch, is_mean=kind == _MEAN))
    return tuple(found)


def find_uncounted(walk: Walk) -> tuple[str, ...]:
    """Names of variables of which each worker has a part, and to which it adds in a loop: with examples or without."""
    written = [v for v, node in written_within(walk.view) if node not in walk.known.initial]
    written += [one.variable for one in additions(walk.view) if _is_in_loop(walk, one.edge.node)]
    return tuple(dict.fromkeys(walk.known.captured.variables[v].logical_name for v in written))


def _is_in_loop(walk: Walk, node: str) -> bool:
    return any(branch.is_loop for branch in walk.known.branches[node])


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of parts that are reported, or written in loops, or where a worker's own batch says so."""
    return (*_notes_of_reported(walk), *_notes_of_written(walk))


def _notes_of_reported(walk: Walk) -> tuple[str, ...]:
    return tuple(
        f"{value!r} is reported and computed of {part!r}, of which each worker has a part: one process would take all "
        "of it. Ask metric.result() outside of the step"
        for part, value in returned_parts(walk.view)[:1]
    )


def _notes_of_written(walk: Walk) -> tuple[str, ...]:
    branches = walk.known.branches
    found = [(v, node) for v, node in written_within(walk.view) if node not in walk.known.initial]
    found += [(a.variable, a.edge.node) for a in additions(walk.view) if not walk.agrees(branches[a.edge.node])]
    if not found:
        return ()
    variable, node = found[0]
    return (
        f"{walk.view.op(node)} {node!r} adds to {variable!r}, of which each worker has a part, in a loop, or where its "
        "own batch says so: what is no sum over examples there is added by each worker, and one process would add it "
        "once. Add it outside, times 0 or 1",
    )


class PartOfResult(NamedTuple):
    """What a result is computed of, of which each worker has a part.

    Attributes:
        tensor: what a worker has a part of.
        kind: how parts are put together (rewrites.AllReduce).
        weight: for a mean over rows, what was averaged.
        takers: the nodes that take the whole for a result.
    """

    tensor: str
    kind: str
    weight: str
    takers: frozenset[str]


def parts_of_results(walk: Walk) -> list[PartOfResult]:
    """What results and choices are computed of.

    Results are of metrics that do not add up parts, and reported values that are no means. Choices are comparisons.
    """
    view = walk.view
    others: dict[Edge, tuple[str, ...]] = {
        one.edge: (_BOTH, _OTHER) for one in additions(view) if one.edge.node not in walk.known.initial
    }
    reported = [Edge(split_tensor(tensor)[0], 0) for tensor in reported_values(view)]
    others |= dict.fromkeys(reported, (_SUM, _LENGTH, _BOTH, _OTHER))
    compared = comparisons(walk)
    if not others and not compared:
        return []
    look = _Kinds(walk)
    asked = [e for e, kinds in others.items() if look.of(view.inputs(e.node)[e.slot]) in kinds]
    found = [look.parts_of(edge, look.trained) for edge in asked]
    apart = differentiated(walk) if compared else frozenset()
    found += [look.parts_of_all(node, apart) for node in compared]
    return [part for parts in found for part in parts]


class _Kinds:
    """What workers' values of a scalar, or of several, are of the one process's.

    Attributes:
        trained: the nodes of which trained losses are computed.
    """

    def __init__(self, walk: Walk) -> None:
        self._made = made = autodiff_ops(walk.known.captured)
        self._walk, self._view, self._axes = walk, walk.view, BatchAxes(walk.view, walk.states)
        self._chosen = ChosenRows(walk, made, walk.view.nodes.keys() - made - walk.known.initial)
        self.trained: Set[str] = self._view.computed_of(split_tensor(loss)[0] for loss in trained_losses(walk))
        found = walk.assumed.denominators
        self._quotients: Set[str] = {e.node for one in found.divided if not one.is_mean for e in one.edges}
        self._selected = {one.node: one.rows for one in found.selected if not one.is_whole}
        self._summed = trained_sums(walk)
        self._whole: Set[str] = {one.tensor for one in found.divided}
        edges = {(e.node, e.slot) for one in found.divided if not one.is_mean for e in one.edges}
        given = [*results(walk.view), *(walk.view.inputs(one.edge.node)[one.edge.slot] for one in additions(walk.view))]
        self._lengths = Lengths(walk, self._axes, made, given, edges)

    def of(self, tensor: str) -> str:
        """The kind of a tensor."""
        view, node = self._view, split_tensor(tensor)[0]
        op, inputs, marked = view.op(node), view.inputs(node), reported_as(view.nodes[node])
        if node in self._quotients:  # a worker's is by its share of what is divided by
            return _INVERSE if self.of(inputs[0]) == _ALIKE else _MEAN
        if self._walk.states[tensor].kind in ("same", "fed") or marked == WEIGHT:
            return _ALIKE
        if marked == COUNTED:
            return _PART
        if node in self._selected or node in self._summed or (op == "Mean" and self._is_over_batch(node)):
            return _MEAN
        if op in _SUMS and self._is_over_batch(node):
            return _MEAN if is_weighed(self._walk, node) else _SUM
        is_count = is_length(self._axes, tensor) or self._chosen.counts(node)
        if is_count or (op == "Prod" and self._lengths.is_length(tensor)):
            return _LENGTH
        if op == "Cast" and not is_real(view, tensor) and is_real(view, inputs[0]):
            return _OTHER if self.of(inputs[0]) != _ALIKE else _ALIKE
        if op in (*_PASSES, "Cast") or (op in _RESIZES and self._is_small(inputs[0]) and self._is_small(tensor)):
            return self.of(inputs[0])
        if op in _ADDS:
            return self._of_sum([self.of(t) for t in inputs])
        if op == "Mul":
            own = [kind for t in inputs if (kind := self.of(t)) != _ALIKE]
            if sorted(own) == [_INVERSE, _SUM]:
                return _MEAN
            return own[0] if len(own) == 1 else _ALIKE if not own else _OTHER
        if op in _DIVISIONS:
            return self._of_quotient(node, inputs)
        return _OTHER

    def parts_of_all(self, node: str, apart: Set[str]) -> list[PartOfResult]:
        """What all inputs of a node are computed of; see `parts_of`."""
        found = []
        for slot, tensor in enumerate(self._view.inputs(node)):
            if self.of(tensor) != _ALIKE:
                parts = self.parts_of(Edge(node, slot), apart)
                if not parts:
                    return []
                found += parts
        return found

    def parts_of(self, edge: Edge, apart: Set[str]) -> list[PartOfResult]:
        """What an input is computed of that workers have parts of; nothing where that is not all.

        Args:
            edge: of the input.
            apart: nodes that must have each worker's own part: gradients are computed by what they take.
        """
        view, takers, seen = self._view, dict[str, set[str]](), {edge.node}
        kinds, waiting = dict[str, str](), [edge]
        while waiting:
            edge = waiting.pop()
            tensor = view.inputs(edge.node)[edge.slot]
            node = split_tensor(tensor)[0]
            kind = self._together(tensor)
            if kind:
                kinds[tensor] = kind
                takers.setdefault(tensor, set()).add(edge.node)
            elif self.of(tensor) != _ALIKE:
                if not self._is_small(tensor) or not self._is_function(node):
                    return []
                if node not in seen:
                    seen.add(node)
                    waiting += [Edge(node, slot) for slot in range(len(view.inputs(node)))]
        if any(nodes & apart for nodes in takers.values()):
            return []
        rows = {tensor: self._selected.get(split_tensor(tensor)[0], "") for tensor in takers}
        return [PartOfResult(t, kinds[t], rows[t], frozenset(nodes)) for t, nodes in takers.items()]

    def _together(self, tensor: str) -> str:
        """How workers' parts of a tensor are put together; empty where they are none, or not all workers have them."""
        node = split_tensor(tensor)[0]
        kind = _TOGETHER.get(self.of(tensor), "")
        if node in self._selected or node in self._summed:  # who takes these sees them weighted
            kind = "rows_mean" if node in self._selected else "sum"
        if not kind and self._view.op(node) in _EXTREMES and self._is_over_batch(node):
            kind = _EXTREMES[self._view.op(node)]
        branches = self._walk.known.branches[node]
        is_run = not any(one.is_loop for one in branches) and self._walk.agrees(branches)
        return kind if is_run and self._is_small(tensor) else ""

    def _is_function(self, node: str) -> bool:
        """Whether a node gives the one process's result where its inputs are the one process's."""
        view, op = self._view, self._view.op(node)
        if not view.inputs(node) or node in self._made or any(self._is_state(t) for t in view.inputs(node)):
            return False
        return not takes_functions(op) and gives_the_same(op) and op not in MERGES

    def _is_state(self, tensor: str) -> bool:
        return self._walk.states[tensor].kind == "handle"

    def _of_quotient(self, node: str, inputs: tuple[str, ...]) -> str:
        if self._lengths.is_mean(node):
            return _MEAN
        return self.of(inputs[0]) if inputs[1] in self._whole or self.of(inputs[1]) == _ALIKE else _OTHER

    def _of_sum(self, kinds: list[str]) -> str:
        own = {kind for kind in kinds if kind != _ALIKE}
        if len(own) < 2 and (_MEAN in own or _ALIKE not in kinds or not own):
            return next(iter(own), _ALIKE)
        return _BOTH if own <= {_MEAN, _SUM, _BOTH} else _OTHER

    def _is_over_batch(self, node: str) -> bool:
        return self._axes.of(self._view.inputs(node)[0]) is not None and self._axes.of(f"{node}:0") is None

    def _is_small(self, tensor: str) -> bool:
        """Whether a tensor has a known number of elements: scalars that were put together."""
        shape = self._view.shape(tensor)
        return shape is not None and None not in shape
