"""What must be changed so that a front end's step may be cut into micro-batches: a part of parallax/plans/rewrites.py.

Micro-batches are weighed by their share of the step's examples. What grows with the batch by degree d, as a sum by 1
and a mean by 0, adds up to that of the whole step when each micro-batch's counts by `share ** (1 - d)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallax.graph.view import Edge


@dataclass(frozen=True, slots=True)
class WeighedEdge:
    """An input that is to be taken times a power of the micro-batch's share.

    Attributes:
        edge: takes it.
        power: of the share.
    """

    edge: Edge
    power: float


@dataclass(frozen=True, slots=True)
class AddedResult:
    """What a step returns of its batch, which is the sum over the micro-batches.

    Attributes:
        tensor: of the user's graph.
        power: of the share by which each micro-batch's is multiplied.
        copies: the names by which it may be fetched.
    """

    tensor: str
    power: float
    copies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """How steps are cut.

    Attributes:
        steps: the names of those that train; others are run as they are.
        weighed: what is added to sums over the batch and is none, and what is added to variables.
        results: what steps return of their batches, rows of examples apart.
        replaced: variables that each micro-batch replaces by what it makes of them, as moving averages.
        uneven: nodes that count, or average over, what examples have unequally many of.
        updates: nodes that count steps in variables of which each worker has a part.
    """

    steps: tuple[str, ...] = ()
    weighed: tuple[WeighedEdge, ...] = ()
    results: tuple[AddedResult, ...] = ()
    replaced: tuple[str, ...] = ()
    uneven: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
