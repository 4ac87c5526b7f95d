"""Messages between the stages of a cut graph: tensors, and signals that nodes are done.

A tensor is sent once from its stage directly to each stage that has consumers of it. A control dependency on a node of
another stage becomes a signal from that stage, one for all dependencies of the same nodes. A control dependency on a
group becomes a signal from each stage with members of the group, since groups are on every stage. Nodes that are on
every stage wait for their own stage only: they touch nothing of other stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from parallax.graph.cut.graph_to_cut import GraphToCut
from parallax.graph.view import node_of


@dataclass(frozen=True, slots=True)
class StageMessage:
    """A message from one stage to another in a run.

    Attributes:
        number: the number of the message.
        tensor: the sent tensor; empty for a signal.
        after: the nodes whose end a signal reports; of a group, the sender's members.
        source: the stage that sends.
        target: the stage that receives.
        takers: the nodes of the target that consume the tensor, or wait for the signal.
    """

    number: int
    tensor: str
    after: tuple[str, ...]
    source: int
    target: int
    takers: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that compute the sent tensor, or that a signal waits for."""
        return (node_of(self.tensor),) if self.tensor else self.after


def find_messages(graph: GraphToCut, places: Mapping[str, int]) -> tuple[StageMessage, ...]:
    """All messages between the stages of a graph, for any run, in the same order on all ranks.

    Args:
        graph: the graph.
        places: node -> stage, of all nodes that are on one stage only.
    """
    takers: dict[tuple[str, int, int], list[str]] = {}
    waiting: dict[tuple[str, int, int], list[str]] = {}
    behind = _stages_behind(graph, places)
    for node in graph.order:
        stage = places.get(node)
        if stage is None:
            continue
        for tensor in dict.fromkeys(graph.sent_inputs(node)):
            source = places[node_of(tensor)]
            if source != stage:
                takers.setdefault((tensor, source, stage), []).append(node)
        for control in dict.fromkeys(graph.controls.get(node, ())):
            for source in sorted(behind[control] - {stage}):
                waiting.setdefault((control, source, stage), []).append(node)
    words: dict[tuple[int, int, tuple[str, ...]], list[str]] = {}
    for (control, source, stage), nodes in waiting.items():
        words.setdefault((source, stage, tuple(nodes)), []).append(control)
    messages = [
        StageMessage(number, tensor, (), source, stage, tuple(nodes))
        for number, ((tensor, source, stage), nodes) in enumerate(takers.items())
    ]
    messages += [
        StageMessage(number, "", tuple(after), source, stage, nodes)
        for number, ((source, stage, nodes), after) in enumerate(words.items(), len(messages))
    ]
    return tuple(messages)


def _stages_behind(graph: GraphToCut, places: Mapping[str, int]) -> dict[str, frozenset[int]]:
    """For each node the stages that must finish before it: its own, or those of its group's members."""
    stages_by_node: dict[str, frozenset[int]] = {}
    for node in graph.order:
        if node in places:
            stages_by_node[node] = frozenset({places[node]})
        else:
            stages_by_node[node] = frozenset[int]().union(
                *(stages_by_node.get(one, frozenset()) for one in graph.controls.get(node, ()))
            )
    return stages_by_node


def messages_within(messages: tuple[StageMessage, ...], runs: set[str], fed: frozenset[str]) -> Iterator[StageMessage]:
    """The messages of a run.

    Args:
        messages: all.
        runs: the nodes of the run, on any stage.
        fed: the fed tensors, which are not sent.
    """
    for one in messages:
        if one.tensor not in fed and not runs.isdisjoint(one.takers):
            yield one
