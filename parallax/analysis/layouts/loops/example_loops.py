"""Finds loops over the examples of a batch, in which every worker iterates over its own examples.

The number of iterations is the length of a sharded axis, so a worker runs as many as it has entries. Tensors of an
iteration belong to its entry (`PerExample`). What iterations pass on may be their number, a tensor that none changes,
a list to which each adds its entry's tensor, or a sum to which each adds its entry's term; the sum is then partial. In
any other case entries interact, and the loop is an ordinary one. An iteration communicates nothing: the workers run
unequally many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parallax.analysis.layouts.rules.branches import are_zeros
from parallax.analysis.layouts.rules.facts import ExampleLoop, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.base.errors import GraphError
from parallax.base.types import Value
from parallax.graph.control_flow import (
    MERGES,
    SWITCHES,
    LoopFrame,
    Unit,
    branches_of,
    loop_conditions,
    predicate_of,
)
from parallax.graph.lengths import Length
from parallax.graph.view import NEXT_ITERATIONS, GraphView, node_of, split_tensor
from parallax.plans.layouts import PerExample, Sharded, ShardedAxis

ADDITIONS = ("Add", "AddV2", "AddN")
_LESS, _GREATER = ("Less",), ("Greater", "GreaterEqual")
_ENTERS = ("Enter", "RefEnter")
_FLOWS = {"TensorArrayGradV3": 1, "TensorArrayScatterV3": 3, "TensorArrayWriteV3": 3}
"""Ops that order accesses to an array: the input that they return after theirs."""

_POPS = ("StackPopV2", "TensorListPopBack")

Walk = Callable[[StepWalk, tuple[Unit, ...]], None]


def find_example_loop(step: StepWalk, frame: LoopFrame, walk: Walk) -> ExampleLoop | None:
    """The loop over the entries of a sharded axis that a frame is; None if its iterations are not such entries.

    Args:
        step: the traversal, before the loop.
        frame: the loop.
        walk: visits units of the loop.
    """
    variables = _LoopVariables(step, frame, walk)
    part = variables.find_axis()
    if part is None:
        return None
    counters, ends = dict[str, PerExample](), dict[str, Length]()
    sums, additions = set[str](), set[str]()
    for head in frame.heads:
        start = step.facts[variables.starts[head]]
        step_size = variables.find_step(head)
        if f"{head}:0" in step.grown:
            return None
        if step_size is not None and isinstance(start.value, Length):
            is_index = step_size == 1 and start.value == Length() and not variables.takes_from_the_end()
            counters[head] = PerExample(part, "index" if is_index else "count")
            ends[head] = start.value + part.length * Length.of(step_size)
        elif step.is_list(f"{head}:0"):
            continue  # the rules of lists say what iterations may do
        elif (chain := variables.find_additions(head)) is None:
            return None
        elif variables.are_branches_alone(chain):
            additions |= chain
        else:
            is_nothing = start.is_same and are_zeros(step.view, variables.starts[head])
            if not is_nothing and not start.is_sum and start.layout != Sharded(0, part):
                return None
            sums.add(head)
            additions |= chain
    return ExampleLoop(part, counters, ends, sums, additions)


@dataclass(frozen=True)
class _LoopVariables:
    """How the iterations of a loop change its variables.

    Attributes:
        step: the traversal, before the loop.
        frame: the loop.
        walk: visits units of the loop.
    """

    step: StepWalk
    frame: LoopFrame
    walk: Walk

    @property
    def _view(self) -> GraphView:
        return self.step.view

    @property
    def starts(self) -> dict[str, str]:
        """Head -> the initial tensor, outside of the loop."""
        return {head: self._view.inputs(self._find_input(head, _ENTERS))[0] for head in self.frame.heads}

    def find_axis(self) -> ShardedAxis | None:
        """The sharding of the axis whose length is the number of iterations on a worker."""
        decides = loop_conditions(self._view).get(self.frame.name)
        if decides is None:
            return None
        counts = [self._find_count(node) for node in self._list_comparisons(self._view.inputs(node_of(decides))[0])]
        if not counts or counts[0] is None or any(one != counts[0] for one in counts):
            return None
        part = self.step.part_of(counts[0])
        return part if part is not None and part.is_even else None

    def takes_from_the_end(self) -> bool:
        """Whether iterations take the entries' tensors in reverse: the number of an iteration is no entry's index."""
        loops = [
            [branch.predicate for branch in branches_of(self._view)[node] if branch.is_loop]
            for node in self._view.nodes_of(_POPS)
        ]
        return any(one[-1:] == [self.frame.name] for one in loops)

    def is_constant(self, head: str) -> bool:
        """Whether every iteration passes a variable on unchanged."""
        return self._find_origin(self._find_next(head)) == head

    def find_step(self, head: str) -> int | None:
        """The integer that every iteration adds to a variable."""
        node = self._find_origin(self._find_next(head))
        op = self._view.op(node)
        if op not in ("Add", "AddV2", "Sub"):
            return None
        variable, added = self._view.inputs(node)
        if op != "Sub" and self._find_origin(variable) != head:
            variable, added = added, variable
        number = self._find_constant(added)
        if number is None or number.dtype.kind != "i" or number.shape != () or self._find_origin(variable) != head:
            return None
        return -int(number) if op == "Sub" else int(number)

    def find_additions(self, head: str) -> set[str] | None:
        """The nodes by which an iteration adds to a variable, and their branches; None if it does something else."""
        return self._find_chain(self._find_next(head), head)

    def are_branches_alone(self, chain: set[str]) -> bool:
        """Whether none of these nodes adds anything."""
        return not any(self._view.op(node) in ADDITIONS for node in chain)

    def _find_chain(self, tensor: str, head: str) -> set[str] | None:
        view, node = self._view, self._find_origin(tensor)
        if node == head:
            return set()
        op = view.op(node)
        if op not in (*ADDITIONS, *MERGES, *SWITCHES) or node not in self.frame.nodes or node in self.frame.heads:
            return None
        inputs = view.inputs(node)[:1] if op in SWITCHES else view.inputs(node)
        chains = [chain for one in inputs if (chain := self._find_chain(one, head)) is not None]
        is_found = len(chains) == 1 if op in ADDITIONS else len(chains) == len(inputs)
        return {node}.union(*chains) if is_found else None

    def _find_next(self, head: str) -> str:
        return self._view.inputs(self._find_input(head, NEXT_ITERATIONS))[0]

    def _find_input(self, head: str, ops: tuple[str, ...]) -> str:
        return next(one for one in map(node_of, self._view.inputs(head)) if self._view.op(one) in ops)

    def _find_origin(self, tensor: str) -> str:
        """The node behind copies, behind the loop's own Switches, and behind ops of arrays that return their flow."""
        view = self._view
        while True:
            node, number = split_tensor(tensor)
            is_end = view.op(node) in SWITCHES and view.op(node_of(predicate_of(view, node))) == "LoopCond"
            if view.op(node) in _FLOWS:
                tensor = view.inputs(node)[_FLOWS[view.op(node)]]
            elif view.op(node) == "Identity" or is_end:
                tensor = view.inputs(node)[0]
            elif view.op(node) == "IdentityN":
                tensor = view.inputs(node)[number]
            elif (same := _find_same(view, node)) is not None:
                tensor = same
            else:
                return node

    def _list_comparisons(self, tensor: str) -> Iterator[str]:
        """The nodes whose conjunction decides whether the loop runs another iteration."""
        node = self._find_origin(tensor)
        if self._view.op(node) == "LogicalAnd":
            for one in self._view.inputs(node):
                yield from self._list_comparisons(one)
        else:
            yield node

    def _find_count(self, comparison: str) -> Length | None:
        """The number of iterations until a comparison is false; None unless it is a per-worker length."""
        op = self._view.op(comparison)
        if op not in (*_LESS, *_GREATER):
            return None
        counter, limit = self._view.inputs(comparison)
        if op == "Greater" and self._find_limit(counter) is not None:  # limit > counter
            op, counter, limit = "Less", limit, counter
        head = self._find_origin(counter)
        if head not in self.frame.heads:
            return None
        start = self.step.facts[self.starts[head]]
        if op == "Less" and self.find_step(head) == 1 and start.value == Length():
            return self._find_limit(limit)
        last = self._find_constant(limit)
        if op == "Less" or self.find_step(head) != -1 or last is None or int(last) != (op == "GreaterEqual"):
            return None
        return start.value if start.is_lengths and isinstance(start.value, Length) else None

    def _find_constant(self, tensor: str) -> Value | None:
        node = self._find_origin(tensor)
        return self._view.constant(self._view.inputs(node)[0] if node in self.frame.enters else tensor)

    def _find_limit(self, tensor: str) -> Length | None:
        """A per-worker length that is equal in all iterations."""
        fact = self._measure(tensor)
        return fact.value if fact is not None and fact.is_lengths and isinstance(fact.value, Length) else None

    def _measure(self, tensor: str) -> Fact | None:
        """The fact of a tensor that no iteration changes; None where one may."""
        step, view, frame = self.step, self._view, self.frame
        begun = {*frame.heads, *frame.enters}
        needed, waiting = set[str](), [node_of(tensor)]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += [] if node in begun else [one for one in map(node_of, view.inputs(node)) if one != node]
        inner = StepWalk(view, step.batches, step.part_variables)
        for node in needed & begun:
            if node in frame.heads and not self.is_constant(node):
                return None
            start = self.starts[node] if node in frame.heads else view.inputs(node)[0]
            inner.facts[f"{node}:0"] = step.facts[start]
        units = tuple(unit for unit in frame.units if isinstance(unit, str) and unit in needed)
        if needed - begun - set(units) or any(view.op(unit) == "LoopCond" for unit in units):
            return None
        try:
            self.walk(inner, units)
        except GraphError:
            return None
        return inner.facts[tensor]


def _find_same(view: GraphView, node: str) -> str | None:
    """The tensor that is summed over axes of length 1 and then shaped as before, as gradients of additions are."""
    total = node_of(view.inputs(node)[0]) if view.op(node) == "Reshape" else ""
    if not total or view.op(total) != "Sum":
        return None
    tensor = view.inputs(total)[0]
    shape = view.shape(tensor)
    return tensor if shape is not None and None not in shape and shape == view.shape(f"{node}:0") else None
