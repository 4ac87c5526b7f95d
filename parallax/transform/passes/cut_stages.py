"""Cuts a replica's finished graph to that of one stage: its nodes, with sends and receives at cut edges.

The pass follows all passes that build the graph of a worker without stages, and precedes the fusion of all-reduces,
which are fused within a stage. A node of another stage is not in the graph; a node that exists on each stage is, and
waits for its own stage alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.errors import TransformError
from parallax.base.types import Graph, GraphDef, NodeDef
from parallax.graph.cut.graph_to_cut import graph_to_cut
from parallax.graph.cut.messages import StageMessage, find_messages, messages_within
from parallax.graph.cut.places import complete_places
from parallax.graph.cut.replicated_nodes import find_everywhere
from parallax.graph.view import VARIABLES, GraphView, node_of, tensor_name
from parallax.plans.model_stages import StageCut
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.known_shapes import with_shapes
from parallax.transform.passes.packed_messages import find_packs, pack

SEND, RECEIVE = "ParallaxSend", "ParallaxReceive"
SCOPE = "parallax/stage"
_OF_ONE_PROCESS = ("_class", "_output_shapes")
"""Attributes that name other nodes, or contain inferred shapes."""


@dataclass(frozen=True, slots=True)
class StageGraph:
    """The stage of a worker's graph.

    Attributes:
        count: the number of stages.
        stage: the worker's.
        whole: the graph of all stages, uncut.
        places: node of that -> stage; nodes that exist on each stage have none.
        messages: the messages between stages.
        packed: tensors that travel with others, so that a feed of one would not reach its consumers.
    """

    count: int
    stage: int
    whole: GraphDef
    places: Mapping[str, int]
    messages: tuple[StageMessage, ...]
    packed: frozenset[str] = frozenset()

    def is_here(self, node: str) -> bool:
        """Whether a node is in this worker's graph."""
        return self.places.get(node, self.stage) == self.stage

    def variables_elsewhere(self, view: GraphView) -> frozenset[str]:
        """The variables of the user's graph that other stages store, and this one does not."""
        return frozenset(op for op in view.nodes_of(VARIABLES) if not self.is_here(op))

    def within(self, runs: set[str], fed: frozenset[str] = frozenset()) -> list[StageMessage]:
        """The messages between stages in a run of some nodes and all their ancestors."""
        return list(messages_within(self.messages, runs, fed))

    def sends_for(self, targets: Iterable[str]) -> list[str]:
        """The ops by which this stage gives others what a run of some nodes needs."""
        runs = GraphView(self.whole).ancestors(targets)
        return [send_name(one) for one in self.within(runs) if one.source == self.stage]


def ops_here(stages: StageGraph | None, names: Sequence[str]) -> list[str]:
    """The ops that a worker runs where all workers together run some ops."""
    if stages is None:
        return list(names)
    return [*(name for name in names if stages.is_here(name)), *stages.sends_for(names)]


def send_name(message: StageMessage) -> str:
    """The op that sends a message."""
    return f"{SCOPE}/send_{message.number}"


def receive_name(message: StageMessage) -> str:
    """The op that receives a message."""
    return f"{SCOPE}/receive_{message.number}"


def cut_stages(
    graph_def: GraphDef, cut: StageCut, stage: int, before: GraphView, new: Graph
) -> tuple[GraphDef, StageGraph]:
    """The graph of one stage, and the description of the stage.

    Args:
        graph_def: the graph of all stages, to which nodes that pack small messages are added.
        cut: the assignment of the user's graph to stages.
        stage: the stage of the graph.
        before: the user's graph, with shapes.
        new: a graph of the ops that the transform made, with the same names.

    Raises:
        TransformError: the graph cannot be cut there.
    """
    native_ops()
    view = GraphView(with_shapes(graph_def, before, new))
    everywhere = find_everywhere(view)
    graph = graph_to_cut(view, everywhere, view.topological_order())
    places = complete_places(graph, cut.places)
    messages = find_messages(graph, places)
    packs = find_packs(view, messages)
    if packs:
        for changed in (graph_def, view.graph_def):
            pack(changed, packs)
        view = GraphView(view.graph_def)
        places |= {one.pack: one.source for one in packs} | {one.parts: one.target for one in packs}
        messages = find_messages(graph_to_cut(view, everywhere, view.topological_order()), places)
    packed = frozenset(tensor for one in packs for tensor in one.tensors)
    made = StageGraph(cut.count, stage, graph_def, places, messages, packed)
    graph_of_stage = _stage_of(graph_def, view, made)
    check_messages(graph_of_stage, made)
    return graph_of_stage, made


