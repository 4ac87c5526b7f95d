"""What stages of a cut graph send each other: tensors, and words that something is done.

A tensor goes right from the stage that makes it to each stage that takes it, once. Where a node waits for one of
another stage, that stage says when it is done, once for all that the same nodes wait for. It does so where a node waits
for a group, too: the group is everywhere, and each stage waits for its own members of it. What is everywhere itself
waits for its own stage alone: it touches nothing that another stage has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from parallax.graph.cut.graph_to_cut import GraphToCut
from parallax.graph.view import split_tensor


@dataclass(frozen=True, slots=True)
class StageMessage:
    """Something that one stage sends to another in a run.

    Attributes:
        number: of the message.
        tensor: what is sent; empty for a word.
        after: the nodes of which a word says that they are done; of a group, the sender's members of it.
        source: the stage that sends.
        target: the stage that receives.
        takers: the nodes of the target that take the tensor, or wait for the word.
    """

    number: int
    tensor: str
    after: tuple[str, ...]
    source: int
    target: int
    takers: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that give what is sent, or that a word waits for."""
        return (split_tensor(self.tensor)[0],) if self.tensor else self.after


def find_messages(graph: GraphToCut, places: Mapping[str, int]) -> tuple[StageMessage, ...]:
    """All that the stages of a graph send each other, whatever is run, in an order that all ranks find.

    Args:
        graph: the graph.
        places: node -> stage, of all nodes that are not everywhere.
    """
    takers: dict[tuple[str, int, int], list[str]] = {}
    waiting: dict[tuple[str, int, int], list[str]] = {}
    behind = _stages_behind(graph, places)
    for node in graph.order:
        stage = places.get(node)
        if stage is None:
            continue
        for tensor in dict.fromkeys(graph.sent_inputs(node)):
            source = places[split_tensor(tensor)[0]]
            if source != stage:
                takers.setdefault((tensor, source, stage), []).append(node)
        for control in dict.fromkeys(graph.controls.get(node, ())):
            for source in sorted(behind[control] - {stage}):
                waiting.setdefault((control, source, stage), []).append(node)
    words: dict[tuple[int, int, tuple[str, ...]], list[str]] = {}
    for (control, source, stage), nodes in waiting.items():
        words.setdefault((source, stage, tuple(nodes)), []).append(control)
    found = [
        StageMessage(number, tensor, (), source, stage, tuple(nodes))
        for number, ((tensor, source, stage), nodes) in enumerate(takers.items())
    ]
    found += [
        StageMessage(number, "", tuple(after), source, stage, nodes)
        for number, ((source, stage, nodes), after) in enumerate(words.items(), len(found))
    ]
    return tuple(found)


def _stages_behind(graph: GraphToCut, places: Mapping[str, int]) -> dict[str, frozenset[int]]:
    """For each node the stages on which something must be done before it is: its own, or its group's members'."""
    found: dict[str, frozenset[int]] = {}
    for node in graph.order:
        if node in places:
            found[node] = frozenset({places[node]})
        else:
            found[node] = frozenset[int]().union(*(found.get(one, frozenset()) for one in graph.controls.get(node, ())))
    return found


def messages_within(messages: tuple[StageMessage, ...], runs: set[str], fed: frozenset[str]) -> Iterator[StageMessage]:
    """The messages of a run.

    Args:
        messages: all.
        runs: the nodes that it runs, on whichever stage.
        fed: the tensors that it feeds, which nobody sends.
    """
    for one in messages:
        if one.tensor not in fed and not runs.isdisjoint(one.takers):
            yield one
