"""Decides how a front end's step is split into micro-batches so that its update equals that of the whole batch.

Gradients of the micro-batches add up to the step's, each weighted by its share of the step's examples
(plans/micro_batches.py). Results, and values added to variables, add up in the same way. A term that is added to a sum
over the batch and does not depend on the batch, such as a weight penalty, would count once per micro-batch; it is
weighted where it is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from parallax.analysis.layouts.find_layouts import Layouts
from parallax.analysis.layouts.training_graph import after_gradients, edges_outside
from parallax.analysis.propagation.batch_growth import FLOATS, BatchGrowth
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.batches.batch_degrees import AS_MOST
from parallax.analysis.reading.capture import variable_of_tensor
from parallax.base.errors import GraphError
from parallax.graph.batches import (
    ROWS,
    batch_by_node,
    batch_of,
    find_report_kind,
    has_numeric_length,
    is_partial_sum,
    marked_nodes,
)
from parallax.graph.ops import state_op
from parallax.graph.view import Edge, GraphView, node_of
from parallax.plans.gradient_rows import AccumulateGradient
from parallax.plans.micro_batches import AddedResult, MicroBatches, WeighedEdge

_ADDS = ("Add", "AddN", "AddV2", "Sub")
_PASS_ON = ("Identity", "Reshape", "StopGradient")
_REMEDY = "Leave accumulate_steps at 1."
_NOT_TOLD = (
    "With accumulate_steps the {what} of a step's micro-batches must add up to those of the step, but it cannot be "
    "determined whether {tensor!r} is a sum or a mean over the batch{why}. {remedy} " + _REMEDY
)


def split_step(
    walk: Walk, keeps: Sequence[AccumulateGradient], batch_writes: Sequence[str]
) -> tuple[MicroBatches, tuple[AccumulateGradient, ...]]:
    """The split of a front end's steps, and their accumulated gradients with the weight of each micro-batch.

    Args:
        walk: a finished traversal.
        keeps: the gradients.
        batch_writes: the nodes that write values of one batch.

    Raises:
        GraphError: a value does not add up.
    """
    assert walk.facts.layouts is not None, "front ends have layouts"
    return _MicroBatchCut(walk, walk.facts.layouts, BatchGrowth(walk.facts.captured, walk.facts.layouts)).decide(
        keeps, batch_writes
    )


_NUMERIC_LENGTH = (
    "With accumulate_steps a step is cut into micro-batches, but the step of the batch {batch!r} may compute with the "
    "length of the whole batch as a number: x.shape[0], or the batch_size of keras.Input. Use keras.ops.shape(x)[0] "
    "and no batch_size, or leave accumulate_steps at 1."
)
_LATER = (
    "With accumulate_steps a step is cut into micro-batches and updates variables after the last of them, but {what} "
    "is computed from the batch after the update. Compute it before the update, or leave accumulate_steps at 1."
)


@dataclass(frozen=True, slots=True)
class _MicroBatchCut:
    walk: Walk
    layouts: Layouts
    growth: BatchGrowth

    @property
    def view(self) -> GraphView:
        """The graph."""
        return self.walk.view

    def decide(
        self, keeps: Sequence[AccumulateGradient], batch_writes: Sequence[str]
    ) -> tuple[MicroBatches, tuple[AccumulateGradient, ...]]:
        view, batches = self.view, batch_by_node(self.view)
        trained = {batches[node] for keep in keeps if (node := node_of(keep.values)) in batches}
        steps = {batch_of(view.nodes[node_of(batch)]) for batch in trained}
        for node in marked_nodes(view):
            if has_numeric_length(view.nodes[node]) and batch_of(view.nodes[node]) in steps:
                raise GraphError(_NUMERIC_LENGTH.format(batch=node))
        variables = self.walk.facts.captured.variables
        shapes = {one.values: variables[one.part].part.shape for one in self.walk.facts.sources}
        weighed = tuple(
            replace(keep, power=1.0 - self._loss_degree(keep.values), shape=shapes[keep.values]) for keep in keeps
        )
        after = after_gradients(view, self.walk.facts.sources)
        marked = [node for node in marked_nodes(view) if find_report_kind(view.nodes[node])]
        reported = [node for node in marked if batches.get(node) in trained]
        later = self._find_later(batch_writes, after)
        results = tuple(found for node in reported if (found := self._find_result(node, after, later)) is not None)
        for node in batch_writes:
            if node in later and batches[node] in trained:
                raise GraphError(_LATER.format(what=f"what {view.op(node)} {node!r} writes"))
        writes = {node: _find_additions(self.walk, node) for node in batch_writes if batches[node] in trained}
        added = [edge for edges in writes.values() for edge in edges or ()]
        edges = dict.fromkeys([*self._weigh_writes(added), *self._weigh_additions(reported, added, after)])
        replaced = sorted({_find_variable(self.walk, node) for node, edges in writes.items() if edges is None} - {""})
        counted = self._find_needed(reported, added, after)
        return MicroBatches(
            steps=tuple(sorted(steps)),
            weighed=tuple(edges),
            results=results,
            replaced=tuple(replaced),
            uneven=tuple(self._list_uneven(counted)),
            updates=tuple(self._list_updates()),
        ), weighed

    def _list_uneven(self, needed: set[str]) -> Iterator[str]:
        """The nodes that count entries of which examples have unequally many: shares of examples do not apply."""
        view, growth = self.view, self.growth
        means = [
            one for one in self.layouts.rewrites.means if one.dealt is not None or growth.is_of_elements(one.batch)
        ]
        yield from (one.node for one in means if one.node in needed)
        for node in view.nodes:
            if node in needed and view.op(node) == "Cast" and view.dtype(f"{node}:0") in FLOATS:
                if growth.is_uneven_count(f"{node}:0") and not growth.is_of_autodiff(node):
                    yield node

    def _find_needed(self, results: Sequence[str], written: Sequence[Edge], after: set[str]) -> set[str]:
        """The nodes from which losses, results and additions to variables are computed."""
        view, records = self.view, self.walk.facts.captured.records
        counted = [*(t for one in records for t in one.of), *(view.inputs(edge.node)[edge.slot] for edge in written)]
        return view.computed_of([*results, *(node_of(tensor) for tensor in counted)]) - after

    def _list_updates(self) -> Iterator[str]:
        """The nodes that add to a worker's part of a sum without depending on the batch: once a step."""
        view, batches = self.view, batch_by_node(self.view)
        for node in view.nodes:
            is_write = state_op(view.op(node), len(view.inputs(node))) is not None
            if is_write and node not in batches and node not in self.walk.facts.initial and self._is_of_part(node):
                if _find_additions(self.walk, node):
                    yield node

    def _is_of_part(self, node: str) -> bool:
        variable = _find_variable(self.walk, node)
        return variable in self.view.nodes and is_partial_sum(self.view.nodes[variable])

    def _loss_degree(self, gradient: str) -> float:
        if not self.growth.is_of_batch(gradient):
            return 0.0
        degree = self.growth.find_loss_degree(gradient)
        if degree is None:
            losses = self.growth.losses_of(gradient)
            raise self._not_told(
                "gradients", losses[0] if losses else gradient, "Divide sums by the number of their terms."
            )
        return degree

    def _not_told(self, what: str, tensor: str, remedy: str) -> GraphError:
        cause = self.growth.find_cause(tensor)
        why = f", because of {self.view.op(cause)} {cause!r}" if cause else ""
        return GraphError(_NOT_TOLD.format(what=what, tensor=tensor, why=why, remedy=remedy))

    def _weigh_additions(
        self, results: Sequence[str], written: Sequence[Edge], after: set[str]
    ) -> Iterator[WeighedEdge]:
        """Batch-independent terms that are added to, or concatenated with, batch-dependent ones, also in autodiff."""
        view, growth = self.view, self.growth
        records = self.walk.facts.captured.records
        needed = self._find_needed(results, written, after)
        for node in view.nodes:
            if node in needed and not growth.is_of_autodiff(node) and view.op(node) in AS_MOST:
                yield from self._weigh_others(node, growth.find_degree(f"{node}:0"))
        for one in records:
            degrees = {growth.find_loss_degree(values) for _, values, _ in one.gradients}
            for node in sorted(one.ops) if len(degrees) == 1 else ():
                if view.op(node) == "AddN":
                    yield from self._weigh_others(node, *degrees)

    def _weigh_others(self, node: str, degree: float | None) -> Iterator[WeighedEdge]:
        view = self.view
        for slot, addend in enumerate(view.inputs(node)) if degree and self.growth.is_of_batch(f"{node}:0") else ():
            is_begin = view.op(node_of(addend)) == "Enter"  # of a loop's sum
            if view.dtype(addend) in FLOATS and not is_begin and not self.growth.is_of_batch(addend):
                yield WeighedEdge(Edge(node, slot), degree or 0.0)

    def _weigh_writes(self, added: Sequence[Edge]) -> Iterator[WeighedEdge]:
        for edge in added:
            power = self._power_of(self.view.inputs(edge.node)[edge.slot], "additions to variables")
            if power:
                yield WeighedEdge(edge, power)

    def _power_of(self, tensor: str, what: str) -> float:
        degree = self.growth.find_degree(tensor) if self.growth.is_of_batch(tensor) else 0.0
        if degree is None or (degree != 1.0 and self.view.dtype(tensor) not in FLOATS):
            raise self._not_told(what, tensor, "Sum what each example gives, as a float where it is a mean.")
        return 1.0 - degree

    def _find_later(self, batch_writes: Sequence[str], after: set[str]) -> set[str]:
        """The nodes that depend on an update, by data or control inputs."""
        view, known = self.view, self.walk.facts
        delivered = [node_of(tensor) for source in known.sources for tensor in source.tensors]
        every = known.initial | set(batch_writes) | view.ancestors(delivered)
        writes = [node for node in view.nodes if node not in every and state_op(view.op(node), len(view.inputs(node)))]
        writes = [node for node in writes if not self._is_of_part(node)]
        return view.descendants(writes, waits=True) | after

    def _find_result(self, node: str, after: set[str], later: set[str]) -> AddedResult | None:
        """The aggregation of a result; None for rows of examples and for results of the update."""
        view, tensor = self.view, f"{node}:0"
        if node in after:
            self._check_after(tensor, after)
            return None
        origin = node
        while view.op(origin) == "Identity":
            origin = node_of(view.inputs(origin)[0])
        if origin in later:
            raise GraphError(_LATER.format(what=f"the result {tensor!r}"))
        fact = self.layouts.facts[tensor]
        is_rows = find_report_kind(view.nodes[node]) == ROWS and fact.axis == 0
        if is_rows:
            return None
        if self.growth.has_axis(view.inputs(node)[0]):
            raise GraphError(
                "With accumulate_steps a step must return values of the whole batch, or one row per example in order, "
                f"but {tensor!r} has examples along another axis or in another order. Return it in another form, or "
                "leave accumulate_steps at 1."
            )
        return AddedResult(tensor, self._power_of(view.inputs(node)[0], "results"), tuple(self._list_copies(tensor)))

    def _list_copies(self, tensor: str) -> list[str]:
        """A tensor and its unchanged copies."""
        copies = [tensor]
        for one in copies:
            copies += [f"{edge.node}:0" for edge in self.view.consumers(one) if self.view.op(edge.node) == "Identity"]
        return copies

    def _check_after(self, tensor: str, after: set[str]) -> None:
        """Refuses a result of an update that also depends on one micro-batch."""
        view, batches = self.view, batch_by_node(self.view)
        delivered = {edge for source in self.walk.facts.sources for edge in edges_outside(view, source)}
        for node in sorted(view.computed_of([node_of(tensor)]) & after):
            for slot, tensor_read in enumerate(view.inputs(node)):
                before = node_of(tensor_read)
                if before in batches and before not in after and Edge(node, slot) not in delivered:
                    raise GraphError(
                        "With accumulate_steps a result must not combine the gradients of all micro-batches with a "
                        f"value of only one, but {tensor!r}, which the step returns, is computed from the gradients "
                        f"and {tensor_read!r}. Return the two separately, or leave accumulate_steps at 1."
                    )


