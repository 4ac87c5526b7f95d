"""Trains graphs on workers in memory: their graphs are one graph, in which the exchanges are ordinary ops.

What a rewrite computes is the question here, and what all workers have in the end; the exchanges themselves, and what
TensorFlow makes of a graph before it runs it, are jobs' (and those of graphs of the grammar, by turns).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession, as_written
from ops.exactness.transport import combine_workers
from parallax.analysis.reading.capture import initialization_phases
from parallax.runtime.guard.watched_variables import watched_variables
from parallax.runtime.verify import difference
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.pipeline import transform
from tests.equality.training import Analysed, all_batches, feeds, one_process, reads_of, routes_in, updates_of


class InMemory:
    """A graph, with what came of each rewrite of it; another graph needs another.

    Args:
        case: the first with the graph.
        size: number of workers.
        layouts: that of Config.
    """

    def __init__(self, case, size, layouts=None):
        native_ops()
        self._analysed, self._size, self._batches = Analysed(case, layouts), size, all_batches(size)
        self._expected = {}

    @property
    def reason_for_means(self):
        """Why each worker's loss is taken for a mean over its batch; empty where losses are followed by layouts."""
        return self._analysed.found.captured.means

    def result(self, case, servers=0):
        """The largest relative difference of each variable on any worker; what workers hold unequal; the routes.

        Args:
            case: another of the graph.
            servers: number of servers, for the routes to them.
        """
        updates = updates_of(self._batches, case.kept)
        if case.kept not in self._expected:
            self._expected[case.kept] = one_process(case, updates, self._size)
        plan, rewrites, worker = self._analysed.decided(case.route, 0, self._size, servers)
        key = (rewrites, worker, plan.accumulate_steps)
        if key not in self._analysed.trained:
            self._analysed.trained[key] = self._trained(rewrites, worker, updates)
        found, unequal = self._analysed.trained[key]
        expected = self._expected[case.kept]
        differences = {name: max(difference(one[name], value) for one in found) for name, value in expected.items()}
        return {"differences": differences, "unequal": unequal, "routes": routes_in(plan)}

    def _trained(self, rewrites, worker, updates):
        graph, ops, analysed = self._analysed.graph, self._analysed.ops, self._analysed.found
        view = analysed.captured.view
        made = [transform(view, rewrites, replace(worker, rank=rank)) for rank in range(self._size)]
        reads = reads_of(graph)
        trained = [op.name for op in ops if ":" not in op.name]
        with NamedSession(combine_workers([one.graph_def for one in made], trained), as_written()) as session:
            job = JobInMemory(session, analysed, made)
            for phase in initialization_phases(analysed.captured):
                job.run_ops([phase] * self._size)
            job.run_ops([list(one.counter_initializers) for one in made])
            for step, draws in enumerate(updates):
                for batches in draws:
                    job.run([ops[step % len(ops)].name], [feeds(graph, mine) for mine in batches])
            watched = [f"{one.op}:0" for one in watched_variables(view, (), made[0])]
            held = [name for name, tensor in reads.items() if f"{name.split(':')[0]}:0" in watched]
            values = job.run(list(reads.values()), [{}] * self._size)
        found = [dict(zip(reads, own, strict=True)) for own in values]
        unequal = [name for name in held if any(not np.array_equal(found[0][name], own[name]) for own in found)]
        return found, unequal
