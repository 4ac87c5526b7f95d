"""What shall be changed where losses are sums over the batch or divided by such: a part of parallax/plans/rewrites.py.

Each worker's loss is made what the workers' mean is the one process's loss of, and so is what autodiff has of the loss.
Where workers may have batches of unequal length, that mean is weighted by each worker's share of all examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax.graph.view import Edge


@dataclass(frozen=True, slots=True)
class UnevenBatch:
    """A batch whose length may be another one on each worker.

    Attributes:
        name: by which rewrites name it.
        placeholder: whose first dimension is the length.
        length: the edge by which a tensor of the graph takes the length, and shall take that of all workers' batches;
            None where there is no such tensor.
        examples: how many examples it has on each worker, where it is of fixed length; else 0.
        alike: other sources of what is computed of the batch, whose lengths a run must find equal.
        examples_of: of elements, of which examples have unequally many, the name of the batch of these examples.
        has_end: whether the placeholder has an entry more than the batch, as where rows end.
    """

    name: str
    placeholder: str
    length: Edge | None = None
    alike: tuple[str, ...] = ()
    examples: int = 0
    examples_of: str = ""
    has_end: bool = False


@dataclass(frozen=True, slots=True)
class Divided:
    """`tensor` is the sum over all workers of what losses are divided by: the `edges` take a W-th of it.

    Where it `is_mean`, each worker's is a mean over its batch, and a W-th of their sum is that of the joined batch.
    Where a `batch` is named, the edges take this worker's share of its rows in place of a W-th.
    """

    tensor: str
    edges: tuple[Edge, ...]
    is_mean: bool = False
    batch: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Summed:
    """`node` is a sum over the batch that a loss is made of, which is not divided: its takers see it times W.

    The mean over the workers is then the sum of all. Where a `batch` is named, they see it divided by this worker's
    share of its rows. The edges `cotangents` take what autodiff has for the sum, and see that as many times as large.
    """

    node: str
    cotangents: tuple[Edge, ...]
    batch: str


@dataclass(frozen=True, slots=True)
class ReportedScalar:
    """`node` is a scalar that a step reports of its batch.

    Its takers see a `value` times W times this worker's share of the rows of the `batch`, so that the workers' mean is
    the whole one; what is `counted`, times the share, so that their sum is; and all workers' rows for a `length`.
    """

    node: str
    kind: str
    batch: str


@dataclass(frozen=True, slots=True)
class PartAdded:
    """What `edge` adds to a variable of which each worker has a part, and takes as this worker's part of what is added.

    A mean over a `batch` (`is_mean`) counts by this worker's share of its rows. Everything else of a batch is added as
    it is by workers that have rows of it. Where no batch is named, worker 0 alone adds it.
    """

    edge: Edge
    batch: str = ""
    is_mean: bool = False


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """`node` fills ragged rows up to the longest of a worker's, and shall do so up to the longest of all workers'."""

    node: str


@dataclass(frozen=True, slots=True)
class Selected:
    """`node` is a mean over elements that a mask has chosen: it counts for as many as each worker has.

    Attributes:
        node: gives the mean; who takes it sees it times W times this worker's share of all chosen elements.
        values: the chosen elements.
        rows: what a mask has chosen: rows of the batch, as many as there are elements, or a part of them.
        counted: edges of autodiff that divide by their number; they take a W-th of the number on all workers.
        is_whole: whether an all-reduce makes it that of all workers, so that who takes it sees it as it is.
        batch: where one is named, this worker's share of its rows is taken in place of a W-th.
    """

    node: str
    values: str
    rows: str
    counted: tuple[Edge, ...]
    is_whole: bool = False
    batch: str = field(default="", repr=False)
