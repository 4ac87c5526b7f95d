"""How the workers hold the tensors of the program that one process runs on the global batch, and changes of layout.

A layout compares what a worker has with the one process's tensor: `Replicated`, `Sharded` along an axis, `Partial`
(a reduction over the workers gives the tensor), or `LengthValue` (computed of lengths of a batch alone: the per-worker
value serves as a shape, the global value as a scalar).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallax.graph.lengths import ONE, Length
from parallax.graph.view import Edge

UNEVEN = " (uneven)"
"""At the end of a symbol that is no factor of each worker's examples alike."""
DISTINCT = " (distinct)"
"""At the end of a symbol that stands, on each worker, for how many distinct ids it has."""


@dataclass(frozen=True, slots=True)
class ShardedAxis:
    """How an axis is shared by the workers: `blocks` one after the other, of each of which a worker has its piece.

    Attributes:
        batch: the placeholder whose first dimension is the per-worker batch; the pieces are in rank order.
        factor: entries of the axis for each example of the batch and block.
        blocks: how many batches lie one behind the other along the axis.
    """

    batch: str
    factor: Length = ONE
    blocks: int = 1

    @property
    def length(self) -> Length:
        """The length of the axis in the one process's program."""
        return Length.of(self.batch) * self.factor * Length.of(self.blocks)

    @property
    def is_even(self) -> bool:
        """Whether every example has as many entries; not so where entries are dealt out by what is in them."""
        return not any(symbol.endswith(UNEVEN) for product, _ in self.factor.terms for symbol in product)


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every worker has the tensor."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Every worker has its piece along an axis.

    Attributes:
        axis: which one, from 0.
        part: how the axis is shared.
    """

    axis: int
    part: ShardedAxis


@dataclass(frozen=True, slots=True)
class Partial:
    """Every worker has a tensor of the full shape; a reduction over the workers gives the one process's.

    A worker without examples computes on a stand-in, another worker's example, which must not be counted.

    Attributes:
        kind: `sum`, `min` or `max`; of booleans `min` is all and `max` any.
        is_counted: whether such a worker has what counts for nothing already.
    """

    kind: str = "sum"
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class LengthValue:
    """A per-worker value that is computed of lengths of batches, and otherwise of what all workers have alike."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces one behind the other along the first axis, each of a layout of its own, as rows of a sparse gradient."""


@dataclass(frozen=True, slots=True)
class Blank:
    """A list of tensors in which none is set: it is in whichever layout is asked for."""


@dataclass(frozen=True, slots=True)
class RowEnds:
    """Where the elements of each row begin, and the last ones end: of a worker's rows, among its own elements.

    Attributes:
        rows: the batch that has an entry for each row; there is one entry more.
        elements: the batch of all elements.
    """

    rows: str
    elements: str


@dataclass(frozen=True, slots=True)
class ExampleNumbers:
    """As sharded along the first axis; the first number along the last one is an example's, from the worker's first.

    Attributes:
        part: how the axis is shared of which they are numbers.
        of: the node that has counted them.
        times: the scalar by which the example's number is multiplied, where another number is added to the product: all
            numbers are then of entries, and a run checks that these are the worker's. Empty where there is none.
    """

    part: ShardedAxis
    of: str
    times: str = ""


@dataclass(frozen=True, slots=True)
class Distinct:
    """Rows along the first axis of which a worker has one for each distinct id of its piece of a vector.

    The one process has one for each distinct id of the whole vector: no reduction of the tensor gives that. Gradients
    of such rows are added up by id where they are exchanged.

    Attributes:
        of: the node that made the ids distinct.
        is_sum: whether rows are parts, of which those of equal ids are to be added up.
    """

    of: str
    is_sum: bool = False


@dataclass(frozen=True, slots=True)
class Positions:
    """As sharded along the first axis; the numbers are positions among the distinct ids that a worker has.

    Attributes:
        of: the node that made the ids distinct.
        part: how the axis is shared.
    """

    of: str
    part: ShardedAxis


@dataclass(frozen=True, slots=True)
class Concatenated:
    """Tensors one behind the other along the first axis, each in a layout of its own.

    A worker has its piece of those that are sharded, and all of the others; zeros are in no layout (`Blank`).

    Attributes:
        pieces: the length of each in the one process's program, and its layout.
    """

    pieces: tuple[tuple[Length, Layout], ...]

    @property
    def length(self) -> Length:
        """The length of the first axis in the one process's program."""
        total = Length()
        for length, _ in self.pieces:
            total = total + length
        return total


_OfOneTensor = Replicated | Sharded | Partial | LengthValue | Pieces | Blank
Layout = _OfOneTensor | RowEnds | ExampleNumbers | Distinct | Positions | Concatenated


