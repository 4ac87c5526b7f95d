"""Tries a graph that a function builds: workers in memory with unequal shares of a batch, and one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ops.exactness.script import Script
from ops.exactness.trial import Outcome, try_program

Feed = Callable[[Any, int], Any]
"""(random state, rows) -> what a placeholder is fed."""
ROWS = 5
"""Three workers have 5, 7 and 4 rows of an open batch, 16 together, which can be halved twice."""


def tried(
    build: Callable[[int | None], Any],
    feeds: Mapping[str, Feed],
    route: str = "alltoall",
    is_open: bool = True,
    dtype: str = "float32",
    control_flow_v2: bool = True,
    rows: int = ROWS,
) -> Outcome:
    """What comes of a graph by layouts.

    Args:
        build: rows of a fixed batch, or None -> the op that trains, or some that are run in turn.
        feeds: by name of a placeholder what it is fed.
        route: of all variables that can have it.
        is_open: whether the batch dimension is left open.
        dtype: of the variables.
        control_flow_v2: whether conditionals and loops are functional.
        rows: of the first worker; of an open batch the second has two more, and the third one less.
    """
    script = Script(
        workers=3,
        rows=rows,
        is_open=is_open,
        control_flow_v2=control_flow_v2,
        optimizes=False,  # TensorFlow takes as long for that as for all else; some of the grammar do
        dtype=dtype,
        feeds=lambda rng, length: {name: feed(rng, length) for name, feed in feeds.items()},
        build=build,
    )
    return try_program(script, [route], layouts=True)[route]
