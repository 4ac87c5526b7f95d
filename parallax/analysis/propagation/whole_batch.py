"""Finds what predicates, hyperparameters and results take of the batch that workers can put together, and does so.

A sum, mean, maximum, minimum, `all` or `any` over the batch, and the batch's length, are each worker's part of what one
process has. Where a predicate of an update, or what a gradient is multiplied by, is computed of such parts and of what
all workers have alike, it is computed of the whole ones: these are all-reduced as they are reduced over the batch. Only
the paths that lead there see them; the loss itself stays each worker's. So is what a step reports or counts, where that
is not a mean or a sum over the batch already (part_sums.py). With a batch of fixed size a constant may be
its length, of which the one process has another: no sum over it is put together.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_loops import gives_the_same
from parallax.analysis.propagation.axis_part import MIXED
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.choices import find_choices
from parallax.analysis.propagation.padded_rows import find_longest
from parallax.analysis.propagation.part_sums import parts_of_results
from parallax.analysis.propagation.states import SAME, Fed, Opaque, Plain, Same
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.functions import takes_functions
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.errors import GraphError
from parallax.graph.control_flow import MERGES
from parallax.graph.view import Edge, split_tensor
from parallax.plans.rewrites import AllReduce

_KINDS = {"Sum": "sum", "L2Loss": "sum", "Mean": "rows_mean", "Max": "max", "Min": "min", "All": "min", "Any": "max"}
_BOOL = 10  # types.proto
_ASKED_BY = {False: "an update", True: "a result or a choice"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A part of what the one process has, to be put together.

    Attributes:
        tensor: what a worker has a part of.
        kind: how parts are put together (decisions.AllReduce).
        weight: for a mean over rows, what was averaged.
        takers: the nodes that take the whole.
        is_result: whether no update asks for it, but what a step reports, counts or chooses by.
    """

    tensor: str
    kind: str
    weight: str
    takers: frozenset[str]
    is_result: bool = False


def find_wholes(walk: Walk) -> tuple[dict[str, Whole], str]:
    """What a walk to the end shows: the parts, beside those that are known, and a tensor that is not proven to be one.

    All parts of an input are put together, or none.
    """
    look, wholes, unproven = _BatchParts(walk), dict(walk.assumed.wholes), ""
    edges = list(dict.fromkeys(walk.decisive))
    paths = {edge: look.parts_of(edge) for edge in edges}
    on_paths = {node for one in paths.values() for node in one.nodes}
    for edge, path in paths.items():
        aside = look.taken_aside(path.nodes - {edge.node}, on_paths)
        found, missing = ([], aside) if aside else (path.parts, path.unproven)
        unproven = unproven or missing
        for whole in found:
            before = wholes.get(whole.tensor)
            takers = whole.takers | (before.takers if before is not None else frozenset())
            wholes[whole.tensor] = replace(whole, takers=takers)
    for part in parts_of_results(walk):
        before = wholes.get(part.tensor, Whole(*part, is_result=True))
        wholes[part.tensor] = replace(before, takers=before.takers | part.takers)
    for node in find_longest(walk):
        takers = frozenset(edge.node for edge in walk.view.consumers(f"{node}:0"))
        wholes.setdefault(f"{node}:0", Whole(f"{node}:0", "max", "", takers, is_result=True))
    for node, kind in find_choices(walk).items():
        takers = frozenset(edge.node for edge in walk.view.consumers(f"{node}:0"))
        wholes.setdefault(f"{node}:0", Whole(f"{node}:0", kind, "", takers, is_result=True))
    return wholes, unproven


def visit(walk: Walk, node: str) -> None:
    """Has parts put together that a walk before asked for."""
    for tensor in walk.view.outputs(node) if walk.assumed.wholes else ():
        whole = walk.assumed.wholes.get(tensor)
        if whole is None or walk.states[tensor] == SAME:
            continue
        edges = tuple(edge for edge in walk.view.consumers(tensor) if edge.node in whole.takers)
        walk.all_reduces.append(AllReduce(tensor, edges, whole.kind, whole.weight, keeps_own=True))
        if len(edges) == len(walk.view.consumers(tensor)):
            walk.states[tensor] = SAME
        walk.marked.update({(tensor, edge.node): SAME for edge in edges})