@dataclass(frozen=True, slots=True)
class Change:
    """The `edges` take `tensor` in another layout than the one in which it is computed.

    Attributes:
        tensor: of the user's graph.
        before: how the workers hold it.
        after: how the edges take it.
        edges: inputs of nodes.
        is_whole: whether a fetch of the tensor gets the changed one, too.
        batch: of which a partial tensor is computed.
    """

    tensor: str
    before: Layout
    after: Layout
    edges: tuple[Edge, ...]
    is_whole: bool = False
    batch: str = ""


@dataclass(frozen=True, slots=True)
class ScaledMean:
    """`node` is a mean over a sharded axis: its value counts by the worker's share of the batch, and is a partial sum.

    Attributes:
        node: of the user's graph.
        batch: whose share.
        edges: take the partial sum.
        dealt: how the axis is shared, where examples have unequally many entries: these are counted then.
    """

    node: str
    batch: str
    edges: tuple[Edge, ...] = ()
    dealt: ShardedAxis | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """`node` counts the entries of a sharded axis from 0: a worker's numbers begin where its piece does.

    Attributes:
        node: a Range, or what else numbers entries.
        part: how the axis is shared.
        edges: take the worker's numbers.
        along: a tensor that has the axis as its first one, where `node` has it not.
        output: which of the node's results has the numbers.
        columns: how many numbers along the last axis are of the axis' entries, from the first one on.
        shape: a tensor with the shape of the sparse tensor whose places the numbers are, or empty.
    """

    node: str
    part: ShardedAxis
    edges: tuple[Edge, ...] = ()
    along: str = ""
    output: int = 0
    columns: int = 1
    shape: str = ""


@dataclass(frozen=True, slots=True)
class FedLength:
    """A number that each worker is fed, which is the length of its batch.

    Attributes:
        tensor: the placeholder.
        batch: the batch.
        edges: take the number.
    """

    tensor: str
    batch: str
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalShape:
    """`edge` takes a shape of which one axis alone is the worker's; other lengths are those of the global batch.

    Attributes:
        edge: takes the shape, which is made of lengths, or as all workers have it.
        axis: the worker's.
        batch: along whose examples the axis is sharded.
    """

    edge: Edge
    axis: int
    batch: str


@dataclass(frozen=True, slots=True)
class ReportedSum:
    """`tensor` is a partial sum that a step reports, and of which the mean over the workers is taken.

    Attributes:
        tensor: of the user's graph.
        batch: of which it is computed, where workers without examples must count for nothing; else empty.
    """

    tensor: str
    batch: str


@dataclass(frozen=True, slots=True)
class FilledRows:
    """`node` gives a row for each example up to the last that has entries: rows of zeros follow for the others.

    Attributes:
        node: of the user's graph.
        batch: of which the rows are the examples.
        edges: take the rows.
    """

    node: str
    batch: str
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutRewrites:
    """What must be changed so that every tensor of a step has its layout.

    Attributes:
        changes: changes of layout.
        means: means over sharded axes.
        ranges: numbers along sharded axes.
        filled: rows of bags, to be as many as a worker has examples.
        shapes: shapes of which one axis is the worker's.
        reported: partial sums that are reported as means over the workers.
        whole_results: what is reported and no worker's own: every worker has that of the global batch.
        sharded: tensor -> its layout, of those whose shapes are asked for.
        ends: tensor -> its layout, of those that have where rows end.
        concatenated: tensor -> its layout, of those whose pieces have layouts of their own.
        lengths: the tensors of layout LengthValue.
        told: tensor in a loop -> its value, or its elements, of those of `lengths` that the lengths of batches tell.
        of_worker_0: the tensors of which all workers take worker 0's, for each computes another.
        fed: the numbers that are fed for lengths of batches.
        refused: node that no update needs, and that takes something of the global batch -> why it cannot be run.
    """

    changes: tuple[Change, ...] = ()
    means: tuple[ScaledMean, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()
    filled: tuple[FilledRows, ...] = ()
    shapes: tuple[LocalShape, ...] = ()
    reported: tuple[ReportedSum, ...] = ()
    whole_results: tuple[str, ...] = ()
    sharded: Mapping[str, Sharded] = field(default_factory=dict, hash=False)
    ends: Mapping[str, RowEnds] = field(default_factory=dict, hash=False)
    concatenated: Mapping[str, Concatenated] = field(default_factory=dict, hash=False)
    lengths: tuple[str, ...] = ()
    told: Mapping[str, tuple[Length, ...] | Length] = field(default_factory=dict, hash=False)
    of_worker_0: tuple[str, ...] = ()
    fed: tuple[FedLength, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
