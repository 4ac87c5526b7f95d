"""Gradient rows where they leave autodiff, and gradients that are kept: a part of parallax/plans/rewrites.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax.graph.view import Edge


@dataclass(frozen=True, slots=True)
class Dealt:
    """Which elements of a vector that was dealt out to the parts of a table are counted.

    Attributes:
        numbers: the tensor that says to which part an element goes.
        part: the part.
        before: tensors whose elements come before, in `numbers`.
    """

    numbers: str
    part: int
    before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GradientPiece:
    """Rows of one lookup among joined gradient rows.

    Attributes:
        ids: the tensor that counts them.
        kind: `joined`, `unique`, `shared` or `unknown` (propagation/gradient_pieces.py).
        of: for `unique` the tensor of distinct ids that says which rows are the same, where the row numbers do not;
            for `unknown` the op at which it cannot be told.
        merged: for `unique` the op that merged the ids; no other piece is of the same.
        dealt: where not all of the ids are meant, but those that went to one part of a table.
    """

    ids: str
    kind: str
    of: str = ""
    merged: str = ""
    dealt: Dealt | None = None


@dataclass(frozen=True, slots=True)
class AccumulateGradient:
    """A gradient leaves autodiff here: it is kept until as many batches are together as one update takes.

    The edges then see the mean over those batches: a dense gradient's sum, or the rows of all of them one after the
    other, each piece by itself, divided by their number. Where a `batch` is named, each counts by its examples. Where a
    front end's step is cut into micro-batches, the edges see their sum, each times a power of its share.

    Attributes:
        values: the gradient, or the values of its rows.
        value_edges: that take it outside of autodiff.
        indices: of its rows; empty where it is dense.
        index_edges: that take these.
        pieces: of its rows, in order.
        constant: for each piece whether its ids are the same in every batch, so that its rows are added up.
        batch: the placeholder whose first dimension is the per-worker batch, where batches have layouts.
        is_counted: whether a worker without examples has what counts for nothing already, if the gradient is dense.
        power: of a micro-batch's share; None where no step is cut.
        shape: of the variable, where one is.
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
class AlikeRows:
    """A constant of equal rows, as many as a batch has at `like`: where more are kept, the edge takes as many."""

    edge: Edge
    like: Edge


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Joined gradient rows some of which belong to the same ids on all workers.

    Those are summed over the workers; the last worker holds the sum and the others hold zeros.
    """

    tensor: str
    edges: tuple[Edge, ...]
    pieces: tuple[GradientPiece, ...]