def check_kept(walk: Walk) -> None:
    """Gradients that are kept over several batches must not depend on what one batch has.

    Raises:
        GraphError: one does.
    """
    wholes = [tensor for tensor, one in walk.assumed.wholes.items() if not one.is_result]
    if wholes:
        raise GraphError(
            f"Where an update takes several batches, it must not depend on {min(wholes)!r}, which is "
            "computed of one of them. Compute conditions and rates from variables, or leave accumulate_steps at 1."
        )


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of them, a sentence each."""
    return tuple(
        f"{_ASKED_BY[one.is_result]} depends on {one.tensor}, which is put together over the workers ({one.kind})"
        for _, one in sorted(walk.assumed.wholes.items())
    )


class _Path(NamedTuple):
    """What leads to an input: the parts, or else a tensor that is not proven to be one; and the nodes behind them."""

    parts: list[Whole]
    unproven: str
    nodes: frozenset[str]


class _BatchParts:
    """What parts are judged by."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._axes = BatchAxes(walk.view, walk.states)
        self._made = autodiff_ops(walk.known.captured)
        self._divided = {
            edge.node for one in walk.assumed.denominators.divided if not one.is_mean for edge in one.edges
        }
        self._selected = {one.node for one in walk.assumed.denominators.selected}

    def taken_aside(self, nodes: Set[str], on_paths: Set[str]) -> str:
        """A tensor that is computed of the whole, and that a worker's own gradients take too; empty where none is."""
        view, walk = self._walk.view, self._walk
        for node in sorted(nodes):
            for tensor in view.outputs(node):
                if any(e.node in walk.known.read and e.node not in on_paths for e in view.consumers(tensor)):
                    return tensor
        return ""

    def parts_of(self, edge: Edge) -> _Path:
        """The parts that an input is computed of; or none, and a tensor that is not proven to be one."""
        view, parts = self._walk.view, dict[str, tuple[str, str]]()
        waiting, seen = [edge], {edge.node}
        while waiting:
            edge = waiting.pop()
            tensor, state = view.inputs(edge.node)[edge.slot], self._walk.state_at(edge.node, edge.slot)
            if isinstance(state, Same | Fed) or not isinstance(state, Plain) or tensor in parts:
                continue
            part = self._part(tensor)
            if part is not None:
                parts[tensor] = part
                continue
            giver = split_tensor(tensor)[0]
            if isinstance(state, Opaque) or not self._is_function_of_inputs(giver):
                return _Path([], tensor, frozenset())
            if giver not in seen:
                seen.add(giver)
                waiting += [Edge(giver, number) for number in range(len(view.inputs(giver)))]
        found = []
        for tensor, (kind, weight) in sorted(parts.items()):
            taking = {taker.node for taker in view.consumers(tensor)}
            takers = taking if view.dtype(tensor) == _BOOL else taking & seen
            found.append(Whole(tensor, kind, weight, frozenset(takers)))
        return _Path(found, "", frozenset(seen))

    def _part(self, tensor: str) -> tuple[str, str] | None:
        """(how the workers' parts are put together, what a mean is weighted by); None where it is no part."""
        view, (node, _) = self._walk.view, split_tensor(tensor)
        op, branches = view.op(node), self._walk.known.branches[node]
        if node in self._selected or any(b.is_loop for b in branches) or not self._walk.agrees(branches):
            return None
        if node in self._divided:  # each worker's is its sum, divided by a W-th of the whole denominator
            return "workers_mean", ""
        if is_length(self._axes, tensor):
            return "sum", ""
        if op not in _KINDS or not self._is_over_batch(node):
            return None
        summed = view.inputs(node)[0]
        axis, shape = self._axes.of(summed) or 0, view.shape(summed) or ()
        if self._is_made_by_autodiff(summed) or (_KINDS[op] == "sum" and shape[max(axis, 0)] is not None):
            return None
        if op == "Mean" and axis not in (0, MIXED):
            return ("workers_mean", "") if shape[axis] is not None else None
        return _KINDS[op], summed if op == "Mean" else ""

    def _is_over_batch(self, node: str) -> bool:
        """Whether a node reduces a tensor over its joined axis."""
        view = self._walk.view
        summed = view.inputs(node)[0]
        axis, shape = self._axes.of(summed), view.shape(summed)
        if axis is None or not shape:
            return False
        over = view.constant(view.inputs(node)[1]) if view.op(node) != "L2Loss" else None
        places = range(len(shape)) if view.op(node) == "L2Loss" else [] if over is None else over.reshape(-1)
        return max(axis, 0) in {int(place) % len(shape) for place in places}

    def _is_made_by_autodiff(self, tensor: str) -> bool:
        """Whether gradients of this worker's loss are in it, which are W times those of the one process's loss."""
        waiting, seen = [split_tensor(tensor)[0]], set[str]()
        while waiting:
            node = waiting.pop()
            if node in self._made:
                return True
            seen.add(node)
            needed = enumerate(self._walk.view.inputs(node))
            before = {split_tensor(t)[0] for slot, t in needed if self._walk.state_at(node, slot) != SAME}
            waiting += sorted(before - seen)
        return False

    def _is_function_of_inputs(self, node: str) -> bool:
        """Whether a node gives the one process's result where its inputs are the one process's."""
        view, op = self._walk.view, self._walk.view.op(node)
        if not view.inputs(node) or node in self._made or self._axes.sources_of(node):
            return False
        return not takes_functions(op) and gives_the_same(op) and op not in MERGES
