"""The variables of a script while a session trains them: read as the one process would read them, written likewise.

A variable whose values add up over replicas (`aggregation` SUM, as those of metrics) is a part on each worker, from
zero on, and its value is the sum of what the script last wrote and all parts. All others have worker 0's value.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from parallax.functions.mirrors import Mirrors
from parallax.functions.running import RunningSteps
from parallax.functions.step_graph import StepGraph
from parallax.types import Value


class SessionVariables:
    """The variables that a graph's steps have taken."""

    def __init__(self, graph: StepGraph) -> None:
        """Adds what reads and resets parts to the graph; before a session is opened on it.

        Args:
            graph: with its steps.
        """
        self._graph = graph
        self._parts = {}
        added = [one.name for one in graph.taken() if one.variable.aggregation == tf.VariableAggregation.SUM]
        for name in added:
            with graph.graph.as_default(), graph.graph.name_scope("parts/"):
                self._parts[name] = tf.identity(graph.made[name])
        self._reset = {name: graph.reset([name]) for name in added}
        self._base: dict[str, Value] = {}

    def begin(self, running: RunningSteps) -> Mirrors:
        """Gives the session the script's values, and mirrors the script's variables."""
        self._running = running
        running.begin({"step": list(self._parts)})
        variables = running.variables()
        self._base = {name: variables[name].numpy() for name in self._parts}
        self._mirrors = Mirrors(variables.items(), self._fetched)
        return self._mirrors

    def flush(self) -> None:
        """Gives the session what the script wrote; every worker must call it, having written the same variables."""
        written, self._mirrors.written = sorted(self._mirrors.written), set()
        values = {name: self._mirrors.variable(name).numpy() for name in written}
        for name in [name for name in values if name in self._parts]:
            self._base[name] = values.pop(name)
            self._running.reset(self._reset[name])
        self._running.write(values if self._running.rank == 0 else dict.fromkeys(values))

    def refresh_all(self) -> None:
        """Gives the script's variables the session's values; every worker must call it."""
        self._mirrors.refresh_all()

    def outdate(self) -> None:
        """Says that a step has run."""
        self._mirrors.outdate(self._running.variables())

    def _fetched(self, name: str) -> Value:
        if name not in self._parts:
            return self._running.read_everywhere(name)
        base = self._base[name]
        return (base + self._running.sum_of(self._parts[name], name)).astype(np.asarray(base).dtype)
