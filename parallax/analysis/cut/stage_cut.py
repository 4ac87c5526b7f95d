"""The stages of a captured graph: the cut of the forward pass, and the nodes that belong to each stage.

A node of autodiff is on the stage of its forward node. A variable is where the forward pass first reads it. All other
nodes are placed by the transform (graph/cut/places.py), which knows the nodes that it adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from parallax.analysis.cut.forward_pass import ForwardPass, find_forward_pass, find_main_part
from parallax.analysis.cut.min_max import cut_evenly
from parallax.analysis.cut.op_costs import BYTES_PER_S, OPS_PER_S, estimate_cost
from parallax.analysis.cut.stage_activations import Activations, measure_activations
from parallax.analysis.reading.capture import CapturedGraph
from parallax.base.errors import PlanError
from parallax.graph.cut.graph_to_cut import bytes_of_type, elements_of, graph_to_cut, size_bytes
from parallax.graph.cut.layers import nodes_of_layers
from parallax.graph.cut.messages import StageMessage, find_messages
from parallax.graph.cut.places import complete_places
from parallax.graph.cut.replicated_nodes import find_everywhere
from parallax.graph.spec import GradientSource
from parallax.graph.view import VARIABLES, GraphView, node_of
from parallax.plans.model_stages import StageCut

_THERE_AND_BACK = 2.0
"""A tensor of the forward pass crosses the cut, and its gradient crosses back."""
_ALL_PASSES = 3.0
"""A product of the forward pass corresponds to two in the backward pass."""
_NAMED = 4  # ops that a message lists


@dataclass(frozen=True, slots=True)
class CutRates:
    """The measurements by which cuts are compared.

    Attributes:
        run_s: seconds of a run of the whole model, forward and backward; None where the stated rate applies.
        byte_s: seconds of a byte between stages, by the stated rate of links if not measured.
        examples: of the run, by which bytes of activations are multiplied.
        op_seconds: measured seconds of ops, of which only the proportions are used; empty without measurements.
    """

    run_s: float | None = None
    byte_s: float = 1.0 / BYTES_PER_S
    examples: float = 1.0
    op_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GraphCut:
    """A captured graph that can be cut.

    Attributes:
        captured: the graph.
        sources: where gradients leave autodiff.
        forward: its forward pass; of several of which each has a loss of its own, as steps of a script, the dearest.
        everywhere: nodes of which each stage has its own.
        others: the nodes of the other forward passes, which are where most bytes of their inputs are, as variables.
    """

    captured: CapturedGraph
    sources: tuple[GradientSource, ...]
    forward: ForwardPass
    everywhere: frozenset[str]
    others: frozenset[str] = frozenset()

    @property
    def view(self) -> GraphView:
        """The graph."""
        return self.captured.view

    def member_seconds(self, rates: CutRates) -> list[float]:
        """Seconds of each member of the forward pass in a run, with the nodes of autodiff that belong to it."""
        costs = self._measured_costs(rates.op_seconds) or estimate_costs(self.view, self.forward)
        whole_s = _ALL_PASSES * sum(estimate_costs(self.view, self.forward)) * rates.examples / OPS_PER_S
        unit_s = (whole_s if rates.run_s is None else rates.run_s) / (sum(costs) or 1.0)
        return [unit_s * cost for cost in costs]

    def _measured_costs(self, op_seconds: Mapping[str, float]) -> list[float] | None:
        """The measured seconds of each member's nodes and of their gradient nodes; None where none was measured."""
        number_of = self.forward.number_members()
        forward_of = {node: of for record in self.captured.records for node, of in record.forward.items()}
        found = [0.0] * len(self.forward.members)
        for node, seconds in op_seconds.items():
            number = number_of.get(node, number_of.get(forward_of.get(node, "")))
            if number is not None:
                found[number] += seconds
        return found if any(found) else None

    def find_best_ends(self, count: int, rates: CutRates) -> tuple[tuple[str, ...], ...]:
        """The ops that each stage but the last ends with, for the fewest seconds of the slowest of `count` stages.

        Raises:
            PlanError: there are fewer ops than stages.
        """
        members = self.forward.members
        if count > len(members):
            raise PlanError(
                "Every stage needs an op of the forward pass, which can be split into at most "
                f"{len(members)} stages, but {count} were requested. Request fewer."
            )
        crossing = [rates.byte_s * rates.examples * one for one in self._crossing_bytes()]
        at = cut_evenly(self.member_seconds(rates), crossing, count)
        return tuple(self._last_ops(begin, end) for begin, end in zip((0, *at), at, strict=False))

    def _last_ops(self, begin: int, end: int) -> tuple[str, ...]:
        """The sinks among a range of members: those from which no other of them is computed."""
        inputs = frozenset[int]().union(*(self.forward.inputs[number] for number in range(begin, end)))
        return tuple(self.forward.members[number][-1] for number in range(begin, end) if number not in inputs)

    def _crossing_bytes(self) -> list[float]:
        """Bytes that a cut after so many members has cross, there and back."""
        from tensorflow import as_dtype

        number_by_node, bytes_by_cut = self.forward.number_members(), [0.0] * (len(self.forward.members) + 1)
        for node, number in number_by_node.items():
            for tensor in self.view.outputs(node):
                takers = [
                    number_by_node[edge.node] for edge in self.view.consumers(tensor) if edge.node in number_by_node
                ]
                if takers and max(takers) > number:
                    times = _THERE_AND_BACK if as_dtype(self.view.dtype(tensor)).is_floating else 1.0
                    size = times * size_bytes(self.view, tensor)
                    bytes_by_cut[number + 1] += size
                    bytes_by_cut[max(takers) + 1] -= size
        for number in range(1, len(bytes_by_cut)):
            bytes_by_cut[number] += bytes_by_cut[number - 1]
        return [*bytes_by_cut[:-1], 0.0]

    def check_ends(self, ends: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Cuts that a user has named, as those that `cut_at` takes.

        Args:
            ends: ops, or layers, after whose last call a stage ends.

        Raises:
            PlanError: one is no op of the forward pass, or does not come after the one before.
        """
        number_by_node, before, last = self.forward.number_members(), set[int](), set[int]()
        checked = []
        for place, name in enumerate(ends):
            nodes = self._find_ops(name)
            numbers = {number_by_node[node] for node in nodes}
            here = self.forward.find_ancestors(numbers)
            if not last <= here or numbers <= before:
                raise PlanError(
                    f"Cuts must be in the order of the forward pass, but {name!r} does not depend on "
                    f"{ends[place - 1]!r}. Put them in order, or leave one out."
                )
            before, last = before | here, numbers
            checked.append(nodes)
        if len(before) == len(self.forward.members):
            raise PlanError(
                f"The last stage must have an op of the forward pass, and {ends[-1]!r} is its end. Name an op before."
            )
        return tuple(checked)

    def _find_ops(self, name: str) -> tuple[str, ...]:
        """The ops of the forward pass that a user has named: by the name of an op, of a tensor, or of a layer.

        Raises:
            PlanError: there are none.
        """
        number_by_node, layers = self.forward.number_members(), nodes_of_layers(self.view)
        if node_of(name) in number_by_node:
            return (node_of(name),)
        ops = tuple(node for node in layers.get(name, ()) if node in number_by_node)
        if ops:
            return ops
        known = [layer for layer, nodes in layers.items() if any(node in number_by_node for node in nodes)]
        what, last = ("layers", known) if known else ("ones", [nodes[-1] for nodes in self.forward.members])
        raise PlanError(
            f"A cut must be an op of the forward pass with a batch in it, or a layer, and {name!r} is none. Name one "
            f"of the graph or of the model; the last {what} are {', '.join(last[-_NAMED:])}."
        )

    def cut_at(self, ends: Sequence[Sequence[str]]) -> StageCut:
        """The stage of each node if stages end with these ops.

        Raises:
            PlanError: there is no such op.
        """
        number_by_node, stage_of, done = self.forward.number_members(), dict[int, int](), set[int]()
        for stage, names in enumerate(ends):
            unknown = [name for name in names if name not in number_by_node]
            if unknown:
                raise PlanError(f"A stage must end with ops of the forward pass, and {unknown[0]!r} is none of it.")
            here = self.forward.find_ancestors([number_by_node[name] for name in names]) - done
            stage_of.update(dict.fromkeys(here, stage))
            done |= here
        last = len(ends)
        for number, readers in self.forward.readers.items():  # a penalty on weights is where the weights are
            stages = {stage_of.get(reader, last) for reader in readers}
            if number not in done and len(stages) == 1:
                stage_of[number] = stages.pop()
        places = {node: stage_of.get(number, last) for node, number in number_by_node.items()}
        places.update(self._places_of_variables(places))
        if self.others:
            order = [node for node in self.view.topological_order() if node in self.view.ancestors(self.others)]
            complete = complete_places(graph_to_cut(self.view, self.everywhere, order), places)
            places.update({node: complete[node] for node in self.others if node in complete})
        places.update(self._places_of_derivatives(places))
        return StageCut(last + 1, places)

    def _places_of_variables(self, places: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """Variables and their reads: where they are taken first."""
        view = self.view
        for handle in view.nodes_of(VARIABLES):
            if handle in self.everywhere:
                continue
            reads = [edge.node for edge in view.consumers(f"{handle}:0")]
            readers = [edge.node for read in reads for tensor in view.outputs(read) for edge in view.consumers(tensor)]
            stages = [places[node] for node in (*reads, *readers) if node in places]
            if stages:
                yield handle, min(stages)

    def _places_of_derivatives(self, places: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """The stages of autodiff's nodes, from those of their forward nodes."""
        for record in self.captured.records:
            for node, forward in record.forward.items():
                if node in self.view.nodes and forward in places and node not in places:
                    yield node, places[forward]

    def count_variable_bytes(self, cut: StageCut) -> list[int]:
        """Bytes of the variables that each stage holds, slots and all others, but for those that every stage has."""
        view, found = self.view, [0] * cut.count
        places = complete_places(graph_to_cut(view, self.everywhere, view.topological_order()), cut.places)
        for handle in view.nodes_of(VARIABLES):
            if handle in places:
                attributes = view.nodes[handle].attr
                shape = tuple(dim.size for dim in attributes["shape"].shape.dim)
                found[places[handle]] += elements_of(shape) * bytes_of_type(attributes["dtype"].type)
        return found

    def measure_activations(self, cut: StageCut) -> list[Activations]:
        """The activations of each stage for one micro-batch."""
        derived = frozenset[str]().union(*(record.ops for record in self.captured.records))
        members, needed = self.forward.number_members().keys(), self._find_gradient_ancestors()
        nodes: list[list[str]] = [[] for _ in range(cut.count)]
        for node in self.view.topological_order():
            if node in needed and node in cut.places and (node in members or node in derived):
                nodes[cut.places[node]].append(node)
        return [measure_activations(self.view, one, members & set(one)) for one in nodes]

    def _find_gradient_ancestors(self) -> set[str]:
        """The nodes on which gradients depend."""
        return self.view.ancestors({node_of(tensor) for source in self.sources for tensor in source.tensors})

    def list_messages(self, cut: StageCut) -> tuple[StageMessage, ...]:
        """The messages between stages for each micro-batch, as far as the user's graph determines them."""
        view = self.view
        needed = self._find_gradient_ancestors()
        graph = graph_to_cut(view, self.everywhere, [node for node in view.topological_order() if node in needed])
        return find_messages(graph, complete_places(graph, cut.places))


def graph_cut(captured: CapturedGraph, sources: tuple[GradientSource, ...]) -> GraphCut:
    """Finds the places at which a graph can be cut.

    Args:
        captured: the graph.
        sources: where gradients leave autodiff.

    Raises:
        PlanError: it does not say what is differentiated.
    """
    view = captured.view
    losses = {node_of(tensor) for record in captured.records for tensor in record.of} & view.nodes.keys()
    if not losses:
        raise PlanError(
            "Stages are cut between a batch and its loss, and which op the loss is was not recorded. Import parallax "
            "before tf.gradients is called, or leave stages out."
        )
    autodiff = frozenset[str]().union(*(record.ops for record in captured.records))
    ends = losses | {node_of(tensor) for source in sources for tensor in source.tensors}
    everywhere = find_everywhere(view)
    every = find_forward_pass(view, ends, autodiff, everywhere)
    forward = find_main_part(every, losses, estimate_costs(view, every))
    others = every.number_members().keys() - forward.number_members().keys()
    return GraphCut(captured, sources, forward, everywhere, frozenset(others))


def estimate_costs(view: GraphView, forward: ForwardPass) -> list[float]:
    """Operations of each member of a forward pass."""
    return [sum(estimate_cost(view, node) for node in nodes) for nodes in forward.members]
