"""Finds where the examples of a batch meet, so that a loss is no mean of what each example gives by itself.

Softmaxes over a batch's own negatives, ranks and maxima within it, pairs of neighbours: each worker computes them of
its own examples alone, and one process would compute them of all workers' together. No rewrite makes these equal, so
the plan names the op. What lies along the batch is proven (batch_axis.py), and so is what is a mean of it; the others
are followed back to where the proof ends. Means and sums that the plan speaks of already are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from parallax.analysis.propagation.axis_einsum import sums_over_batch
from parallax.analysis.propagation.axis_meets import is_real, meets, reduces_batch
from parallax.analysis.propagation.axis_part import ALIKE, AxisPart
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.candidates import with_candidates
from parallax.analysis.propagation.chosen_rows import ChosenRows
from parallax.analysis.propagation.folded import FoldedBatch
from parallax.analysis.propagation.lengths import with_lengths
from parallax.analysis.propagation.losses import results, trained_losses
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.analysis.propagation.own_numbers import OwnNumbers
from parallax.analysis.propagation.sparse_batches import are_counted_off, is_of_every_row
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.graph.batches import reported_values
from parallax.graph.control_flow import MERGES, SWITCHES
from parallax.graph.view import GraphView, split_tensor

_SHOWN = 3
_NOT_PROVEN = (
    "it is not proven that the examples of a batch stay apart at {}: where they meet there, each worker lets those of "
    "its own batch meet, and one process would let those of all workers"
)
_OF_SHAPE = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_SUMS = ("Sum", "Mean", "L2Loss")
_BODIES = {
    **dict.fromkeys(("If", "StatelessIf"), ("then_branch", "else_branch")),
    **dict.fromkeys(("Case", "StatelessCase"), ("branches",)),
    **dict.fromkeys(("While", "StatelessWhile"), ("body",)),
}
"""By op the attributes that name the functions of its branches."""
_DECIDED = {**dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), 0), **dict.fromkeys(SWITCHES, 1)}
"""By op which of its inputs says what branch is taken."""
_LOOPS = ("While", "StatelessWhile")
_UNIQUE = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
_CHOOSES = ("Where", *_UNIQUE)
"""After these, workers have unequally many rows."""
_GATHERS = ("GatherV2", "Gather", "ResourceGather", "GatherNd")
_PUTS_BACK = (*_GATHERS, "SegmentSum", "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
"""Of rows that were chosen they give rows to examples again."""
_ADDED_UP = tuple(f"UnsortedSegment{how}" for how in ("Sum", "Max", "Min", "Prod"))
_DIVISIONS = ("RealDiv", "Div", "DivNoNan")
_STRAIGHT = (
    *("Identity", "Reshape", "Squeeze", "ExpandDims", "Cast", "CheckNumerics", "Snapshot", "PreventGradient", "Neg"),
    *("Add", "AddV2", "AddN", "Sub", "Mul", *_DIVISIONS, "Pack", "StopGradient"),
)
"""What a loss is put together with of its parts."""
_MOVES = ("Cumsum", "ReverseV2", "Transpose", "StridedSlice", "Slice", "ConcatV2", "Unpack")
"""Of sums of several kinds they give sums."""
_BY_KIND = ("UnsortedSegmentSum", "ScatterNd", "DenseBincount")
"""Adds up examples by what kind each is of."""
_PUT_TOGETHER = (*_STRAIGHT, *SWITCHES, *MERGES, "Enter", "NextIteration", "Exit")


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of losses in which examples meet, and of those that have an element for each example."""
    found, unproven = meetings(walk)
    axes = BatchAxes(walk.view, walk.states)
    sums = tuple(
        f"the loss {loss} has elements for each example of a batch, and gradients are of their sum: one process would "
        "take steps as many times as large as there are workers. Use reduce_mean"
        for loss in trained_losses(walk)
        if axes.of(loss) is not None
    )
    meet = (
        f"examples of a batch meet at {_listed(walk, found)}: each worker lets those of its own batch meet, and one "
        "process would let those of all workers",
    )
    return (*sums, *(meet if found else ()), *((_NOT_PROVEN.format(_listed(walk, unproven)),) if unproven else ()))


def _listed(walk: Walk, nodes: Sequence[str]) -> str:
    listed = ", ".join(f"{walk.view.op(node)} {node!r}" for node in nodes[:_SHOWN])
    return listed + (f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else "")


