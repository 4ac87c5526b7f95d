"""Rewrites of gradient rows where they leave autodiff, and of accumulation: a part of parallax/plans/rewrites.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax.graph.view import Edge


@dataclass(frozen=True, slots=True)
class Dealt:
    """The elements of a vector that were dealt out to one part of a table.

    Attributes:
        numbers: the tensor of each element's part number.
        part: the part.
        before: tensors whose elements precede these, in `numbers`.
    """

    numbers: str
    part: int
    before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GradientPiece:
    """The rows of one lookup among the gradient rows of a variable.

    Attributes:
        ids: the tensor whose elements count the rows.
        kind: `joined`, `unique`, `shared` or `unknown` (propagation/gradient_pieces.py).
        of: for `unique` the tensor of distinct ids that identifies equal rows, where the row numbers do not; for
            `unknown` the op at which the analysis stops.
        merged: for `unique` the op that deduplicated the ids; no other piece has the same one.
        dealt: set where the piece has only those ids that were dealt out to one part of a table.
    """

    ids: str
    kind: str
    of: str = ""
    merged: str = ""
    dealt: Dealt | None = None


@dataclass(frozen=True, slots=True)
class AccumulateGradient:
    """Accumulates a gradient where it leaves autodiff, until all batches of one update have run.

    The edges then see the mean over those batches: a dense gradient's sum, or the rows of all of them concatenated
    piece by piece, divided by the number of batches. Where a `batch` is named, each batch counts by its examples. Where
    a front end's step is split into micro-batches, the edges see the sum, each micro-batch weighted by a power of its
    share.

    Attributes:
        values: the gradient, or the values of its rows.
        value_edges: the inputs outside autodiff that read it.
        indices: the indices of its rows; empty for a dense gradient.
        index_edges: the inputs that read these.
        pieces: the pieces of its rows, in order.
        constant: for each piece whether its ids are the same in every batch, so that its rows are summed.
        batch: the placeholder whose first dimension is the per-worker batch, where batches have layouts.
        is_counted: whether a worker without examples already has a neutral value, if the gradient is dense.
        power: of a micro-batch's share; None where no step is split.
        shape: of the variable, if there is one.
    """

    values: str
    value_edges: tuple[Edge, ...]
    indices: str = ""
    index_edges: tuple[Edge, ...] = ()
    pieces: tuple[GradientPiece, ...] = ()
    constant: tuple[bool, ...] = ()
    batch: str = field(default="", repr=False)
    is_counted: bool = field(default=False, repr=False)
    power: float | None = field(default=None, repr=False)
    shape: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class EqualRows:
    """A constant of equal rows, as many as the batch at `like` has: the edge reads as many rows as were accumulated."""

    edge: Edge
    like: Edge


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Gradient rows of the global batch, some of which belong to the same ids on all workers.

    Those are summed over the workers; the last worker stores the sum and the others store zeros.
    """

    tensor: str
    edges: tuple[Edge, ...]
    pieces: tuple[GradientPiece, ...]
