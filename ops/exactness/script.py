"""A loaded program: its feeds, and its graph for one worker's batch or for the global batch.

A program's text defines WORKERS, ROWS (of a worker's batch), OPEN_BATCH, CONTROL_FLOW_V2, F (type of its variables),
`feeds(rng, rows)`, which returns a value for each placeholder by name, and `build(rows)`, which builds in the default
graph and returns the ops to run in turn. OPTIMIZES = False disables TensorFlow's graph optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ops.exactness.session import as_written
from parallax.analysis.reading.construction import record

v1 = tf.compat.v1
_Sparse = v1.SparseTensorValue
record.install()
v1.logging.set_verbosity(v1.logging.ERROR)  # hides that autograph cannot read a program's text, which does not need it

STEPS = 4
"""Steps of a program with one op; each further op adds two."""
_MORE = (0, 2, -1)
"""Differences of the workers' shares from ROWS, where they are unequal."""
_LONGEST_RUN_MS = 60_000
"""A longer run waits for ever, for example for an element of an empty queue."""


class FedRows(int):
    """A fed number of examples: of a worker's batch, or of the global batch in the one process."""


@dataclass(frozen=True, slots=True)
class Script:
    """A loaded program.

    Attributes:
        workers: number of workers.
        rows: of each worker's batch.
        is_open: whether the graph leaves the batch dimension open; else the global batch has a graph of its own.
        control_flow_v2: whether conditionals and loops are functional.
        optimizes: whether TensorFlow's graph optimizers run, as they do in a user's session.
        dtype: of the variables; determines how exact a comparison can be.
        feeds: (random state, rows) -> name of placeholder -> value; a SparseTensorValue for a sparse one.
        build: rows, or None -> the ops to run in turn; builds in the default graph.
    """

    workers: int
    rows: int
    is_open: bool
    control_flow_v2: bool
    optimizes: bool
    dtype: str
    feeds: Callable[[Any, int], dict[str, Any]]
    build: Callable[[int | None], Sequence[Any]]

    @staticmethod
    def load(source: str, name: str = "program") -> Script:
        """Executes a program's text, which builds nothing yet."""
        names: dict[str, Any] = {"__name__": name}
        exec(compile(source, f"<{name}>", "exec"), names)
        return Script(
            names["WORKERS"],
            names["ROWS"],
            names["OPEN_BATCH"],
            names["CONTROL_FLOW_V2"],
            names.get("OPTIMIZES", True),
            names["F"].name,
            names["feeds"],
            names["build"],
        )

    def graph(self, rows: int) -> tuple[Any, list[Any]]:
        """Builds the program's graph for a batch; returns it and the ops to run in turn."""
        toggle = v1.enable_control_flow_v2 if self.control_flow_v2 else v1.disable_control_flow_v2
        toggle()
        graph = tf.Graph()
        try:
            with graph.as_default():
                v1.set_random_seed(3)
                made = self.build(None if self.is_open else rows)
        finally:
            v1.enable_control_flow_v2()
        return graph, list(made) if isinstance(made, list | tuple) else [made]

    def batches(self, turns: int, are_uneven: bool = False) -> list[list[dict[str, Any]]]:
        """Returns the batch of each worker for each step; `turns` is the number of ops to run in turn."""
        rng, steps = np.random.RandomState(0), STEPS + 2 * (turns - 1)
        rows = [self.rows + (_MORE[rank % len(_MORE)] if are_uneven else 0) for rank in range(self.workers)]
        return [[self.feeds(rng, n) for n in rows] for _ in range(steps)]

    def options(self) -> Any:
        """Returns session options with one thread, so that a fault shows in every trial or in none."""
        config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1)
        config.operation_timeout_in_ms = _LONGEST_RUN_MS
        return config if self.optimizes else as_written(config)


def concatenate_batches(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Concatenates the workers' batches; scalars are those of worker 0.

    Sparse tensors are concatenated by rows. Square ones, such as adjacency matrices of the workers' own graphs, are
    concatenated by columns, too.
    """
    return {name: _concatenate_values([batch[name] for batch in batches]) for name in batches[0]}


def _concatenate_values(values: Sequence[Any]) -> Any:
    if isinstance(values[0], FedRows):
        return FedRows(sum(values))
    if not isinstance(values[0], _Sparse):
        return np.concatenate(values) if np.ndim(values[0]) else values[0]
    is_square = all(shape[0] == shape[1] for _, _, shape in values)
    shapes = np.array([shape for _, _, shape in values])
    ends = np.cumsum(shapes, 0) if is_square else np.cumsum(shapes, 0) * [1, 0]
    begins = np.concatenate([[[0, 0]], ends[:-1]])
    places = np.concatenate([places + begin for (places, _, _), begin in zip(values, begins, strict=True)])
    whole = ends[-1] if is_square else [ends[-1][0], shapes[:, 1].max()]
    return _Sparse(places, np.concatenate([found for _, found, _ in values]), np.array(whole))


def fed(batch: dict[str, Any], needed: Set[str]) -> dict[str, Any]:
    """Returns the part of a batch that a run needs, by tensor; `needed` are the nodes of the graph that it runs."""
    parts: dict[str, Any] = {}
    for name, value in batch.items():
        is_sparse = isinstance(value, _Sparse)
        names = [f"{name}/{part}" for part in ("indices", "values", "shape")] if is_sparse else [name]
        parts.update(zip(names, value if is_sparse else [value], strict=True))
    return {f"{name}:0": value for name, value in parts.items() if name in needed}
