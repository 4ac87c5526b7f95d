"""What shall be changed in a graph for a plan, by nodes and tensors of the user's graph; alike on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax.graph.ownership import Ownership
from parallax.graph.view import Edge
from parallax.plans.gradient_rows import AccumulateGradient, AlikeRows, GradientPiece, SharedRows
from parallax.plans.layouts import LayoutRewrites
from parallax.plans.micro_batches import MicroBatches
from parallax.plans.model_stages import StageCut
from parallax.plans.uneven_batches import PaddedRows, UnevenBatch


@dataclass(frozen=True, slots=True)
class TrainingMode:
    """On what terms the workers train together.

    Attributes:
        synchronous: every step takes all workers' gradients; else each worker updates what servers hold by itself.
        average_sparse: whether sparse gradients are the mean over the workers; else their sum.
        sums: who adds up what workers have parts of: `collectives` or `servers`.
        wire_dtype: the element type in which float32 rows and gradients travel; None for its own.
        accumulate_steps: of how many batches a worker keeps the gradients before they travel.
    """

    synchronous: bool = True
    average_sparse: bool = True
    sums: str = "collectives"
    wire_dtype: str | None = None
    accumulate_steps: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rows of a variable are, when equal shares of the workers do not say it; the fields are Table's."""

    servers: tuple[int, ...] = ()
    replicated: bool = False
    pattern: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with owners: each row is held by a worker, or by a partition on a server (parallax/graph/ownership.py).

    Attributes:
        op: the variable op whose rows are meant.
        rows: rows of the whole table.
        row_shape: shape of one row.
        dtype: TensorFlow's name of the element type.
        members: the variable ops of this shape that are spread alike: the table and its slot variables.
        variable: the user's name of the logical variable.
        servers: for each partition the server that holds it; empty where the workers do.
        replicated: whether every worker also has a copy of `op`, for a graph that reads it whole.
        is_scalar: whether the variable has no rows; it is then one partition of one row.
        pattern: where the workers hold it, the owner of each slot; empty where each has one, in order.
    """

    op: str
    rows: int
    row_shape: tuple[int, ...]
    dtype: str
    members: tuple[str, ...]
    variable: str
    servers: tuple[int, ...] = ()
    replicated: bool = False
    is_scalar: bool = False
    pattern: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole shape."""
        return () if self.is_scalar else (self.rows, *self.row_shape)

    def ownership(self, workers: int) -> Ownership:
        """Who of so many workers, or which partition on servers, holds which row."""
        if self.servers or not self.pattern:
            return Ownership.even(len(self.servers) or workers)
        return Ownership(self.pattern, workers)

    def local_shape(self, holder: int, workers: int) -> tuple[int, ...]:
        """The shape of what one of so many workers, or a partition on servers, holds."""
        if self.is_scalar:
            return ()
        return (self.ownership(workers).count(holder, self.rows), *self.row_shape)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """`tensor` is each worker's part of a sum: the `edges` shall see the sum of all.

    `kind` is `sum`, `mean` (of a gradient: sum divided by the number of workers), `min`, `max`, `rows_mean` (a mean
    over rows, weighted by those of `weight`, which was averaged), or `gradient` (a gradient's sum). `table` names the
    table on servers whose owners have the parts; else the workers have them. A worker without rows of a named `batch`
    is left out.
    """

    tensor: str
    edges: tuple[Edge, ...]
    kind: str
    weight: str = ""
    table: str = ""
    batch: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Scatter:
    """A dense gradient leaves autodiff here: the `edges` shall see that of all workers, by row at the table's owners.

    `kind` is `mean` or `gradient`, and `batch` counts, as in AllReduce.
    """

    tensor: str
    edges: tuple[Edge, ...]
    table: str
    kind: str = field(default="mean", repr=False)
    batch: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Owned:
    """A node that runs where a table's partitions are, once for each.

    Attributes:
        node: the node of the user's graph.
        table: the table op.
        writes: whether it writes the table or a slot.
        initial: whether initial values need it.
    """

    node: str
    table: str
    writes: bool
    initial: bool


