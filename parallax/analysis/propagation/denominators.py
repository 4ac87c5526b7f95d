"""Finds losses that are divided by a sum over the batch, as means over a mask are, and has that sum be of all workers.

Each worker's loss is then its own sum divided by a W-th of the whole denominator. The mean of those over the workers
is the one process's loss, and so is the mean of their gradients, whatever part of the mask each worker has. A mean over
elements that a mask has chosen is such a division too; its denominator is the number of elements.

Proven are sums of what lies along the batch and has no gradient by a trained variable (batch_axis.py). Of any other
such division the plan notes what is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from parallax.analysis.propagation import curved, lengths
from parallax.analysis.propagation.axis_einsum import sums_over_batch
from parallax.analysis.propagation.chosen_rows import PASSES, ChosenRows
from parallax.analysis.propagation.losses import results, trained_losses
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.analysis.propagation.states import SAME
from parallax.analysis.propagation.suspicious import sums_of_losses
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.graph.view import Edge, GraphView, split_tensor
from parallax.plans.losses import Divided, Selected
from parallax.plans.rewrites import AllReduce

_DIVISIONS = ("RealDiv", "Div", "DivNoNan")
_OVER_BATCH = ("Sum", "Mean")
_READS_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_WITHOUT_GRADIENT = (
    *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "ApproximateEqual"),
    *("LogicalAnd", "LogicalOr", "LogicalNot", "IsNan", "IsInf", "IsFinite", "ArgMax", "ArgMin", "Where"),
    "StopGradient",
)
"""Ops through which no gradient goes, as what they give is of whole numbers or truth values, or is meant to stop it."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """What losses are divided by.

    Attributes:
        sums: scalars that are sums over a worker's batch; the one process has the sum of all.
        divided: where what is computed of them divides.
        selected: means over chosen elements.
        unproven: (division, denominator) where a loss is divided by what else depends on the batch.
        unproven_means: means of which it cannot be seen whether they are over chosen elements.
        curved: means over the batch that a loss is a curved function of (curved.py).
        statistics: nodes that give means over a worker's own batch, which go back into each of its examples.
        bent: nodes that take the length of a worker's own batch as a number (lengths.py).
        numbers: nodes that make numbers of examples' places or distinct values in a worker's own batch.
        summed: losses that are sums over the batch, of which nothing else tells.
    """

    sums: frozenset[str] = frozenset()
    divided: tuple[Divided, ...] = ()
    selected: tuple[Selected, ...] = ()
    unproven: tuple[tuple[str, str], ...] = ()
    unproven_means: tuple[str, ...] = ()
    curved: frozenset[str] = frozenset()
    statistics: tuple[str, ...] = ()
    bent: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()


def find_denominators(walk: Walk, before: Denominators) -> Denominators:
    """What a finished walk shows of losses' denominators; what was found `before` stays."""
    look = _DivisionRules(walk)
    sums, divided = set(before.sums), list(before.divided)
    means = {one.node: one for one in before.selected}
    unproven: list[tuple[str, str]] = []
    unproven_means: list[str] = []
    losses = trained_losses(walk)
    edges = {(edge.node, edge.slot) for one in divided if not one.is_mean for edge in one.edges}
    grown = lengths.Lengths(walk, look.chosen.axes, look.made, losses, edges)
    look.lengths = frozenset() if look.divide_others(grown.values()) else grown.values()
    sums |= look.lengths
    for node in walk.view.topological_order():
        if node not in look.forward:
            continue
        if walk.view.op(node) in _DIVISIONS:
            _look_at_division(look, node, sums, divided, unproven)
        elif walk.view.op(node) == "Mean" and node not in means:
            mean, may_be_chosen = look.chosen.mean(node)
            if mean is not None:
                means[node] = mean
            elif may_be_chosen:
                unproven_means.append(node)
    curves = curved.Curves(walk, look.made, look.chosen.axes, means.keys() | look.quotients(divided, grown))
    wholes = curves.find_curved(before.curved, sums, look.has_gradient)
    statistics = curves.find_statistics()
    selected = [replace(one, is_whole=f"{one.node}:0" in wholes) for one in means.values()]
    trained = walk.view.ancestors([split_tensor(loss)[0] for loss in losses])
    unproven_means += [
        one.node
        for one in selected
        if one.node in trained and not (one.is_whole or one.counted or one.node in statistics)
    ]
    return Denominators(
        frozenset(sums),
        tuple(divided),
        tuple(one for one in selected if one.is_whole or (look.is_counted(one) and one.node not in statistics)),
        tuple(unproven),
        tuple(unproven_means),
        wholes,
        statistics,
        () if look.lengths else tuple(grown.bent),
        tuple(grown.numbers),
        () if sums_of_losses(walk.view) else tuple(grown.summed),
    )


