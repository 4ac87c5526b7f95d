"""How a tensor is a part of what the one process has: along which axis the workers' tensors lie one after the other."""

from __future__ import annotations

from typing import NamedTuple

MIXED = -1
"""The first axis has the rows of all workers, not one worker's after the other's."""


class AxisPart(NamedTuple):
    """Along which axis a tensor is joined.

    Attributes:
        axis: the axis, or MIXED.
        blocks: where the axis is MIXED, of how many blocks of equal length the first axis is made, each of which is
            joined along it; 0 where that is not known.
    """

    axis: int
    blocks: int = 0


ALIKE = AxisPart(-2)
"""All workers have the tensor alike."""
