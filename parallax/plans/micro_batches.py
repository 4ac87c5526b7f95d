"""Rewrites by which a front end's step can be split into micro-batches: a part of parallax/plans/rewrites.py.

Micro-batches are weighted by their share of the step's examples. A value that grows with the batch by degree d (1 for a
sum, 0 for a mean) adds up to that of the whole step when each micro-batch's value is weighted by `share ** (1 - d)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallax.graph.view import Edge


@dataclass(frozen=True, slots=True)
class WeighedEdge:
    """An input that must be multiplied by a power of the micro-batch's share.

    Attributes:
        edge: the input.
        power: of the share.
    """

    edge: Edge
    power: float


@dataclass(frozen=True, slots=True)
class AddedResult:
    """A result of a step that depends on its batch and is the sum over the micro-batches.

    Attributes:
        tensor: of the user's graph.
        power: of the share by which each micro-batch's value is multiplied.
        copies: the names by which it may be fetched.
    """

    tensor: str
    power: float
    copies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The split of steps into micro-batches.

    Attributes:
        steps: the names of training steps; other steps run undivided.
        weighed: terms of sums over the batch that do not depend on the batch, and values that are added to variables.
        results: results of steps that depend on their batches, except rows of examples.
        replaced: variables that each micro-batch overwrites with a function of their value, such as moving averages.
        uneven: nodes that count, or average over, entries of which examples have unequally many.
        updates: nodes that count steps in variables of which each worker has a part.
    """

    steps: tuple[str, ...] = ()
    weighed: tuple[WeighedEdge, ...] = ()
    results: tuple[AddedResult, ...] = ()
    replaced: tuple[str, ...] = ()
    uneven: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