def _stage_of(graph_def: GraphDef, view: GraphView, made: StageGraph) -> GraphDef:
    """The nodes of a stage, with receives for inputs from other stages, and sends for their consumers."""
    received = {one.tensor: one for one in made.messages if one.target == made.stage and one.tensor}
    words: dict[str, list[StageMessage]] = {}
    for one in made.messages:
        if one.target == made.stage and not one.tensor:
            for taker in one.takers:
                words.setdefault(taker, []).append(one)
    graph_of_stage = tf.compat.v1.GraphDef()
    graph_of_stage.versions.CopyFrom(graph_def.versions)
    graph_of_stage.library.CopyFrom(graph_def.library)
    for node in graph_def.node:
        if made.is_here(node.name):
            own = graph_of_stage.node.add()
            own.CopyFrom(node)
            _lead(own, made, received, words.get(node.name, ()))
    for one in made.messages:
        if one.source == made.stage:
            _add_send(graph_of_stage, view, one)
        elif one.target == made.stage:
            _add_receive(graph_of_stage, view, one)
    return graph_of_stage


def _lead(node: NodeDef, made: StageGraph, received: Mapping[str, StageMessage], words: Iterable[StageMessage]) -> None:
    """Redirects a node to received tensors, and makes it wait for local nodes and for the signals of other stages."""
    new_inputs = []
    for name in node.input:
        before = name[1:] if name.startswith("^") else node_of(tensor_name(name))
        if made.is_here(before):
            new_inputs.append(name)
        elif not name.startswith("^"):
            new_inputs.insert(
                sum(not one.startswith("^") for one in new_inputs), receive_name(received[tensor_name(name)])
            )
    node.input[:] = [*new_inputs, *(f"^{receive_name(one)}" for one in words)]
    for attribute in _OF_ONE_PROCESS:
        node.attr.pop(attribute, None)


def _add_send(graph_def: GraphDef, view: GraphView, message: StageMessage) -> None:
    value, dtype = message.tensor, tf.bool.as_datatype_enum
    if not value:  # a word is a tensor without elements
        value = f"{send_name(message)}/word"
        word = graph_def.node.add(op="Const", name=value, input=[f"^{node}" for node in message.after])
        word.attr["dtype"].type = dtype
        word.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([], tf.bool))
    else:
        dtype = view.dtype(value)
    node = graph_def.node.add(op=SEND, name=send_name(message), input=[value])
    node.attr["T"].type = dtype
    node.attr["peer"].i, node.attr["number"].i = message.target, message.number


def _add_receive(graph_def: GraphDef, view: GraphView, message: StageMessage) -> None:
    node = graph_def.node.add(op=RECEIVE, name=receive_name(message))
    shape: tuple[int | None, ...] | None = (0,)
    node.attr["T"].type = tf.bool.as_datatype_enum
    if message.tensor:
        node.attr["T"].type, shape = view.dtype(message.tensor), view.shape(message.tensor)
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    node.attr["peer"].i, node.attr["number"].i = message.source, message.number


def check_messages(graph_def: GraphDef, made: StageGraph) -> None:
    """Checks that a stage sends and receives the agreed messages, and that every input exists on it.

    Raises:
        TransformError: names the node.
    """
    names = {node.name for node in graph_def.node}
    for one in made.messages:
        for name, stage in ((send_name(one), one.source), (receive_name(one), one.target)):
            if (name in names) != (stage == made.stage):
                raise TransformError(f"{name!r} must be in the graph of stage {stage} alone. Report it.")
    for node in graph_def.node:
        for name in node.input:
            before = name[1:] if name.startswith("^") else node_of(tensor_name(name))
            if before not in names:
                raise TransformError(
                    f"{node.name!r} of stage {made.stage} must take what the stage has or receives, and takes {name!r} "
                    f"of stage {made.places.get(before)}. Report it: a pass of Parallax has a fault."
                )