def meetings(walk: Walk) -> tuple[list[str], list[str]]:
    """The nodes of losses and results where examples meet, and others at which the proof ends that they stay apart.

    Of what goes into them it is known how it lies along the batch, but not of what comes out.
    """
    told, made = _told(walk), autodiff_ops(walk.known.captured)
    chosen = ChosenRows(walk, made, walk.view.nodes.keys() - made - walk.known.initial)
    factors = _factors(walk)
    joined, even = (with_lengths(with_candidates(one).supposing(factors)) for one in (chosen.with_chosen, chosen.axes))
    axes = _Axes(joined, even, chosen.counts, walk.assumed.denominators.curved)
    together = {split_tensor(tensor)[0] for tensor, one in walk.assumed.wholes.items() if one.is_result}
    trained, reported = trained_losses(walk), reported_values(walk.view)
    added = [tensor for tensor in results(walk.view) if tensor not in reported]
    losses = _Look(axes, trained, trained, ("Mean",))
    losses.follow(told)
    values = _Look(axes, reported, reported, ("Mean",))
    values.follow(told | together)
    counted = _Look(axes, added, added, ("Mean",), is_added=True)
    counted.follow(told | together)
    unproven = (losses.unproven | values.unproven) - made  # of gradients example_gradients.py speaks
    return sorted(losses.found | values.found | counted.found), sorted(unproven)


def _factors(walk: Walk) -> dict[str, AxisPart | None]:
    """Numbers that elements are multiplied with, by what all workers have together, as masks are scaled in losses."""
    view, shared = walk.view, walk.known.shared
    divisions = {edge.node for one in walk.assumed.denominators.divided if not one.is_mean for edge in one.edges}
    return {
        f"{node}:0": ALIKE
        for node in divisions
        if view.shape(f"{node}:0") == () and not view.computed_of([split_tensor(view.inputs(node)[0])[0]]) & shared
    }


class _Axes(NamedTuple):
    """How tensors lie along the batch.

    Attributes:
        joined: rows that a mask has chosen lie along it too.
        even: only what all workers have as many rows of as examples does.
        counts: whether a node gives how many rows a mask has chosen.
        whole: means over the batch of which all workers have the whole one.
    """

    joined: BatchAxes
    even: BatchAxes
    counts: Callable[[str], bool]
    whole: frozenset[str] = frozenset()


