"""What a worker's training step holds while each of its ops runs: plain arrays, from which a plan's memory follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FIXED, BATCH, GRADIENTS = "fixed", "batch", "gradients"
"""Kinds of buffers; others are rows of a table, by its op."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveBytes:
    """What a step holds while each of its ops runs; all arrays are `[ops]`, in bytes.

    Attributes:
        fixed: whatever the batch.
        of_batch: of the batch as built; they grow with the examples.
        gradients: of dense gradients, as `gradient_bytes` says of each.
        of_rows: table op -> of all its rows; an owner has its share.
        examples: of a worker's batch; 0 where the graph does not say it.
        largest_of: of each kind, or table op, the largest buffer. Freed memory is kept in pieces, and small tensors
            take some of it, so that as much as the largest buffer fits nowhere and is taken anew.
        largest: the largest tensor of the batch, and its bytes; empty where there is none.
        notes: what is not counted.
    """

    fixed: NDArray[np.float64]
    of_batch: NDArray[np.float64]
    gradients: NDArray[np.float64]
    of_rows: Mapping[str, NDArray[np.float64]]
    examples: int
    largest_of: Mapping[str, float]
    largest: tuple[str, float] = ("", 0.0)
    notes: tuple[str, ...] = ()