def _find_variable(walk: Walk, node: str) -> str:
    """The variable op that a node writes."""
    view = walk.view
    state = state_op(view.op(node), len(view.inputs(node)))
    assert state is not None, "it writes"
    return variable_of_tensor(view, walk.facts.captured.variables, view.inputs(node)[state.state[0]]) or ""


def _find_additions(walk: Walk, node: str) -> list[Edge] | None:
    """The edges of the values that a node adds to its variable; None where the update is not an addition."""
    view = walk.view
    state = state_op(view.op(node), len(view.inputs(node)))
    if state is None or state.value is None:
        return None
    variable = _find_variable(walk, node)
    reads = [edge.node for edge in view.consumers(f"{variable}:0") if view.op(edge.node) == "ReadVariableOp"]
    derived_nodes = view.descendants(reads) | set(reads)
    edge = Edge(node, state.value)
    if state.kind in ("delta", "scatter"):
        is_derived = node_of(view.inputs(node)[state.value]) in derived_nodes
        return (
            None if is_derived or (state.kind == "scatter" and not view.op(node).endswith(("Add", "Sub"))) else [edge]
        )
    additions: list[Edge] = []
    while (before := node_of(view.inputs(edge.node)[edge.slot])) not in reads:
        op, inputs = view.op(before), view.inputs(before)
        old = [slot for slot, one in enumerate(inputs) if node_of(one) in derived_nodes]
        is_kept = op in _PASS_ON or (op in _ADDS and not (op == "Sub" and old != [0]))
        if len(old) != 1 or not is_kept:
            return None
        additions += [Edge(before, slot) for slot in range(len(inputs)) if slot not in old and op in _ADDS]
        edge = Edge(before, old[0])
    return additions