class _Look:
    """Follows the examples of a batch through a graph, or a branch of it, and finds where they meet.

    Args:
        axes: how tensors lie along the batch.
        results: what is looked at: losses, or what a branch gives.
        losses: those of them that are losses, or that losses are sums of.
        over_chosen: op types of which nobody else speaks where they take together what a batch chooses.
        is_added: whether the results are added up over the workers, so that sums of examples by kind are parts too.

    Attributes:
        found: nodes where they meet.
        unproven: others at which the proof ends that they stay apart.
        means: tensors that are means over the batch, or made of such.
    """

    def __init__(
        self,
        all_axes: _Axes,
        results: Sequence[str],
        losses: Sequence[str],
        over_chosen: tuple[str, ...] = _SUMS,
        is_added: bool = False,
    ) -> None:
        axes, self._even, self._counts, self._whole = all_axes
        self._axes, self._results = axes, frozenset(results)
        self._over_chosen = over_chosen
        self._parts = _parts_of(axes, losses, is_added)
        self._needed = _needed(axes, [split_tensor(tensor)[0] for tensor in results], self._counts)
        self._lost, self._chosen, self._told_of = set[str](), set[str](), set[str]()
        self._distinct, self._numbers, self._folds = set[str](), OwnNumbers(axes), FoldedBatch(axes)
        self.found, self.unproven, self.means = set[str](), set[str](), set[str]()

    def follow(self, told: Set[str]) -> None:
        """Goes from the first node to the last; those that are `told` are spoken of already."""
        axes = self._axes
        for node in axes.view.topological_order():
            if node not in self._needed:
                continue
            inputs = {t for t in axes.view.inputs(node) if t in axes.states}
            outputs = [t for t in axes.view.outputs(node) if not axes.fits(t) and axes.of(t) is None]
            if not outputs:
                continue
            if node in told or self._told_of & inputs:
                self._told_of.update(outputs)
            elif self._is_product(node):
                self.found.add(node)
                self._told_of.update(outputs)
            elif self.means & inputs:
                (self.means if node in self._parts else self._told_of).update(outputs)
                self.found.update(split_tensor(t)[0] for t in self.means & inputs if node not in self._parts)
            elif self._counts(node):
                self._lost.update(outputs)
            elif self._lost & inputs or any(axes.of(t) is not None for t in inputs):
                self._take(node, outputs)

    def _take(self, node: str, outputs: list[str]) -> None:
        """What becomes of examples at a node whose result does not lie along the batch."""
        axes, op, inputs = self._axes, self._axes.view.op(node), self._axes.view.inputs(node)
        is_by_kind = op in _BY_KIND and node in self._parts
        is_sum = ((op in _SUMS or is_by_kind) and axes.of(inputs[0]) is not None) or self._is_sum_of_products(node)
        branches = self._branches(node) if op in _BODIES else []
        if (is_sum and node in self._parts) or any(branch.means for branch in branches):
            self.means.update(outputs)
        if any(branch.found for branch in branches) or self._meets(node, is_sum):
            self.found.add(node)
            self._told_of.update(outputs)
        elif not self.means & set(outputs):
            self.unproven.update(() if self._lost & set(inputs) else (node,))
            self._lost.update(outputs)
            for rows, begins in ((self._chosen, _CHOOSES), (self._distinct, _UNIQUE)):
                taken = inputs[1:] if op in _GATHERS else () if self._puts_back(node) else inputs
                if op in begins or rows & set(taken):
                    rows.update(t for t in outputs if not is_of_every_row(axes.view, *split_tensor(t)))

    def _meets(self, node: str, is_sum: bool) -> bool:
        """Whether examples meet at a node for certain, or are as many as a worker's own batch has chosen."""
        axes, op, inputs = self._axes, self._axes.view.op(node), self._axes.view.inputs(node)
        if is_sum and op == "Mean" and self._is_uneven(inputs[0]):
            return True
        if is_sum:
            return node not in self._parts and (op not in _SUMS or reduces_batch(axes, node))
        if op in _DECIDED and inputs[_DECIDED[op]] in self._lost:
            return True
        if op in _SUMS and axes.shape(f"{node}:0") == ():
            is_of_chosen = op in self._over_chosen and inputs[0] in self._chosen
            if is_of_chosen or inputs[0] in self._distinct:
                return True
        if op in _LOOPS and _carries(axes, node):
            return True
        is_own = self._numbers.meets(node) or self._folds.meets(node)
        return is_own or meets(axes, node, self._lost) or _is_curve(axes.view, node, self._lost)

    def _is_product(self, node: str) -> bool:
        """Whether numbers that are both of the whole batch are multiplied."""
        inputs = set(self._axes.view.inputs(node))
        own = {t for t in inputs if t in self.means or (t in self._lost and self._axes.shape(t) == ())}
        return self._axes.view.op(node) in ("Mul", *_DIVISIONS) and bool(own) and inputs <= own | self._whole

    def _is_uneven(self, tensor: str) -> bool:
        """Whether a tensor has rows that a mask has chosen, of which workers have unequally many."""
        return self._axes.of(tensor) is not None and self._even.of(tensor) is None

    def _puts_back(self, node: str) -> bool:
        """Whether a node gives rows to examples again, of rows that were chosen."""
        op, inputs = self._axes.view.op(node), self._axes.view.inputs(node)
        return op in _PUTS_BACK or (op in _ADDED_UP and are_counted_off(self._axes, inputs[1]))

    def _is_sum_of_products(self, node: str) -> bool:
        """Whether an Einsum adds up over the batch for a loss, as a sum does."""
        return node in self._parts and sums_over_batch(self._axes, node)

    def _branches(self, node: str) -> list[_Look]:
        """The branches of a conditional of the new kind, or a loop's body, followed to the end."""
        axes, attr = self._axes, self._axes.view.nodes[node].attr
        named = [one for name in _BODIES[axes.view.op(node)] for one in (attr[name].func, *attr[name].list.func)]
        given = axes.view.inputs(node)[int(axes.view.op(node) in _DECIDED) :]
        outputs = axes.view.outputs(node)
        taken = [i for i, t in enumerate(outputs) if t in self._results or self._needed & _takers(axes.view, t)]
        found = []
        for body in (axes.body(one.name) for one in named if one.name):
            results = [body.results[i] for i in taken]
            inside = axes.inside(body, [None if self._is_uneven(tensor) else axes.part(tensor) for tensor in given])
            branch = _Look(_Axes(inside, inside, _no_count), results, results if node in self._parts else ())
            branch._parts -= _unlike_means(branch._axes, branch._parts)
            for inner, tensor in zip(body.arguments, given, strict=True):
                is_uneven = self._is_uneven(tensor)
                branch._lost.update([inner] if is_uneven or tensor in self._lost else [])
                branch._chosen.update([inner] if is_uneven or tensor in self._chosen else [])
            branch.follow(set())
            found.append(branch)
        return found


