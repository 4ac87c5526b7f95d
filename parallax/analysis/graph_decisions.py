"""Packs the launcher's decisions about a graph, for workers that receive the graph from the launcher alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parallax.analysis.graph_to_plan import AnalysedGraph, rewrites_of
from parallax.graph.row_updates import ROW_UPDATE_OPS, row_update_ops
from parallax.plans.plan import Plan
from parallax.plans.rewrites import Rewrites


@dataclass(frozen=True, slots=True)
class GraphDecisions:
    """An analysed graph and its rewrites; it can be pickled.

    Attributes:
        analysed: the graph.
        rewrites: its rewrites.
    """

    analysed: AnalysedGraph
    rewrites: Rewrites

    @staticmethod
    def of(analysed: AnalysedGraph, plan: Plan) -> GraphDecisions:
        """The decisions that follow from a plan; intermediate results stay in this process."""
        alone = replace(analysed, captured=replace(analysed.captured))
        return GraphDecisions(alone, rewrites_of(analysed, plan))

    def register_ops(self) -> None:
        """Registers with TensorFlow the ops that the analysis has added to the graph.

        Raises:
            TransformError: their library has not been built.
        """
        if any(node.op in ROW_UPDATE_OPS for node in self.analysed.captured.view.graph_def.node):
            row_update_ops()
