"""The changes of a graph that a plan requires, by nodes and tensors of the user's graph; equal on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax.graph.ownership import Ownership
from parallax.graph.view import Edge
from parallax.plans.gradient_rows import AccumulateGradient, EqualRows, GradientPiece, SharedRows
from parallax.plans.layouts import LayoutRewrites
from parallax.plans.micro_batches import MicroBatches
from parallax.plans.model_stages import StageCut
from parallax.plans.uneven_batches import PaddedRows, UnevenBatch


@dataclass(frozen=True, slots=True)
class TrainingMode:
    """The mode in which the workers train.

    Attributes:
        synchronous: every step uses all workers' gradients; else each worker updates the variables on servers by
            itself.
        average_sparse: whether sparse gradients are the mean over the workers; else their sum.
        sums: the means of reductions over workers: `collectives` or `servers`.
        wire_dtype: the element type in which float32 rows and gradients travel; None for its own.
        accumulate_steps: the number of batches whose gradients a worker accumulates before they are sent.
    """

    synchronous: bool = True
    average_sparse: bool = True
    sums: str = "collectives"
    wire_dtype: str | None = None
    accumulate_steps: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a variable's rows, when it is not equal shares of the workers; the fields are Table's."""

    servers: tuple[int, ...] = ()
    replicated: bool = False
    pattern: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table with owners: each row is stored by a worker, or in a partition on a server (parallax/graph/ownership.py).

    Attributes:
        op: the table's variable op.
        rows: rows of the full table.
        row_shape: shape of one row.
        dtype: TensorFlow's name of the element type.
        members: the variable ops of this shape that are sharded alike: the table and its slot variables.
        variable: the user's name of the logical variable.
        servers: the server of each partition; empty where workers own the rows.
        replicated: whether every worker also has a copy of `op`, for a graph that reads it in full.
        is_scalar: whether the variable has no rows; it is then one partition of one row.
        pattern: where workers own the rows, the owner of each slot; empty where each has one, in order.
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
        """The full shape."""
        return () if self.is_scalar else (self.rows, *self.row_shape)

    def ownership(self, workers: int) -> Ownership:
        """The map from rows to owners, for a number of workers, or for the partitions on servers."""
        if self.servers or not self.pattern:
            return Ownership.even(len(self.servers) or workers)
        return Ownership(self.pattern, workers)

    def local_shape(self, holder: int, workers: int) -> tuple[int, ...]:
        """The shape of the rows of one worker, or of a partition on a server."""
        if self.is_scalar:
            return ()
        return (self.ownership(workers).count(holder, self.rows), *self.row_shape)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """`tensor` is each worker's part of a sum: the `edges` must see the reduced value.

    `kind` is `sum`, `mean` (of a gradient: sum divided by the number of workers), `min`, `max`, `rows_mean` (a mean
    over rows, weighted by those of `weight`, which was averaged), or `gradient` (a gradient's sum). `table` names the
    table on servers whose owners have the parts; else the workers have them. A worker without rows of a named `batch`
    is excluded.
    """

    tensor: str
    edges: tuple[Edge, ...]
    kind: str
    weight: str = ""
    table: str = ""
    batch: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Scatter:
    """A dense gradient leaves autodiff here: the `edges` must see the reduced gradient, by row at the table's owners.

    `kind` is `mean` or `gradient`, and `batch` counts, as in AllReduce.
    """

    tensor: str
    edges: tuple[Edge, ...]
    table: str
    kind: str = field(default="mean", repr=False)
    batch: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ServerNode:
    """A node that runs on the servers of a table's partitions, once for each.

    Attributes:
        node: the node of the user's graph.
        table: the table op.
        writes: whether it writes the table or a slot.
        initial: whether initial values depend on it.
    """

    node: str
    table: str
    writes: bool
    initial: bool