def _carries(axes: BatchAxes, node: str) -> bool:
    """Whether a loop goes from example to example and takes along what it made of those before; sums are none."""
    view, body = axes.view, axes.body(axes.view.nodes[node].attr["body"].func.name)
    examples = {
        split_tensor(inner)[0]
        for inner, tensor in zip(body.arguments, view.inputs(node), strict=True)
        if view.op(giver := split_tensor(tensor)[0]) == "TensorListFromTensor" and axes.of(view.inputs(giver)[0]) == 0
    }
    for before, after in zip(body.arguments, body.results, strict=True):
        variable, last = split_tensor(before)[0], split_tensor(body.view.source(after))[0]
        needed = body.view.ancestors([last])
        if variable in needed and examples & needed and last != variable and is_real(body.view, before):
            is_sum = body.view.op(last) in ("Add", "AddV2") and before in map(body.view.source, body.view.inputs(last))
            if not is_sum or len(body.view.takers(before)) > 1:
                return True
    return False


def _unlike_means(axes: BatchAxes, parts: Set[str]) -> set[str]:
    """The nodes that divide or multiply by what examples hold, and sums that nothing divides.

    Within a branch nobody mends them.
    """
    view, found = axes.view, set[str]()
    for node in parts:
        if view.op(node) in _DIVISIONS:
            behind = _needed(axes, [split_tensor(view.inputs(node)[1])[0]])
            found |= {node} if any(axes.of(t) is not None for n in behind for t in view.outputs(n)) else set()
        elif view.op(node) == "Mul" and not any(axes.fits(t) for t in view.inputs(node)):
            found.add(node)
        elif view.op(node) in ("Sum", "L2Loss"):
            divisions = [edge for edge in view.takers(f"{node}:0") if view.op(edge.node) in _DIVISIONS]
            found |= set() if divisions else {node}
    return found


def _takers(view: GraphView, tensor: str) -> set[str]:
    return {edge.node for edge in view.consumers(tensor)}


def _is_curve(view: GraphView, node: str, lost: Set[str]) -> bool:
    """Whether a node bends a real scalar that the batch determines, in whatever way: a root of an error, a product."""
    op = view.op(node)
    scalars = [t for t in view.inputs(node) if t in lost and view.shape(t) == () and is_real(view, t)]
    if op in _STRAIGHT:
        return op == "Mul" and len(scalars) == 2
    return bool(scalars) and op in FORWARD_ELEMENTWISE and is_real(view, f"{node}:0")


def _parts_of(axes: BatchAxes, losses: Sequence[str], is_added: bool = False) -> set[str]:
    """The nodes that give what losses are sums of, times or divided by something, and those sums."""
    passes = (*_PUT_TOGETHER, *_MOVES) if is_added else _PUT_TOGETHER
    view, found = axes.view, set[str]()
    waiting = [split_tensor(loss)[0] for loss in losses]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        op, inputs = view.op(node), view.inputs(node)
        if op in (*_SUMS, *passes, *_BODIES, "Einsum") or (is_added and op in _BY_KIND):
            found.add(node)
        if op in passes or (op in _SUMS and _is_reduced(axes, inputs[0])):
            waiting += [split_tensor(t)[0] for t in inputs]
    return found


def _is_reduced(axes: BatchAxes, tensor: str) -> bool:
    """Whether a tensor is a number, numbers in a row, as Keras adds up losses, or what is reduced over the batch."""
    view, node = axes.view, split_tensor(tensor)[0]
    if view.shape(tensor) == () or view.op(node) == "Pack":
        return view.op(node) != "Pack" or all(view.shape(t) == () for t in view.inputs(node))
    return view.op(node) in _SUMS and axes.of(tensor) is None and axes.of(view.inputs(node)[0]) is not None


def _no_count(node: str) -> bool:
    """Within a branch nothing is known of what is chosen."""
    return False


def _needed(axes: BatchAxes, losses: Sequence[str], counts: Callable[[str], bool] = _no_count) -> set[str]:
    """The nodes that losses are computed of, as far as it takes to see how their tensors lie along the batch."""
    view, found = axes.view, set(losses)
    waiting = list(losses)
    while waiting:
        node = waiting.pop()
        if view.op(node) in _OF_SHAPE or all(axes.fits(t) or axes.of(t) is not None for t in view.outputs(node)):
            continue
        new = {split_tensor(t)[0] for t in view.inputs(node)} - found
        found |= new
        waiting += new
    return {node for node in found if view.op(node) not in _OF_SHAPE or counts(node)}


def _told(walk: Walk) -> set[str]:
    """Nodes of which the plan says already what each worker takes of its own batch."""
    found = walk.assumed.denominators
    divisions = {node for node, _ in found.unproven}
    lengths = {*found.bent, *found.numbers}
    return {*divisions, *lengths, *found.statistics, *found.unproven_means, *(one.node for one in found.selected)}