def _look_at_division(
    look: _DivisionRules, node: str, sums: set[str], divided: list[Divided], unproven: list[tuple[str, str]]
) -> None:
    """Adds to the sums, the divided losses or what is unproven of them, as a division shows."""
    view, states = look.walk.view, look.walk.states
    numerator, tensor = view.inputs(node)
    known = any(tensor == one.tensor for one in divided) or states[tensor].kind in ("same", "fed")
    if known or view.shape(tensor) != () or not look.is_used(node, tensor):
        return
    by = [op for op in _OVER_BATCH if look.sums_behind(tensor, op) and look.is_over_batch(numerator, op)]
    behind = look.sums_behind(tensor, "Sum") if not by and look.is_of_size(numerator) else frozenset()
    is_settled = states[numerator].kind == "same" or not look.behind(numerator) & look.lengths
    if behind and is_settled and not behind & look.lengths:
        by = ["Sum"]  # as a mask is scaled by all elements over those that are left
    if not by:
        if look.is_of_loss(node, numerator, tensor) and not look.is_of_size(tensor):
            unproven.append((node, tensor))
        return
    found = look.sums_behind(tensor, by[0])
    if look.is_equal_everywhere(node, numerator):
        # A mean below a numerator that is of all workers is the workers' mean itself, and not W times that.
        sums |= found if by[0] == "Sum" else frozenset()
        return
    sums |= found
    if by[0] == "Sum":
        divided.append(Divided(tensor, look.divided_by(tensor)))
    else:
        divided += [Divided(one, tuple(view.consumers(one)), is_mean=True) for one in sorted(found)]


def visit(walk: Walk, node: str) -> None:
    """Has the sum of all workers taken of a denominator."""
    for tensor in walk.view.outputs(node) if walk.assumed.denominators.sums else ():
        if tensor in walk.assumed.denominators.sums and walk.states[tensor] != SAME:
            walk.all_reduces.append(AllReduce(tensor, tuple(walk.view.consumers(tensor)), "sum"))
            walk.states[tensor] = SAME
    curved.visit(walk, node)


def notes_of(view: GraphView, found: Denominators) -> tuple[str, ...]:
    """What the plan says of losses' denominators, a sentence each."""
    notes = [
        f"a loss is divided by {one.tensor}, which is added up over the workers: each worker's loss is its part times W"
        for one in found.divided
    ]
    notes += [
        f"{one.node} is a mean over chosen elements, and counts for as many as each worker has"
        for one in found.selected
        if not one.is_whole
    ]
    notes += [
        f"{node} divides a loss by {tensor}, which depends on each worker's batch: workers are taken to have it equal"
        for node, tensor in found.unproven
    ]
    notes += [
        f"{node} may be a mean over what each worker's batch chooses: workers are taken to have equally many elements"
        for node in found.unproven_means
    ]
    notes += [
        f"{t} is a mean over the batch that more is made of: the workers' mean is taken" for t in sorted(found.curved)
    ]
    if found.statistics:
        others = f" and {len(found.statistics) - 1} more" if found.statistics[1:] else ""
        notes.append(
            f"{found.statistics[0]}{others} computes statistics of the batch, which are each worker's own: one process "
            "would take those of all workers' batches"
        )
    return (*notes, *lengths.notes_of(view, found.bent, found.numbers, found.summed))