@dataclass(frozen=True, slots=True)
class Scale:
    """Gradient rows of the global batch leave autodiff here: multiplied by 1/W, so they equal those of one process.

    With layouts they are already equal, and are multiplied by W where sums over the workers are requested.
    """

    tensor: str
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A value that is fed for shared state: all workers use worker 0's value of `tensor` at `edges`."""

    tensor: str
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A row gather that becomes a pull.

    Attributes:
        node: the gather.
        table: the table op.
        ids_slot: the input number of the ids.
        combines: whether the node also sums rows by segment (SparseSegmentSum and similar): it then remains, on the
            pulled rows.
        row_shape: of one row: the table's, or that of the slot that is looked up.
    """

    node: str
    table: str
    ids_slot: int = 1
    combines: bool = False
    row_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Push:
    """Gradient rows of the global batch reach the update here: they are sent to the rows' owners.

    Attributes:
        table: the table op.
        values: edges that read the values; they will see the values that arrive at the owner.
        indices: edges that read the indices; they will see local row numbers.
        lookups: the gathers whose ids are the indices, in order.
        searched: for each lookup the tensor of its piece of the indices where these are its ids deduplicated and
            sorted, else an empty name.
        merge: whether equal rows must be summed again at the owner because the update does not do so.
        batch: where one is named, workers without rows of it send no gradient rows.
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
    """The sparse gradient of a replicated variable: all workers must see all touched rows.

    `route` is `allgather` (deduplicated rows gathered), `allreduce` (densified and summed; only the union of touched
    rows reaches the update) or `raw` (every row gathered uncoalesced, where the post-processing has no rule). `merge`
    says whether equal rows of several workers must be summed because the update does not do so; `pieces` are the
    lookups that the rows of route `raw` come from. Workers without rows of `batch`, where one is named, send nothing.
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
    """A full value is combined with rows of `table`: the edges see its local rows."""

    tensor: str
    edges: tuple[Edge, ...]
    table: str


@dataclass(frozen=True, slots=True)
class GatherRows:
    """Local rows of `table` are read in full, in the user's order: by the `edges`, and by fetches of `tensor`."""

    tensor: str
    edges: tuple[Edge, ...]
    table: str


@dataclass(frozen=True, slots=True)
class WholeShape:
    """The shape of a table, or of one of its slots, is read: `node` becomes the constant full shape."""

    node: str
    table: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountRows:
    """A number of rows of `table` is read, where owners create rows: `edge` reads the number of the owner's rows."""

    edge: Edge
    table: str


@dataclass(frozen=True, slots=True)
class Rewrites:
    """All rewrites of a graph; pipeline.py has the order in which they are applied.

    Attributes:
        tables: the variables with owners.
        sharded_tensors: tensors of the user's graph that contain local rows only and cannot be fetched.
        equal_random_ops: random ops that draw equal values on all workers: of initial values, and noise on gradients.
        initial_random_ops: random ops of initial values.
        local_variables: per-worker variable ops.
        batch_writes: nodes that write values of a batch, with every batch of an update; others write with the update.
        scatters: dense gradients of tables.
        owned: nodes that run on servers, in topological order.
        terms: the mode of training.
        accumulated_gradients: accumulated gradients, where updates use several batches.
        alike_rows: constants that are combined with accumulated rows.
        batches: batches of possibly unequal length; one of a step.
        padded: ragged rows that are padded.
        layouts: changes of layout, once, if tensors have layouts.
        micro_batches: how a front end's steps are split, once, where updates have several micro-batches.
        notes: the plan's notes on the interpretation of losses, a sentence each.
        stages: the cut of the model into stages, once, if there is one.
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
    sharded_tensors: tuple[str, ...] = ()
    equal_random_ops: tuple[str, ...] = ()
    initial_random_ops: tuple[str, ...] = ()
    local_variables: tuple[str, ...] = ()
    batch_writes: tuple[str, ...] = ()
    scatters: tuple[Scatter, ...] = ()
    owned: tuple[ServerNode, ...] = ()
    terms: TrainingMode = TrainingMode()
    accumulated_gradients: tuple[AccumulateGradient, ...] = ()
    alike_rows: tuple[EqualRows, ...] = ()
    batches: tuple[UnevenBatch, ...] = ()
    padded: tuple[PaddedRows, ...] = ()
    layouts: tuple[LayoutRewrites, ...] = ()
    micro_batches: tuple[MicroBatches, ...] = ()
    notes: tuple[str, ...] = ()
    stages: tuple[StageCut, ...] = ()

    def table(self, op: str) -> Table:
        """The table of a variable op."""
        return next(table for table in self.tables if table.op == op)
