"""Splits a worker's share of a step's batch into micro-batches, and combines the results of their runs.

A worker of b examples has about b / m in each of m micro-batches. All workers run the same number of them: one that is
empty on all workers is skipped, and a worker without examples of a micro-batch computes on a stand-in, one of its own
examples.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from parallax.base.types import Array, Value
from parallax.functions.batches.split_batch import BatchPart, RaggedRows
from parallax.functions.tracing.step_graph import GraphStep
from parallax.graph.batches import are_elements, are_row_ends, batch_of, locate_part
from parallax.plans.micro_batches import MicroBatches


@dataclass(frozen=True, slots=True)
class StepCut:
    """The split of a graph's steps into micro-batches.

    Attributes:
        count: the maximum number of micro-batches.
        steps: the names of the steps that are split.
        added: names of results that are summed over the micro-batches.
    """

    count: int = 1
    steps: Collection[str] = frozenset()
    added: Collection[str] = field(default_factory=frozenset)

    @staticmethod
    def of(count: int, rewrites: Sequence[MicroBatches]) -> StepCut:
        """The split that a plan has chosen."""
        steps = frozenset(name for one in rewrites for name in one.steps)
        added = frozenset(name for one in rewrites for result in one.results for name in result.copies)
        return StepCut(count, steps, added)

    def micro_batches(self, step: GraphStep, share: BatchPart, size: int) -> list[BatchPart]:
        """The micro-batches of a worker's share, equally many on every worker.

        Args:
            step: one of the graph's.
            share: of the worker.
            size: number of workers.
        """
        if step.name not in self.steps or not share.total:
            return [share]
        lengths = [end - first for first, end in (locate_part(share.total, rank, size) for rank in range(size))]
        parts = []
        for number in range(self.count):
            places = [locate_part(rows, number, self.count) for rows in lengths]
            if total := sum(end - first for first, end in places):
                first, end = locate_part(share.rows, number, self.count)
                parts.append(_micro_batch(step, share, first, end, total))
        return parts

    def combine_results(self, name: str, values: Sequence[Value]) -> Value:
        """A result of a step that is not a row of an example.

        Args:
            name: of the tensor.
            values: of each micro-batch; None for results that exist only with an update.
        """
        if name not in self.added or len(values) == 1:
            return values[-1]
        return np.asarray(np.sum([np.asarray(one, np.float64) for one in values], 0), np.asarray(values[0]).dtype)


def _micro_batch(step: GraphStep, share: BatchPart, first: int, end: int, total: int) -> BatchPart:
    """The rows of a share from the first to the end; if there are none, one as a stand-in."""
    first = min(first, max(share.rows, 1) - 1)
    row_range = slice(first, max(end, first + 1))
    arrays: list[Array] = []
    fed = list(zip((feed.op.node_def for feed in step.feeds), share.arrays, strict=True))
    while fed:
        node, array = fed.pop(0)
        if are_elements(node):  # of ragged rows
            splits = []
            while fed and are_row_ends(fed[0][0]):
                splits.append(fed.pop(0)[1])
            arrays += RaggedRows(array, splits)[row_range].parts()
        else:
            arrays.append(array[row_range] if batch_of(node) else array)
    return BatchPart(tuple(arrays), max(end - first, 0), total)