class _DivisionRules:
    """What divisions are judged by.

    Attributes:
        walk: that has been taken.
    """

    def __init__(self, walk: Walk) -> None:
        view = walk.view
        self.walk = walk
        self.made = autodiff_ops(walk.known.captured)
        self.forward = view.nodes.keys() - self.made - walk.known.initial
        self.chosen = ChosenRows(walk, self.made, self.forward)
        self.lengths: frozenset[str] = frozenset()

    def sums_behind(self, tensor: str, op: str) -> frozenset[str]:
        """The sums (or means) over the batch, without gradients, that make a scalar; empty where others do."""
        view, found = self.walk.view, set[str]()
        waiting = [tensor]
        while waiting:
            one = waiting.pop()
            node = split_tensor(one)[0]
            if self.walk.states[one].kind in ("same", "fed"):
                continue
            is_sum = self._is_over(node, op) and not self.has_gradient(node)
            if is_sum or (op == "Sum" and (self.chosen.counts(node) or one in self.lengths)):
                found.add(one)
            elif view.shape(one) == () and (view.op(node) in FORWARD_ELEMENTWISE or view.op(node) in PASSES):
                waiting += view.inputs(node)
            else:
                return frozenset()
        return frozenset(found)

    def behind(self, tensor: str) -> frozenset[str]:
        """All that a tensor is computed of, by first outputs."""
        return frozenset(f"{node}:0" for node in self.walk.view.ancestors([split_tensor(tensor)[0]]))

    def is_over_batch(self, tensor: str, op: str) -> bool:
        """Whether a scalar is a sum (or mean) over the batch, times what all workers have, or several added up."""
        view = self.walk.view
        node = split_tensor(tensor)[0]
        while self._passes(node):
            node = split_tensor(self._own(node)[0])[0]
        if view.op(node) in ("AddN", "Add", "AddV2"):
            return all(self.is_over_batch(t, op) for t in view.inputs(node))
        return self._is_over(node, op)

    def _passes(self, node: str) -> bool:
        """Whether a scalar stays the sum that it was, times what all workers have."""
        view, op = self.walk.view, self.walk.view.op(node)
        if op == "Sum" and view.shape(view.inputs(node)[0]) == ():
            return True
        return op in PASSES or (op == "Mul" and len(self._own(node)) == 1)

    def is_of_size(self, tensor: str) -> bool:
        """Whether a tensor tells of the batch its size alone; batches are taken to be equally large."""
        view, waiting, seen = self.walk.view, [tensor], set[str]()
        while waiting:
            one = waiting.pop()
            node = split_tensor(one)[0]
            if node in seen or self.walk.states[one].kind in ("same", "fed"):
                continue
            seen.add(node)
            if view.op(node) in _READS_SHAPES:
                if any(t in self.chosen.uneven or self.chosen.place(t) for t in view.inputs(node)):
                    return False
                continue
            if not view.inputs(node):
                return False
            waiting += view.inputs(node)
        return True

    def is_equal_everywhere(self, division: str, numerator: str) -> bool:
        """Whether a numerator is equal on all workers, and so is what is made of the quotient by itself.

        A quotient that sums of a worker's own are multiplied with divides these.
        """
        walk, view = self.walk, self.walk.view
        if walk.states[numerator].kind != "same":
            return False
        if self.behind(numerator) & (walk.assumed.denominators.sums | walk.assumed.denominators.curved):
            return True
        quotient = f"{division}:0"
        takers = [e.node for e in view.consumers(quotient) if e.node in self.forward]
        return not all(view.op(t) == "Mul" and len({*self._own(t), quotient}) == 2 for t in takers)

    def is_of_loss(self, division: str, numerator: str, tensor: str) -> bool:
        """Whether a loss is divided by a tensor, or what a loss's elements are multiplied with."""
        if self.is_differentiated(tensor) or division in self.reported:
            return True
        return division in self.walk.known.training and self.is_of_size(numerator)

    @cached_property
    def reported(self) -> set[str]:
        """The nodes of which reported values, and what is added to parts, are computed."""
        return self.walk.view.computed_of(split_tensor(t)[0] for t in results(self.walk.view))

    def is_used(self, division: str, tensor: str) -> bool:
        """Whether gradients or reported values are computed of a division by a tensor."""
        is_needed = division in self.reported or division in self.walk.known.training
        return is_needed or self.is_differentiated(tensor)

    def divide_others(self, lengths: Set[str]) -> bool:
        """Whether lengths divide sums over the batch and other scalars alike: one division is for all of them."""
        view, found = self.walk.view, set[bool]()
        for edge in (edge for length in lengths for edge in self.divided_by(length) if edge.node in self.forward):
            found.add(self.is_over_batch(view.inputs(edge.node)[0], "Sum"))
        return len(found) > 1

    def is_counted(self, mean: Selected) -> bool:
        """Whether a loss, or a value that is reported, is made of a mean over chosen elements."""
        return bool(mean.counted) or mean.node in self.reported

    def quotients(self, divided: Sequence[Divided], grown: lengths.Lengths) -> set[str]:
        """The scalars that are a sum over the batch, divided by what is added up over the workers, or by its length."""
        view = self.walk.view
        found = {edge.node for one in divided if not one.is_mean for edge in one.edges}
        found |= {node for node in self.forward if view.op(node) in _DIVISIONS and grown.is_mean(node)}
        return {n for n in found & self.forward if self.is_over_batch(view.inputs(n)[0], "Sum")}

    def is_differentiated(self, tensor: str) -> bool:
        """Whether autodiff went back through a division by a tensor: it divides by it too."""
        return any(edge.node in self.made for edge in self.divided_by(tensor))

    def divided_by(self, tensor: str) -> tuple[Edge, ...]:
        """The divisions by a tensor, those of autodiff too."""
        edges = self.walk.view.takers(tensor)
        return tuple(e for e in edges if self.walk.view.op(e.node) in _DIVISIONS and e.slot == 1)

    def _own(self, node: str) -> list[str]:
        """The inputs that differ between workers."""
        inputs = self.walk.view.inputs(node)
        return [t for t in inputs if self.walk.states[t].kind not in ("same", "fed")]

    def _is_over(self, node: str, op: str) -> bool:
        """Whether a node takes the sum (or mean) of what lies along the batch, or of its products with what does."""
        view = self.walk.view
        if view.shape(f"{node}:0") == () and op == "Sum" and sums_over_batch(self.chosen.axes, node):
            return True
        if view.op(node) != op or view.shape(f"{node}:0") != ():
            return False
        summed = view.inputs(node)[0]
        factors = view.inputs(split_tensor(summed)[0]) if view.op(split_tensor(summed)[0]) == "Mul" else ()
        axes = self.chosen.with_chosen if op == "Sum" else self.chosen.axes
        return any(axes.of(t) is not None for t in (summed, *factors))

    def has_gradient(self, node: str) -> bool:
        """Whether a node's values have gradients by trained variables, as far as ops tell.

        Of what only its shape is read they have none, and none of what is compared or chosen by.
        """
        view = self.walk.view
        waiting, seen = [node], {node}
        while waiting:
            one = waiting.pop()
            if one in self.walk.known.shared:
                return True
            if view.op(one) not in (*_READS_SHAPES, *_WITHOUT_GRADIENT):
                waiting += (new := {split_tensor(t)[0] for t in view.inputs(one)} - seen)
                seen |= new
        return False
