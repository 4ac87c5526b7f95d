"""The working state of the traversal of a step, which op rules read and extend (find_layouts.py drives it)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from parallax.analysis.layouts.rules.facts import BLANK, LENGTHS, REPLICATED, Dims, Fact, Value
from parallax.graph.lengths import Length
from parallax.graph.view import Edge, GraphView, split_tensor
from parallax.plans.layouts import (
    DISTINCT,
    Concatenated,
    Distinct,
    FilledRows,
    Layout,
    LocalShape,
    OffsetRange,
    Partial,
    Positions,
    RowEnds,
    ScaledMean,
    Sharded,
    ShardedAxis,
)

_Key = tuple[str, Layout]
_VARIANT = 21  # types.proto
REMEDY = "Move this computation out of the training step, for example into the input pipeline, and feed its result."


@dataclass
class StepWalk:
    """One walk.

    Attributes:
        view: the graph.
        batches: placeholder -> the placeholder whose first dimension is the per-worker batch.
        part_variables: variable ops of which each worker has a part, which is added up over the workers.
        completed: partial tensors that another walk found to be needed whole: they are reduced where they are computed.
        reduced: tensors that are made whole where they are computed, and their layouts before.
        pieces: tensors whose pieces along the first axis have a layout each.
        grown: loop's variable of a gradient's rows, or of their numbers -> (rows, numbers) that a turn puts behind.
        facts: of the tensors that were visited.
        changes: (tensor, layout) -> the edges that take the tensor in this layout.
        taken: edge -> the layout in which it takes its tensor, where that is changed for it.
        means: means over sharded axes.
        ranges: counted entries of sharded axes.
        filled: rows of bags, to be as many as a worker has examples.
        shapes: shapes of which one axis is the worker's.
        alike: random ops that draw the same on all workers.
        of_worker_0: tensors of which all workers take worker 0's.
        mixing: node that mixes examples, or has no rule -> the sharded tensors that it takes whole.
        prefix: of the symbols of open lengths, of which those of loops differ.
        local: edges that take lengths as the worker has them; what else takes them has those of the global batch.
        padded: nodes that fill ragged rows up to the longest of all workers'.
        blocks: length -> how an axis of that length is shared by blocks, of those that were met.
        adjacent: placeholders of a fed sparse tensor's places of which the second number is an example's, too.
        fed_numbers: placeholders of a script's whole numbers, as of how many examples it feeds.
        fed_lengths: those of them that are fed the length of a worker's batch -> the placeholder of that batch.
        gathered: nodes that another walk found to take their inputs whole, as a list of tensors cannot be gathered;
            and stacks and arrays of tensors that hold whole ones.
        is_script: whether each worker's script feeds its batches.
        stored: stack or array of tensors -> what is known of those that it holds.
        stored_before: the same, at the end of a loop's last turn.
        added_once: tensors computed of applied gradients -> the edges by which metrics add them up.
    """

    view: GraphView
    batches: Mapping[str, str]
    part_variables: Set[str]
    completed: Mapping[str, Layout] = field(default_factory=dict)
    pieces: Set[str] = frozenset()
    grown: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    reduced: dict[str, Layout] = field(default_factory=dict)
    prefix: str = ""
    adjacent: set[str] = field(default_factory=set)
    fed_numbers: Set[str] = frozenset()
    fed_lengths: dict[str, str] = field(default_factory=dict)
    gathered: set[str] = field(default_factory=set)
    facts: dict[str, Fact] = field(default_factory=dict)
    changes: dict[_Key, list[Edge]] = field(default_factory=dict)
    taken: dict[Edge, Layout] = field(default_factory=dict)
    means: list[ScaledMean] = field(default_factory=list)
    ranges: list[OffsetRange] = field(default_factory=list)
    filled: list[FilledRows] = field(default_factory=list)
    shapes: list[LocalShape] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    of_worker_0: list[str] = field(default_factory=list)
    mixing: dict[str, list[str]] = field(default_factory=dict)
    local: set[Edge] = field(default_factory=set)
    padded: list[str] = field(default_factory=list)
    blocks: dict[Length, ShardedAxis] = field(default_factory=dict)
    is_script: bool = False
    stored: dict[str, Fact] = field(default_factory=dict)
    stored_before: Mapping[str, Fact] = field(default_factory=dict)
    added_once: defaultdict[str, list[Edge]] = field(default_factory=lambda: defaultdict(list))

    @cached_property
    def lengths(self) -> frozenset[str]:
        """The symbols of the batches' lengths."""
        return frozenset(self.batches.values())

    def inputs(self, node: str) -> list[Fact]:
        """What is known of a node's inputs."""
        found = [self.facts[tensor] for tensor in self.view.inputs(node)]
        for slot, fact in enumerate(found):
            if isinstance(fact.layout, RowEnds | Concatenated | Distinct | Positions):
                found[slot] = replace(fact, layout=self.taken.get(Edge(node, slot), fact.layout))
        return found

    def take(self, node: str, slot: int, layout: Layout) -> Fact:
        """Has an input come in a layout.

        Args:
            node: the node.
            slot: which of its inputs.
            layout: how the node takes it.
        """
        tensor = self.view.inputs(node)[slot]
        fact = self.facts[tensor]
        edge = Edge(node, slot)
        before = self.taken.pop(edge, None)
        if before is not None:  # one rule has asked for two layouts, one after the other
            edges = self.changes.get((tensor, before), [])
            edges[:] = [one for one in edges if one != edge]
        if fact.layout == layout:
            return fact
        if isinstance(fact.layout, Distinct | Positions):
            self.gathered.add(fact.layout.of)
            self.taken[edge] = layout
            return Fact(layout, fact.dims)
        if self.is_list(tensor) or (isinstance(fact.layout, Concatenated) and layout == REPLICATED):
            if fact.layout != BLANK:
                self.gathered.add(split_tensor(tensor)[0])
            self.taken[edge] = layout
            return Fact(layout, fact.dims)
        if isinstance(layout, Sharded) and fact.is_same and self.fed_numbers:
            self.find_fed_length(layout.part, (fact.dims or ())[layout.axis :][:1])
        self.changes.setdefault((tensor, layout), []).append(edge)
        self.taken[edge] = layout
        if isinstance(layout, Sharded) and fact.dims is not None:
            dims = list(fact.dims)
            dims[layout.axis] = layout.part.length
            return Fact(layout, tuple(dims))
        return Fact(layout, fact.dims, fact.value)

    def replicate(self, node: str, slots: Iterable[int] | None = None) -> None:
        """Has some inputs, by default all, come replicated."""
        for slot in range(len(self.view.inputs(node))) if slots is None else slots:
            self.take(node, slot, REPLICATED)

    def replicate_layouts(self, node: str, *layouts: type[Layout]) -> None:
        """Has all inputs of such layouts come replicated."""
        for slot, fact in enumerate(self.inputs(node)):
            if isinstance(fact.layout, layouts):
                self.take(node, slot, REPLICATED)

    def gather(self, node: str) -> None:
        """Has all inputs come replicated, for an op that mixes examples or has no rule."""
        whole = [t for t in self.view.inputs(node) if isinstance(self.facts[t].layout, Sharded)]
        if whole:
            self.mixing[node] = whole
        self.replicate(node)

    def find_fed_length(self, part: ShardedAxis | None, lengths: Iterable[Length | None]) -> bool:
        """Takes a number that is fed for the length of a worker's batch, where an axis that it measures is the batch's.

        Args:
            part: how the axis is shared.
            lengths: what the axis may be long.

        Returns:
            Whether one was found that was not known: the next walk knows it.
        """
        known = len(self.fed_lengths)
        if part is not None and part.is_even and part.blocks == 1:
            for length in lengths:
                for node in self.fed_numbers - self.fed_lengths.keys():
                    if length is not None and length.divide(Length.of(f"{node}:0")) == part.factor:
                        self.fed_lengths[node] = part.batch
        return len(self.fed_lengths) > known

    def localize(self, node: str, slot: int, axis: int, dims: Sequence[Length | None]) -> None:
        """Has a node take a shape of which one axis is the worker's, where the shape has more of the global batch.

        Args:
            node: gives a result that is sharded along the axis.
            slot: where it takes the shape.
            axis: the worker's.
            dims: what the shape has in the one process's program; None where that is unknown.
        """
        part, shape = self.part_of(dims[axis]), self.inputs(node)[slot]
        is_whole = shape.is_same and (shape.values() or dims)[axis] != Length.of(-1)  # -1 is as long as is left
        if part is not None and (is_whole or sum(map(bool, map(self.part_of, dims))) > 1):
            if part.is_even:
                self.shapes.append(LocalShape(Edge(node, slot), axis, part.batch))
            else:  # no share of the length is the worker's: the next walk has the node take its inputs whole
                self.gathered.add(node)
        self.keep_local(node, [slot])

    def keep_local(self, node: str, slots: Iterable[int] | None = None) -> None:
        """Has some inputs, by default all, be the worker's where they are lengths."""
        for slot in range(len(self.view.inputs(node))) if slots is None else slots:
            self.local.add(Edge(node, slot))

    def take_global_lengths(self, node: str) -> None:
        """Has a node take all lengths that its rule has not spoken of as those of the global batch."""
        for slot, fact in enumerate(self.inputs(node)):
            edge = Edge(node, slot)
            if fact.is_lengths and edge not in self.local and edge not in self.taken:
                self.take(node, slot, REPLICATED)

    def is_told(self, node: str, found: Sequence[Fact]) -> bool:
        """Whether a node gives the same of a worker's lengths as of those of the global batch.

        Args:
            node: takes lengths, and nothing else that is computed of those of the global batch.
            found: what is known of its results.
        """
        taken = [fact for fact in self.inputs(node) if not fact.is_lengths]
        return all(self._is_of_no_batch(fact.value) for fact in (*found, *taken))

    def fact(self, tensor: str, layout: Layout, dims: Dims | None = None, value: Value | None = None) -> Fact:
        """What is known of a result, with the lengths that TensorFlow inferred where no others are given."""
        static = self.view.shape(tensor)
        if layout == LENGTHS and self._is_of_no_batch(value):
            layout = REPLICATED
        if isinstance(layout, Sharded) and layout.part.blocks > 1:
            self.blocks.setdefault(layout.part.length, layout.part)
        if static == () and self.is_list(tensor):
            return Fact(layout, dims, value)
        known = self._static(tensor, layout) if dims is None or _is_unlike(dims, static) else dims
        if known is not None and static is not None:  # TensorFlow's numbers are the better where there are such
            known = tuple(
                Length.of(n) if n is not None and one.number is None and self.part_of(one) is None else one
                for one, n in zip(known, static, strict=True)
            )
        if known is not None and isinstance(layout, Sharded):
            known = (*known[: layout.axis], layout.part.length, *known[layout.axis + 1 :])
        return Fact(layout, known, value)

    def all_outputs(
        self, node: str, layout: Layout, dims: Dims | None = None, value: Value | None = None
    ) -> list[Fact]:
        """The same of each output of a node."""
        return [self.fact(tensor, layout, dims, value) for tensor in self.view.outputs(node)]

    def _static(self, tensor: str, layout: Layout) -> Dims | None:
        static = self.view.shape(tensor)
        if static is None:
            return None
        found = [Length.of(n if n is not None else f"{self.prefix}{tensor}[{axis}]") for axis, n in enumerate(static)]
        if isinstance(layout, Sharded):
            found[layout.axis] = layout.part.length
        return tuple(found)

    @property
    def needs_changes(self) -> bool:
        """Whether the graph must be changed so that its tensors have their layouts."""
        return any(self.changes.values()) or bool(
            self.means or self.ranges or self.shapes or self.alike or self.gathered or self.padded or self.filled
        )

    def is_list(self, tensor: str) -> bool:
        """Whether a tensor is a list of tensors."""
        return self.view.dtype(tensor) == _VARIANT

    def _is_of_no_batch(self, value: Value | None) -> bool:
        """Whether a value has no length of a batch in it: other lengths are the same on all workers."""
        values = [value] if isinstance(value, Length) else value
        if values is None:
            return False
        return not any(one is None or self.has_batch(one) for one in values)

    def has_batch(self, length: Length) -> bool:
        """Whether the length of a batch is in a length."""
        return not self.lengths.isdisjoint(symbol for product, _ in length.terms for symbol in product)

    def is_of_batches(self, lengths: Fact) -> bool:
        """Whether numbers are told by the lengths of batches alone."""
        values, known = lengths.values(), self.lengths
        return values is not None and all(
            one is not None and all(known.issuperset(product) for product, _ in one.terms) for one in values
        )

    def has_lengths(self, shape: Fact) -> bool:
        """Whether more than one element of a vector is a multiple of a batch's length."""
        values = shape.values() if shape.rank else None
        return sum(self.part_of(length) is not None for length in values or ()) > 1

    def batch_of(self, length: Length) -> str | None:
        """The batch of which a length is a multiple."""
        part = self.part_of(length)
        return None if part is None else part.batch

    def part_of(self, length: Length | None) -> ShardedAxis | None:
        """How an axis of a length is shared, where the length is a multiple of a batch's."""
        if length is None or not length.terms:
            return None
        if any(symbol.endswith(DISTINCT) for symbols, _ in length.terms for symbol in symbols):
            return None
        batches = [[s for s in symbols if s in self.lengths] for symbols, _ in length.terms]
        if len(batches[0]) != 1 or any(one != batches[0] for one in batches):
            return None
        factor = length.divide(Length.of(batches[0][0]))
        return None if factor is None else ShardedAxis(batches[0][0], factor)


def _is_unlike(dims: Dims, static: tuple[int | None, ...] | None) -> bool:
    return static is not None and len(static) != len(dims)


def is_partial(fact: Fact) -> bool:
    """Whether a reduction over the workers gives a tensor."""
    return isinstance(fact.layout, Partial)
