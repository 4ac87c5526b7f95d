"""Identifies a session's training runs: those after which all workers have the same new global step."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax.base.types import Comm
from parallax.graph.ops import PASSES_ON
from parallax.graph.view import GraphView, node_of
from parallax.runtime.worker.session.names import Names
from parallax.runtime.worker.session.run_context import WorkerContext

_WRITES = ("Assign", "Scatter", "ResourceScatter", "CountUpTo", "ResourceCountUpTo")
_TAKES_ALONG = ("If", "StatelessIf", "While", "StatelessWhile", "Case", "PartitionedCall", "StatefulPartitionedCall")


@dataclass
class StepRuns:
    """Distinguishes training runs from others.

    Attributes:
        worker: the worker whose runs are inspected.
        step_op: the op of the user's graph that holds the global step.
        comm: communicator of the workers.
    """

    worker: WorkerContext
    step_op: str
    comm: Comm
    _trains: dict[tuple[tuple[str, ...], frozenset[str]], bool] = field(default_factory=dict)
    _names: Names | None = None  # of the plan for which these are known
    _step_writers: frozenset[str] = frozenset()

    def has_trained(self) -> bool:
        """Whether the run that has just ended is one that all workers ran together, and writes the global step."""
        run = self.worker.run
        if run is None or run.gather is not None:
            return False
        names, fed = (*run.names, *run.hook_names), frozenset(run.fed)
        known = self.worker.names
        if known is not self._names:
            self._names, self._trains = known, {}
            self._step_writers = _writers(known.run_view, known.here(self.step_op))
        if (names, fed) not in self._trains:
            resolved = known.resolve(names, fed)
            cut_off = frozenset(known.here(name) for name in fed)
            nodes = known.run_view.ancestors(
                {node_of(t) if ":" in t else t for t in resolved.targets if t not in cut_off}, cut_off
            )
            is_joint = bool(resolved.collectives) or not known.has_collectives
            self._trains[names, fed] = is_joint and bool(nodes & self._step_writers)
        return self._trains[names, fed]


def _writers(view: GraphView, variable: str) -> frozenset[str]:
    """The ops that write a variable, or pass it to a function body that may write it."""
    writers, waiting, seen = set(), [variable], {variable}
    while waiting:
        node = waiting.pop()
        for tensor in {f"{node}:0", f"{node}:1", *view.outputs(node)}:
            for edge in view.consumers(tensor):
                op = view.op(edge.node)
                if op in _TAKES_ALONG or (edge.slot == 0 and op.startswith(_WRITES)):
                    writers.add(edge.node)
                elif op in PASSES_ON and edge.node not in seen:
                    seen.add(edge.node)
                    waiting.append(edge.node)
    return frozenset(writers)
