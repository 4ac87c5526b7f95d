"""Records what was changed in a graph for a fixed batch to open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parallax.analysis.reading.batches.batch_lengths import add_entry
from parallax.base.types import GraphDef
from parallax.graph.control_flow import branches_of
from parallax.graph.view import GraphView


@dataclass(slots=True)
class Changes:
    """What was changed in one graph, and what could not be.

    Attributes:
        view: the graph for the fixed batch.
        find_source: node -> the tensor of which an axis is the batch, or which is its length; empty where the body of
            a function has none, or not all runs with the node read the same input.
        names: nodes, or `node@slot` for one of their inputs; with ` along [axes]` where these have been resized.
        are_classified: whether all constants combined with the batch could be classified.
        without_batch: the first node with such a constant for which there is no batch.
        opened: the graph with an open batch, in whose loops the batch length enters.
    """

    view: GraphView
    find_source: Callable[[str], str]
    names: set[str] = field(default_factory=set)
    are_classified: bool = True
    without_batch: str = ""
    opened: GraphDef | None = None

    def is_outside(self, node: str) -> bool:
        """Whether a node is in no loop or branch, where the batch length would not be available."""
        is_within = bool(branches_of(self.view).get(node))
        self.are_classified &= not is_within
        return not is_within

    def find_batch(self, node: str, at: str = "") -> str:
        """The tensor from which a node may take the batch length, `at` a node of fewer loops; empty if none."""
        frames = [one.predicate for one in branches_of(self.view).get(at or node, ()) if one.is_loop]
        if frames and self.opened is None:
            self.are_classified = False
            return ""
        batch = self.find_source(node)
        if not batch:
            self.are_classified, self.without_batch = False, self.without_batch or node
        if batch and frames and self.opened is not None:
            return add_entry(self.opened, batch, frames)
        return batch
