"""Layouts: how workers hold the tensors of the program that one process runs on the global batch; layout changes.

A layout relates a worker's tensor to that of one process: `Replicated`, `Sharded` along an axis, `Partial` (a reduction
over the workers returns the tensor), or `LengthValue` (computed from batch lengths alone: the per-worker value serves
as a shape, the global value as a scalar).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallax.graph.lengths import ONE, Length
from parallax.graph.view import Edge

UNEVEN = " (uneven)"
"""Suffix of a symbol that is not the same multiple of each worker's examples."""
DISTINCT = " (distinct)"
"""Suffix of a symbol for the number of distinct ids on each worker."""


@dataclass(frozen=True, slots=True)
class ShardedAxis:
    """The sharding of an axis: it has consecutive `blocks`, and a worker has its piece of each block.

    Attributes:
        batch: the placeholder whose first dimension is the per-worker batch; the pieces are in rank order.
        factor: entries of the axis for each example of a block.
        blocks: the number of batches that are concatenated along the axis.
    """

    batch: str
    factor: Length = ONE
    blocks: int = 1

    @property
    def length(self) -> Length:
        """The length of the axis in the program of one process."""
        return Length.of(self.batch) * self.factor * Length.of(self.blocks)

    @property
    def is_even(self) -> bool:
        """Whether every example has the same number of entries; false where entries are dealt out by their values."""
        return not any(symbol.endswith(UNEVEN) for product, _ in self.factor.terms for symbol in product)


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every worker has the tensor."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Every worker has its piece along an axis.

    Attributes:
        axis: which one, from 0.
        part: the sharding of the axis.
    """

    axis: int
    part: ShardedAxis


@dataclass(frozen=True, slots=True)
class Partial:
    """Every worker has a tensor of the full shape; a reduction over the workers returns the tensor of one process.

    A worker without examples computes on a stand-in, another worker's example, which must not be counted.

    Attributes:
        kind: `sum`, `min` or `max`; of booleans `min` is all and `max` any.
        is_counted: whether such a worker already has the neutral value of the reduction.
    """

    kind: str = "sum"
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class LengthValue:
    """A per-worker value that is computed from batch lengths and otherwise from replicated values."""


@dataclass(frozen=True, slots=True)
class PerExample:
    """In a loop over the entries of a sharded axis, a tensor of the iteration's entry; each worker visits its own ones.

    A list of such tensors, one for each iteration, is sharded along axis 0.

    Attributes:
        part: the sharding of the axis.
        role: `index` for the entry's index, counted per worker, alone or first in a vector; `count` for another number
            of iterations, which is no tensor of the entry; `row` for the entry's row of a tensor that is sharded along
            axis 0, all other rows being zero; `lengths` for a list of equal lengths of batches. A list of such tensors
            has their layout. Empty for all other tensors.
    """

    part: ShardedAxis
    role: str = ""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces concatenated along the first axis, each with its own layout, such as rows of a sparse gradient."""


@dataclass(frozen=True, slots=True)
class EmptyList:
    """A list of tensors without elements: it adapts to whichever layout is required."""


@dataclass(frozen=True, slots=True)
class RowEnds:
    """Row splits of a worker's rows among its own elements: the beginning of each row, and the end of the last one.

    Attributes:
        rows: the batch with one entry for each row; there is one additional entry.
        elements: the batch of all elements.
    """

    rows: str
    elements: str


@dataclass(frozen=True, slots=True)
class ExampleNumbers:
    """Sharded along the first axis; the first number along the last axis is an example's index, counted per worker.

    Attributes:
        part: the sharding of the axis that the numbers index.
        of: the node that numbered the examples.
        times: the scalars by which the example's index is multiplied, where another number is added to the product: the
            results are then indices of entries, and a run checks that they belong to the worker. Empty where there is
            none.
    """

    part: ShardedAxis
    of: str
    times: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Distinct:
    """Rows along the first axis, one on each worker for each distinct id of its piece of a vector.

    One process has one row for each distinct id of the whole vector; no reduction of the tensor yields that. Gradients
    of such rows are summed by id where they are exchanged.

    Attributes:
        of: the node that deduplicated the ids.
        is_sum: whether rows are partial sums, of which those of equal ids must be added.
    """

    of: str
    is_sum: bool = False


@dataclass(frozen=True, slots=True)
class Positions:
    """Sharded along the first axis; the numbers are positions among the distinct ids of a worker.

    Attributes:
        of: the node that deduplicated the ids.
        part: the sharding of the axis.
    """

    of: str
    part: ShardedAxis


@dataclass(frozen=True, slots=True)
class Concatenated:
    """Tensors concatenated along the first axis, each with its own layout.

    A worker has its piece of the sharded ones, and all of the others; zeros have no layout (`EmptyList`).

    Attributes:
        pieces: the length of each in the program of one process, and its layout.
    """

    pieces: tuple[tuple[Length, Layout], ...]

    @property
    def length(self) -> Length:
        """The length of the first axis in the program of one process."""
        total = Length()
        for length, _ in self.pieces:
            total = total + length
        return total


_OfOneTensor = Replicated | Sharded | Partial | LengthValue | PerExample | Pieces | EmptyList
Layout = _OfOneTensor | RowEnds | ExampleNumbers | Distinct | Positions | Concatenated


