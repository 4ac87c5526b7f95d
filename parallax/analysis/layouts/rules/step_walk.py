"""The working state of the traversal of a step, which op rules read and extend (find_layouts.py drives it)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from parallax.analysis.layouts.rules.facts import BLANK, LENGTHS, REPLICATED, Dims, ExampleLoop, Fact, Value
from parallax.graph.batches import fixed_length
from parallax.graph.lengths import Length, split_symbol
from parallax.graph.view import Edge, GraphView, node_of, split_tensor
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
_CONVERTED = (RowEnds, Concatenated, Distinct, Positions)
"""Layouts that most ops do not accept: their reads have the layout that was required of them."""
_STORE = {"TensorListPushBack": 1, "TensorListSetItem": 2, "TensorListFromTensor": 0}
"""Ops that store tensors in a list: the input that is stored."""
REMEDY = "Move this computation out of the training step, for example into the input pipeline, and feed its result."


@dataclass
class StepWalk:
    """One traversal of a step.

    Attributes:
        view: the graph.
        batches: placeholder -> the placeholder whose first dimension is the per-worker batch.
        part_variables: variable ops of which each worker has a part; the parts are added over the workers.
        completed: partial tensors that a previous traversal found to be required complete: they are reduced where they
            are computed.
        reduced: tensors that are replicated where they are computed, and their layouts before.
        pieces: tensors whose pieces along the first axis have separate layouts.
        grown: loop variable of a gradient's rows, or of their numbers -> (rows, numbers) that an iteration appends.
        facts: of the tensors that were visited.
        changes: (tensor, layout) -> the edges that read the tensor in this layout.
        converted_reads: edge -> the layout in which it reads its tensor, where that is converted for it.
        means: means over sharded axes.
        ranges: numbered entries of sharded axes.
        filled: rows of bags, to be padded to the number of a worker's examples.
        shapes: shapes with one per-worker axis.
        equal_draws: random ops with equal draws on all workers.
        from_worker_0: tensors of which all workers use worker 0's value.
        mixing: node that mixes examples, or has no rule -> the sharded tensors that it reads gathered.
        prefix: prefix of the symbols of open lengths, which differs in loops.
        local: edges that read per-worker lengths; all other edges read those of the global batch.
        padded: nodes that pad ragged rows to the longest of all workers'.
        squeezed: Squeeze of a sharded tensor -> the axes that one process drops.
        blocks: length -> the sharding of an axis of that length by blocks, where one was found.
        limits: length of the first entries of an axis -> how many are taken, where the axis has as many.
        adjacent: placeholders of a fed sparse tensor's indices whose second number is an example's, too.
        fed_scalars: placeholders of a script's integers, such as its number of examples.
        fed_lengths: those of them that are fed the length of a per-worker batch -> the placeholder of that batch.
        gathered: nodes that a previous traversal found to read replicated inputs, as a list of tensors cannot be
            gathered; and stacks and TensorArrays of replicated tensors.
        incomplete: partial tensors of lists that are required complete.
        is_script: whether each worker's script feeds its batches.
        stored: stack or TensorArray -> the fact of its elements.
        stored_before: the same, at the end of a loop's last iteration.
        arrays: array -> the sharded axis of which it has an element for each of a worker's entries.
        example_loop: the loop over examples of which this is an iteration.
        added_once: tensors computed from applied gradients -> the edges by which metrics add them.
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
    fed_scalars: Set[str] = frozenset()
    fed_lengths: dict[str, str] = field(default_factory=dict)
    gathered: set[str] = field(default_factory=set)
    incomplete: set[str] = field(default_factory=set)
    facts: dict[str, Fact] = field(default_factory=dict)
    changes: dict[_Key, list[Edge]] = field(default_factory=dict)
    converted_reads: dict[Edge, Layout] = field(default_factory=dict)
    means: list[ScaledMean] = field(default_factory=list)
    ranges: list[OffsetRange] = field(default_factory=list)
    filled: list[FilledRows] = field(default_factory=list)
    shapes: list[LocalShape] = field(default_factory=list)
    equal_draws: list[str] = field(default_factory=list)
    from_worker_0: list[str] = field(default_factory=list)
    mixing: dict[str, list[str]] = field(default_factory=dict)
    local: set[Edge] = field(default_factory=set)
    padded: list[str] = field(default_factory=list)
    squeezed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    blocks: dict[Length, ShardedAxis] = field(default_factory=dict)
    limits: dict[Length, Length] = field(default_factory=dict)
    is_script: bool = False
    stored: dict[str, Fact] = field(default_factory=dict)
    stored_before: Mapping[str, Fact] = field(default_factory=dict)
    arrays: dict[str, ShardedAxis] = field(default_factory=dict)
    example_loop: ExampleLoop | None = None
    added_once: defaultdict[str, list[Edge]] = field(default_factory=lambda: defaultdict(list))

    @cached_property
    def lengths(self) -> frozenset[str]:
        """The symbols of the batches' lengths."""
        return frozenset(self.batches.values())

    def inputs(self, node: str) -> list[Fact]:
        """The facts of a node's inputs."""
        facts = [self.facts[tensor] for tensor in self.view.inputs(node)]
        for slot, fact in enumerate(facts):
            if isinstance(fact.layout, _CONVERTED):
                facts[slot] = replace(fact, layout=self.converted_reads.get(Edge(node, slot), fact.layout))
        return facts

    def reads_any(self, node: str, layouts: tuple[type[Layout], ...]) -> bool:
        """Whether a node reads an input in one of these layouts, which are among those that reads convert."""
        if not any([isinstance(self.facts[tensor].layout, _CONVERTED) for tensor in self.view.inputs(node)]):
            return False
        return any(isinstance(fact.layout, layouts) for fact in self.inputs(node))

    def require_layout(self, node: str, slot: int, layout: Layout) -> Fact:
        """Requires an input in a layout.

        Args:
            node: the node.
            slot: the input number.
            layout: the required layout.
        """
        tensor = self.view.inputs(node)[slot]
        fact = self.facts[tensor]
        edge = Edge(node, slot)
        before = self.converted_reads.pop(edge, None)
        if before is not None:  # one rule has required two layouts in sequence
            edges = self.changes.get((tensor, before), [])
            edges[:] = [one for one in edges if one != edge]
        if fact.layout == layout:
            return fact
        if isinstance(fact.layout, Distinct | Positions):
            self.gathered.add(fact.layout.of)
            self.converted_reads[edge] = layout
            return Fact(layout, fact.dims)
        if self.is_list(tensor) or (isinstance(fact.layout, Concatenated) and layout == REPLICATED):
            items = {one for one in items_of_list(self.view, tensor) if is_partial(self.facts.get(one, fact))}
            if isinstance(fact.layout, Partial) and items - self.completed.keys():
                self.incomplete |= items  # the next traversal reduces them before they are stored
            elif fact.layout != BLANK:
                self.gathered.add(node_of(tensor))
            self.converted_reads[edge] = layout
            return Fact(layout, fact.dims)
        if isinstance(layout, Sharded) and fact.is_same and self.fed_scalars:
            self.find_fed_length(layout.part, (fact.dims or ())[layout.axis :][:1])
        self.changes.setdefault((tensor, layout), []).append(edge)
        self.converted_reads[edge] = layout
        if isinstance(layout, Sharded) and fact.dims is not None:
            dims = list(fact.dims)
            dims[layout.axis] = layout.part.length
            return Fact(layout, tuple(dims))
        return Fact(layout, fact.dims, fact.value)

    def replicate(self, node: str, slots: Iterable[int] | None = None) -> None:
        """Requires some inputs, by default all, replicated."""
        for slot in range(len(self.view.inputs(node))) if slots is None else slots:
            self.require_layout(node, slot, REPLICATED)

    def replicate_layouts(self, node: str, *layouts: type[Layout]) -> None:
        """Requires all inputs of such layouts replicated."""
        if not self.reads_any(node, layouts):
            return
        for slot, fact in enumerate(self.inputs(node)):
            if isinstance(fact.layout, layouts):
                self.require_layout(node, slot, REPLICATED)

    def gather(self, node: str) -> None:
        """Requires all inputs replicated, for an op that mixes examples or has no rule."""
        whole = [t for t in self.view.inputs(node) if isinstance(self.facts[t].layout, Sharded)]
        if whole:
            self.mixing[node] = whole
        self.replicate(node)

    def find_fed_length(self, part: ShardedAxis | None, lengths: Iterable[Length | None]) -> bool:
        """Interprets a fed integer as the length of a per-worker batch, where an axis of that length is the batch's.

        Args:
            part: the sharding of the axis.
            lengths: the possible lengths of the axis.

        Returns:
            Whether a new one was found: the next traversal knows it.
        """
        known = len(self.fed_lengths)
        if part is not None and part.is_even and part.blocks == 1:
            for length in lengths:
                for node in self.fed_scalars - self.fed_lengths.keys():
                    if length is not None and length.divide(Length.of(f"{node}:0")) == part.factor:
                        self.fed_lengths[node] = part.batch
        return len(self.fed_lengths) > known

    def localize(self, node: str, slot: int, axis: int, dims: Sequence[Length | None]) -> None:
        """Makes a node read a shape with one per-worker axis, where the shape has more lengths of the global batch.

        Args:
            node: returns a result that is sharded along the axis.
            slot: the input number of the shape.
            axis: the per-worker axis.
            dims: the shape in the program of one process; None where that is unknown.
        """
        part, shape = self.part_of(dims[axis]), self.inputs(node)[slot]
        is_whole = shape.is_same and (shape.values() or dims)[axis] != Length.of(-1)  # -1 is the remaining length
        if part is not None and (is_whole or sum(map(bool, map(self.part_of, dims))) > 1):
            self.localize_axis(node, slot, axis, part)
        self.keep_local(node, [slot])

    def localize_axis(self, node: str, slot: int, axis: int, part: ShardedAxis, count: int = 1) -> None:
        """Makes a node read a replicated shape with the per-worker lengths of some axes of the given sharding."""
        if part.is_even:
            self.shapes.append(LocalShape(Edge(node, slot), axis, part.batch, count))
        else:  # the length has no per-worker share: the next traversal makes the node read replicated inputs
            self.gathered.add(node)

    def keep_local(self, node: str, slots: Iterable[int] | None = None) -> None:
        """Makes some inputs, by default all, per-worker where they are lengths."""
        for slot in range(len(self.view.inputs(node))) if slots is None else slots:
            self.local.add(Edge(node, slot))

    def take_global_lengths(self, node: str) -> None:
        """Makes a node read all lengths that its rule has not handled as those of the global batch."""
        for slot, fact in enumerate(self.inputs(node)):
            edge = Edge(node, slot)
            if fact.is_lengths and edge not in self.local and edge not in self.converted_reads:
                self.require_layout(node, slot, REPLICATED)

    def is_length_invariant(self, node: str, results: Sequence[Fact]) -> bool:
        """Whether a node returns the same from per-worker lengths as from those of the global batch.

        Args:
            node: reads lengths, and nothing else that is computed from those of the global batch.
            results: the facts of its results.
        """
        data_inputs = [fact for fact in self.inputs(node) if not fact.is_lengths]
        return all(self._is_of_no_batch(fact.value) for fact in (*results, *data_inputs))

    def fact(self, tensor: str, layout: Layout, dims: Dims | None = None, value: Value | None = None) -> Fact:
        """The fact of a result, with the lengths that TensorFlow inferred where no others are passed."""
        static = self.view.shape(tensor)
        if layout == LENGTHS and self._is_of_no_batch(value):
            layout = REPLICATED
        if isinstance(layout, Sharded) and layout.part.blocks > 1:
            self.blocks.setdefault(layout.part.length, layout.part)
        if static == () and self.is_list(tensor):
            return Fact(layout, dims, value)
        if dims is None and isinstance(value, tuple) and not self.is_list(tensor):
            dims = (Length.of(len(value)),)
        known = self._static(tensor, layout) if dims is None or _is_unlike(dims, static) else dims
        if known is not None and static is not None:  # TensorFlow's integers are preferred where they exist
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
        """The same fact for each output of a node."""
        return [self.fact(tensor, layout, dims, value) for tensor in self.view.outputs(node)]

    def _static(self, tensor: str, layout: Layout) -> Dims | None:
        static = self.view.shape(tensor)
        if static is None:
            return None
        dims = [Length.of(n if n is not None else f"{self.prefix}{tensor}[{axis}]") for axis, n in enumerate(static)]
        if isinstance(layout, Sharded):
            dims[layout.axis] = layout.part.length
        return tuple(dims)

    @property
    def needs_changes(self) -> bool:
        """Whether the graph must be changed so that its tensors get their layouts."""
        return any(self.changes.values()) or bool(
            self.means
            or self.ranges
            or self.shapes
            or self.equal_draws
            or self.gathered
            or self.padded
            or self.filled
            or self.squeezed
        )

    def may_stack_none(self, part: ShardedAxis, tensor: str) -> bool:
        """Whether a script may feed no examples to a worker, which cannot stack tensors of unknown shape then."""
        shape = self.view.shape(tensor)
        is_known = shape is not None and None not in shape[1:]
        return self.is_script and not is_known and not fixed_length(self.view.nodes[node_of(part.batch)])

    def is_list(self, tensor: str) -> bool:
        """Whether a tensor is a list of tensors."""
        return self.view.dtype(tensor) == _VARIANT

    def _is_of_no_batch(self, value: Value | None) -> bool:
        """Whether a value contains no batch length: other lengths are equal on all workers."""
        values = [value] if isinstance(value, Length) else value
        if values is None:
            return False
        return not any(one is None or self.has_batch(one) for one in values)

    def has_batch(self, length: Length) -> bool:
        """Whether a length contains that of a batch."""
        return not self.lengths.isdisjoint(symbol for product, _ in length.terms for symbol in product)

    def read_lengths_alike(self, node: str) -> list[Fact]:
        """The inputs of a node that combines them: all of the global batch, where one without a share has its length.

        As of the product of all pairs of examples, whose shape has two lengths and is not per-worker.
        """
        facts = self.inputs(node)
        if not any(fact.is_same and self._holds_lengths(fact) for fact in facts):
            return facts
        return [
            self.require_layout(node, slot, REPLICATED) if fact.is_lengths else fact for slot, fact in enumerate(facts)
        ]

    def _holds_lengths(self, fact: Fact) -> bool:
        known = (*(fact.dims or ()), *(fact.values() or ()))
        return any(one is not None and self.has_batch(one) for one in known)

    def is_of_batches(self, lengths: Fact) -> bool:
        """Whether integers follow from the lengths of batches, and of other axes of their sources, alone."""
        values = lengths.values()
        return values is not None and all(
            one is not None and all(self._is_of_source(symbol) for product, _ in one.terms for symbol in product)
            for one in values
        )

    def _is_of_source(self, symbol: str) -> bool:
        tensor, axis = split_symbol(symbol)
        return symbol in self.lengths or (axis is not None and node_of(tensor) in self.batches)

    def has_lengths(self, shape: Fact) -> bool:
        """Whether more than one element of a vector is a multiple of a batch's length."""
        values = shape.values() if shape.rank else None
        return sum(self.part_of(length) is not None for length in values or ()) > 1

    def batch_of(self, length: Length) -> str | None:
        """The batch whose length divides a length."""
        part = self.part_of(length)
        return None if part is None else part.batch

    def part_of(self, length: Length | None) -> ShardedAxis | None:
        """The sharding of an axis of a length, where the length is a multiple of a batch's."""
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


def items_of_list(view: GraphView, tensor: str) -> set[str]:
    """The tensors that are stored in a list, one by one or as slices."""
    items, waiting, seen = set[str](), [tensor], {tensor}
    while waiting:
        node, number = split_tensor(waiting.pop())
        inputs = view.inputs(node)
        if view.op(node) in _STORE:
            items.add(inputs[_STORE[view.op(node)]])
        lists = [one for one in inputs if view.dtype(one) == _VARIANT and one not in seen]
        lists = [one for one in lists if view.op(node) != "IdentityN" or one == inputs[number]]
        seen.update(lists)
        waiting += lists
    return items


def is_partial(fact: Fact) -> bool:
    """Whether a tensor must be reduced over the workers."""
    return isinstance(fact.layout, Partial)