@dataclass(frozen=True, slots=True)
class Scale:
    """Joined gradient rows leave autodiff here: multiplied by 1/W, so that they are the global batch's rows.

    By layouts they are the global batch's, and are multiplied by W where sums over the workers are asked for.
    """

    tensor: str
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """What is fed for shared state: all workers take worker 0's value of `tensor` at `edges`."""

    tensor: str
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A row gather that becomes a pull.

    Attributes:
        node: the gather.
        table: the table op.
        ids_slot: which input of the node carries the ids.
        combines: whether the node also adds rows up by segment (SparseSegmentSum and its like): it then stays, on the
            rows pulled.
        row_shape: of one row: the table's, or that of the slot that is looked up.
    """

    node: str
    table: str
    ids_slot: int = 1
    combines: bool = False
    row_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Push:
    """Joined gradient rows meet the update here: they go to the rows' owners.

    Attributes:
        table: the table op.
        values: edges that take the values; they will see the values that arrive at the owner.
        indices: edges that take the indices; they will see local row numbers.
        lookups: the gathers whose ids the indices are, one after the other.
        searched: for each lookup the tensor of its piece of the indices where these are its ids merged and sorted, else
            an empty name.
        merge: whether equal rows must be merged again at the owner because the update does not.
        batch: where one is named, workers that have none of its rows send no gradient rows.
    """

    table: str
    values: tuple[Edge, ...]
    indices: tuple[Edge, ...]
    lookups: tuple[str, ...]
    searched: tuple[str, ...]
    merge: bool
    batch: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Collect:
    """Sparse gradient of a variable that every worker holds: all workers shall see all touched rows.

    `route` is `allgather` (deduplicated rows gathered), `allreduce` (densified and summed; only the union of touched
    rows reaches the update) or `raw` (every row gathered unmerged, where the post-processing has no rule). `merge` says
    whether equal rows of several workers must be merged because the update does not; `pieces` are the lookups that the
    rows of route `raw` come from. Workers that have no rows of `batch`, where one is named, send nothing.
    """

    variable: str
    op: str
    rows: int
    route: str
    values: tuple[Edge, ...]
    indices: tuple[Edge, ...]
    merge: bool = False
    pieces: tuple[GradientPiece, ...] = ()
    batch: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SliceRows:
    """A whole value meets rows of `table`: the edges see the local rows of it."""

    tensor: str
    edges: tuple[Edge, ...]
    table: str


@dataclass(frozen=True, slots=True)
class GatherRows:
    """Local rows of `table` are read whole, in the user's order: by the `edges`, and by whoever fetches `tensor`."""

    tensor: str
    edges: tuple[Edge, ...]
    table: str


@dataclass(frozen=True, slots=True)
class WholeShape:
    """The shape of a table, or of one of its slots, is asked for: `node` becomes the constant whole shape."""

    node: str
    table: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountRows:
    """A number of rows of `table` is asked for, where its owners make rows: `edge` takes how many the owner holds."""

    edge: Edge
    table: str


@dataclass(frozen=True, slots=True)
class Rewrites:
    """All that shall be changed; pipeline.py has the order in which it is carried out.

    Attributes:
        tables: what has owners.
        held_by_row: tensors of the user's graph that hold local rows only and cannot be fetched.
        equal_random_ops: random ops that draw the same on all workers: of initial values, and noise on gradients.
        initial_random_ops: random ops that give initial values.
        local_variables: variable ops that each worker keeps for itself.
        batch_writes: nodes that write what a batch gives, with every batch of an update; others write with the update.
        scatters: dense gradients of tables.
        owned: nodes that run on servers, in topological order.
        terms: on what terms the workers train together.
        keeps: gradients that are kept, where updates take several batches.
        alike_rows: constants that meet kept rows.
        batches: those that workers may have of unequal length; one of a step.
        padded: ragged rows that are filled up.
        layouts: changes of layout, once, if tensors have layouts.
        micro_batches: how a front end's steps are cut, once, where updates take several micro-batches.
        notes: what a plan says of how losses are taken, a sentence each.
        stages: where the model is cut, once, if it is.
    """

    tables: tuple[Table, ...] = ()
    scales: tuple[Scale, ...] = ()
    shared_rows: tuple[SharedRows, ...] = ()
    all_reduces: tuple[AllReduce, ...] = ()
    broadcasts: tuple[Broadcast, ...] = ()
    slices: tuple[SliceRows, ...] = ()
    gathers: tuple[GatherRows, ...] = ()
    shapes: tuple[WholeShape, ...] = ()
    counts: tuple[CountRows, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    pushes: tuple[Push, ...] = ()
    collects: tuple[Collect, ...] = ()
    held_by_row: tuple[str, ...] = ()
    equal_random_ops: tuple[str, ...] = ()
    initial_random_ops: tuple[str, ...] = ()
    local_variables: tuple[str, ...] = ()
    batch_writes: tuple[str, ...] = ()
    scatters: tuple[Scatter, ...] = ()
    owned: tuple[Owned, ...] = ()
    terms: TrainingMode = TrainingMode()
    keeps: tuple[AccumulateGradient, ...] = ()
    alike_rows: tuple[AlikeRows, ...] = ()
    batches: tuple[UnevenBatch, ...] = ()
    padded: tuple[PaddedRows, ...] = ()
    layouts: tuple[LayoutRewrites, ...] = ()
    micro_batches: tuple[MicroBatches, ...] = ()
    notes: tuple[str, ...] = ()
    stages: tuple[StageCut, ...] = ()

    def table(self, op: str) -> Table:
        """The table of a variable op."""
        return next(table for table in self.tables if table.op == op)
