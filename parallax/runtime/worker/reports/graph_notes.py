"""Logs worker 0's notes on its graph when the session is opened: initial values built whole, and unsaved positions."""

from __future__ import annotations

from collections.abc import Sequence

from parallax.report.logger import log
from parallax.report.text import bytes_text, list_first
from parallax.transform.building import editor
from parallax.transform.pipeline import WorkerGraph

_LARGE_BYTES = 64 * 2**20
"""The size from which initial values that are built whole are logged; a checkpoint also holds so much at once."""


def log_full_values(values: Sequence[editor.SlicedValue]) -> None:
    """Logs the large initial values that a worker builds whole although it needs only some of their rows."""
    for cut in values:
        if cut.size_bytes >= _LARGE_BYTES:
            log.info(
                f"{cut.op} {cut.node!r} of {cut.variable} cannot be computed row by row: {bytes_text(cut.size_bytes)} "
                "are created whole and then cut to their owners' rows (docs/architecture.md, Initial values)."
            )


def log_lost_positions(worker_graph: WorkerGraph) -> None:
    """Logs the streams and input pipelines that a job resumed from a checkpoint will not continue in place."""
    streams, inputs = worker_graph.streams.unsaved, worker_graph.inputs.unsaved
    if streams:
        log.info(
            "After a resume, these random ops draw other numbers than in an uninterrupted run: "
            f"{list_first(streams)}. Checkpoints do not hold the state of random ops in loops and functions, and of "
            "some kinds."
        )
    if inputs:
        log.info(
            f"After a resume, these iterators restart at their first element: {list_first(inputs)}. Checkpoints do "
            "not hold the state of iterators that are chosen by a string, or read in conditionals and functions."
        )
