"""The ops by which rows of a table are updated when they are touched, and brought up to date when they are read."""

from __future__ import annotations

from parallax.types import NodeDef

UPDATE_ROWS = "ParallaxUpdateRows"
GATHER_ROWS = "ParallaxGatherRows"
READ_ROWS = "ParallaxReadRows"
BRING_UP_TO_DATE = "ParallaxBringUpToDate"
FIRST_STATE = 3
"""Of the inputs of an update: values, indices and scalars, then the handles of the table and of its slots."""


def states_of(update: NodeDef) -> list[str]:
    """The handles that an update takes, the table's first."""
    return [name for name in update.input if not name.startswith("^")][FIRST_STATE:]