@dataclass(frozen=True, slots=True)
class Change:
    """The `edges` read `tensor` in another layout than the one in which it is computed.

    Attributes:
        tensor: of the user's graph.
        before: the layout in which it is computed.
        after: the layout in which the edges read it.
        edges: inputs of nodes.
        is_whole: whether a fetch of the tensor returns the changed one, too.
        batch: the batch from which a partial tensor is computed.
        ends: if positive, the edges read at most so many first entries of the sharded axis, which alone are gathered;
            if negative, last ones.
    """

    tensor: str
    before: Layout
    after: Layout
    edges: tuple[Edge, ...]
    is_whole: bool = False
    batch: str = ""
    ends: int = 0


@dataclass(frozen=True, slots=True)
class ScaledMean:
    """`node` is a mean over a sharded axis: it is weighted by the worker's share of the batch, and is a partial sum.

    Attributes:
        node: of the user's graph.
        batch: the batch whose share is the weight.
        edges: the inputs that read the partial sum.
        dealt: the sharding of the axis, where examples have unequally many entries: these are counted then.
    """

    node: str
    batch: str
    edges: tuple[Edge, ...] = ()
    dealt: ShardedAxis | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """`node` numbers the entries of a sharded axis from 0: a worker's numbers begin at the offset of its piece.

    Attributes:
        node: a Range, or another op that numbers entries.
        part: the sharding of the axis.
        edges: the inputs that read the worker's numbers.
        along: a tensor with the axis as its first one, where `node` has none.
        output: the index of the node's result that has the numbers.
        columns: the number of values along the last axis, from the first one on, that index the axis' entries.
        shape: a tensor with the shape of the sparse tensor whose indices the numbers are, or empty.
        times: the scalar by which the numbers of a Range are multiplied, where it is not 1; else empty.
    """

    node: str
    part: ShardedAxis
    edges: tuple[Edge, ...] = ()
    along: str = ""
    output: int = 0
    columns: int = 1
    shape: str = ""
    times: str = ""


@dataclass(frozen=True, slots=True)
class FedLength:
    """A scalar that is fed to each worker and equals the length of its batch.

    Attributes:
        tensor: the placeholder.
        batch: the batch.
        edges: the inputs that read it.
    """

    tensor: str
    batch: str
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalShape:
    """`edge` reads a shape of which some axes are per-worker; other lengths are those of the global batch.

    Attributes:
        edge: the input that reads the shape, which is made of lengths or replicated.
        axis: the first per-worker axis.
        batch: the batch along whose examples the axes are sharded.
        count: the number of adjacent per-worker axes.
    """

    edge: Edge
    axis: int
    batch: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class ReportedSum:
    """`tensor` is a partial sum that a step reports as the mean over the workers.

    Attributes:
        tensor: of the user's graph.
        batch: from which it is computed, where workers without examples must contribute nothing; else empty.
    """

    tensor: str
    batch: str


@dataclass(frozen=True, slots=True)
class FilledRows:
    """`node` returns a row for each example up to the last that has entries; rows of zeros are appended for the others.

    Attributes:
        node: of the user's graph.
        batch: the batch whose examples are the rows.
        edges: the inputs that read the rows.
    """

    node: str
    batch: str
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutRewrites:
    """The changes by which every tensor of a step gets its layout.

    Attributes:
        changes: changes of layout.
        means: means over sharded axes.
        ranges: numbers along sharded axes.
        filled: rows of bags, to be padded to the number of a worker's examples.
        shapes: shapes with one per-worker axis.
        reported: partial sums that are reported as means over the workers.
        global_results: reported values that are not per-worker: every worker has that of the global batch.
        sharded: tensor -> its layout, for tensors whose shapes are read.
        ends: tensor -> its layout, for row splits.
        concatenated: tensor -> its layout, for tensors whose pieces have their own layouts.
        lengths: the tensors of layout LengthValue.
        known_lengths: tensor in a loop -> its value, or its elements, for those of `lengths` that follow from batch
            lengths.
        from_worker_0: the tensors of which all workers use worker 0's value, as each computes another.
        fed: the scalars that are fed for batch lengths.
        squeezed: Squeeze of a sharded tensor -> the axes that it drops, whatever the per-worker batch length.
        refused: node that no update needs, and that reads a value of the global batch -> why it cannot be run.
        width_reads: ops whose results depend on the length of an axis of open length other than the batch's.
    """

    changes: tuple[Change, ...] = ()
    means: tuple[ScaledMean, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()
    filled: tuple[FilledRows, ...] = ()
    shapes: tuple[LocalShape, ...] = ()
    reported: tuple[ReportedSum, ...] = ()
    global_results: tuple[str, ...] = ()
    sharded: Mapping[str, Sharded] = field(default_factory=dict, hash=False)
    ends: Mapping[str, RowEnds] = field(default_factory=dict, hash=False)
    concatenated: Mapping[str, Concatenated] = field(default_factory=dict, hash=False)
    lengths: tuple[str, ...] = ()
    known_lengths: Mapping[str, tuple[Length, ...] | Length] = field(default_factory=dict, hash=False)
    from_worker_0: tuple[str, ...] = ()
    fed: tuple[FedLength, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    squeezed: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    width_reads: tuple[str, ...] = ()
