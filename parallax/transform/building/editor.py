"""The graph editor: new ops are built next to the user's graph, and edges are redirected to them.

New ops are built in a scratch tf.Graph, where a placeholder of the same shape and type represents every tensor of the
user's graph that they read; redirecting an edge is bookkeeping. `finish` writes both into one GraphDef and replaces the
placeholders with the user's tensors.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

import tensorflow as tf

from parallax.base.errors import TransformError
from parallax.base.types import Array, AttrValue, Graph, GraphDef, Handle, NodeDef, Operation, Tensor
from parallax.graph.view import Edge, GraphView, node_of
from parallax.plans.gradient_rows import GradientPiece
from parallax.plans.rewrites import TrainingMode
from parallax.transform.building.batch_weights import BatchWeight
from parallax.transform.building.copies import Copies, NamedTensor
from parallax.transform.building.node_edits import (
    make_constant,
    make_identity,
    make_no_op,
    set_control_input,
    set_data_input,
    without_shapes,
)
from parallax.transform.building.reduce_and_broadcast import CollectiveReducer, NoReducer, QueueReducer, Reducer
from parallax.transform.building.wire import Wire

SCOPE = "parallax"
"""The name scope of all nodes that the transform adds."""
_INPUT, _REFERENCE, _WAIT = "parallax_input", "parallax_reference", "parallax_wait"


@dataclass(frozen=True, slots=True)
class Worker:
    """The worker for which a graph is made.

    Attributes:
        rank: number of the worker, from 0.
        size: number of workers.
        seed: the job's seed, from which unseeded random ops get theirs.
        equal_randomness: whether all workers draw the same numbers (for verification only).
        hosts: the number of each worker's host; empty for one host.
        merges_in_host: whether the workers of a host merge their requests.
        servers: the number of each server's host.
        keeps_positions: whether checkpoints include the positions of random streams and inputs.
        shares: the number of shards of datasets, whose elements are interleaved over the workers; None where each
            worker has its own shard.
        stage: its stage, if the model is cut; `rank` and `size` are then among the workers of that stage.
        island: its island, of `islands`; `rank` and `size` are then among the workers of the island.
    """

    rank: int
    size: int
    seed: int
    equal_randomness: bool = False
    hosts: tuple[int, ...] = ()
    merges_in_host: bool = False
    servers: tuple[int, ...] = ()
    keeps_positions: bool = False
    shares: int | None = None
    stage: int = 0
    island: int = 0
    islands: int = 1

    @property
    def among_all(self) -> Worker:
        """The worker by its rank among the workers of all islands, which have different data and random numbers."""
        return replace(self, rank=self.island * self.size + self.rank, size=self.islands * self.size, islands=1)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks of this host's workers, including this one."""
        if not self.hosts:
            return tuple(range(self.size))
        return tuple(rank for rank, host in enumerate(self.hosts) if host == self.hosts[self.rank])


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor that is fed an empty value when its consumers are not needed.

    Attributes:
        tensor: the tensor to feed.
        shape: the empty shape `[0]` or `[0, width]`.
        dtype: numpy name of the element type.
        needed_by: nodes of the user's graph; when a fetch needs none of them, the tensor is fed.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    needed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    """A variable `[1 + tables + 2]` that counts what an exchange moves.

    Entries: runs; distinct rows requested or sent of each table; distinct rows that this worker requested from owners;
    and the number of these that left: for another host where there are several, else for another process.

    Attributes:
        tensor: reads it.
        kind: `pull`, `push` or `allgather`.
        route: of the tables.
        remote_fraction: the fraction of rows whose owners are at the destinations of those that left.
        variables: the tables' variables, in order.
        row_bytes: bytes of one row's values.
        id_bytes: bytes of one id on the wire; 0 where the receiver stores the ids of the request.
        trains: whether the exchange is part of a training step.
    """

    tensor: str
    kind: str
    variables: tuple[str, ...]
    row_bytes: int
    id_bytes: int
    trains: bool
    route: str
    remote_fraction: float


@dataclass(frozen=True, slots=True)
class SlicedValue:
    """A value that is computed in full, though an owner stores only its rows.

    Attributes:
        variable: the user's name of the variable that it is assigned to.
        node: the node that computes it.
        op: its type.
        size_bytes: of the full value; 0 where its shape is open.
    """

    variable: str
    node: str
    op: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GradientAccumulation:
    """A gradient that is accumulated over the batches of an update. All fields are ops of the worker's graph.

    Attributes:
        source: the accumulated tensor of the user's graph.
        begin: stores the first batch's gradient, replacing the old value.
        add: adds another batch's gradient.
        take: reads the accumulator, for the last batch, with which the update runs.
        nothing: tensor that reads the accumulator -> its value where nothing is accumulated: a shape, and an element
            type.
    """

    source: str
    begin: tuple[str, ...]
    add: tuple[str, ...]
    take: tuple[str, ...]
    nothing: tuple[tuple[str, tuple[int, ...], str], ...] = ()


@dataclass
class Editor:
    """Mutable working state of one transform.

    Attributes:
        worker: the worker whose graph it is.
        view: the user's graph.
        scratch: the graph in which new ops are built.
        copies: the new ops that are copied.
        reducer: the reductions of per-worker parts.
        meetings: worker 0's messages to the others through servers.
        wire: the element types in which this worker sends.
        inputs: stand-ins for the user's tensors.
        references: stand-ins for the user's reference variables, for ops that write them; other ops read them as
            inputs.
        waits: stand-ins for the user's nodes.
        batch_weights: this worker's weight in the batches that may be uneven, by their placeholders.
        fed_lengths: scalar that is fed for a batch length, by tensor -> that of the global batch.
        micro_batch_weight: a micro-batch's fraction of its step's examples, float64; None where no step is split.
        accumulated: gradient as it leaves autodiff -> its mean over the batches of an update.
        accumulated_sizes: piece of accumulated rows -> the number of its accumulated rows.
        accumulated_keys: piece of accumulated rows that equal keys merge -> its accumulated keys.
        keepings: the accumulated gradients.
        redirected: the new inputs of edges.
        redirected_parts: the inputs of edges of nodes on servers, for each partition.
        arrivals: for such an edge, the ops by which this worker contributes to its value.
        partitions: variable op -> its partitions on servers, as handles or references.
        waits_for: (node, control input) -> its replacement.
        no_ops: node that becomes a NoOp -> its control inputs.
        attributes: (node, attribute) -> new value.
        replaced: node -> the tensor that it becomes an Identity of.
        constants: node -> the constant that it becomes.
        full_tensors: tensor of rows -> the tensor of all rows.
        cuts: tensors that may be fed empty values.
        counters: counters of the exchanges.
        counter_initializers: ops that reset the counters to zero.
        sliced_values: values that are computed in full and then sliced to rows.
        sharded_tensors: tensors of the user's graph of which each worker has only its rows.
    """

    worker: Worker
    view: GraphView
    scratch: Graph
    copies: Copies
    reducer: Reducer
    meetings: QueueReducer
    wire: Wire
    inputs: dict[str, Tensor] = field(default_factory=dict)
    references: dict[str, Handle] = field(default_factory=dict)
    waits: dict[str, Operation] = field(default_factory=dict)
    batch_weights: dict[str, BatchWeight] = field(default_factory=dict)
    fed_lengths: dict[str, Tensor] = field(default_factory=dict)
    micro_batch_weight: Tensor | None = None
    accumulated: dict[str, Tensor] = field(default_factory=dict)
    accumulated_sizes: dict[GradientPiece, Tensor] = field(default_factory=dict)
    accumulated_keys: dict[GradientPiece, Tensor] = field(default_factory=dict)
    keepings: list[GradientAccumulation] = field(default_factory=list)
    redirected: dict[Edge, NamedTensor | Tensor] = field(default_factory=dict)
    redirected_parts: dict[Edge, list[Tensor]] = field(default_factory=dict)
    arrivals: dict[Edge, list[Operation]] = field(default_factory=dict)
    partitions: dict[str, tuple[Handle, ...]] = field(default_factory=dict)
    waits_for: dict[tuple[str, str], Operation | None] = field(default_factory=dict)
    no_ops: dict[str, list[Operation]] = field(default_factory=dict)
    attributes: dict[tuple[str, str], AttrValue] = field(default_factory=dict)
    replaced: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    full_tensors: dict[str, str] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    counter_initializers: list[str] = field(default_factory=list)
    sliced_values: list[SlicedValue] = field(default_factory=list)
    sharded_tensors: list[str] = field(default_factory=list)

    def tensor(self, name: str) -> Tensor:
        """A tensor of the user's graph, for new ops to read."""
        return self.inputs[name] if name in self.inputs else self._stand_in(self.take_tensor(name))

    def take_tensor(self, name: str) -> NamedTensor:
        """A tensor of the user's graph, for copies to read."""
        return NamedTensor(name, tf.as_dtype(self.view.dtype(name)), tf.TensorShape(self.view.shape(name)))

    def _stand_in(self, tensor: NamedTensor | Tensor) -> Tensor:
        """A placeholder for a tensor that is known only by its name, as an input of new ops; else the tensor itself."""
        if not isinstance(tensor, NamedTensor):
            return tensor
        if tensor.name not in self.inputs:
            with self.scratch.as_default(), self.scratch.name_scope(None), tf.control_dependencies(None):
                self.inputs[tensor.name] = tf.compat.v1.placeholder(
                    tensor.dtype, tensor.shape, name=f"{_INPUT}/{len(self.inputs)}"
                )
        return self.inputs[tensor.name]

    def operation(self, name: str) -> Operation:
        """A node of the user's graph, for new ops to wait for."""
        if name not in self.waits:
            with self.scratch.as_default(), self.scratch.name_scope(None), tf.control_dependencies(None):
                self.waits[name] = tf.no_op(name=f"{_WAIT}/{len(self.waits)}")
        return self.waits[name]

    def reference(self, variable: str) -> Handle:
        """A reference variable of the user's graph, for new ops to write."""
        name = f"{variable}:0"
        if name not in self.references:
            with self.scratch.as_default(), self.scratch.name_scope(None), tf.control_dependencies(None):
                self.references[name] = tf.raw_ops.VariableV2(
                    shape=self.view.shape(name),
                    dtype=self.view.dtype(name),
                    name=f"{_REFERENCE}/{len(self.references)}",
                )
        return self.references[name]

    def leaving(self, name: str) -> Tensor:
        """A gradient as ops outside autodiff see it: over all batches of an update."""
        return self.accumulated[name] if name in self.accumulated else self.tensor(name)

    def rows_of(self, piece: GradientPiece) -> Tensor:
        """The number of gradient rows of a piece, over all batches of an update; int32."""
        return self.accumulated_sizes[piece] if piece in self.accumulated_sizes else self.run_rows_of(piece)

    def run_rows_of(self, piece: GradientPiece) -> Tensor:
        """The number of gradient rows of a piece in a run's batch; int32."""
        if piece.dealt is None:
            return tf.size(self.tensor(piece.ids))
        begin = tf.add_n([tf.constant(0), *(tf.size(self.tensor(ids)) for ids in piece.dealt.before)])
        numbers = tf.reshape(self.tensor(piece.dealt.numbers), [-1])
        numbers = numbers[begin : begin + tf.size(self.tensor(piece.ids))]
        return tf.math.count_nonzero(tf.equal(numbers, piece.dealt.part), dtype=tf.int32)

    def keys_of(self, piece: GradientPiece) -> Tensor:
        """The keys by which rows of a piece are summed, `[n]`, over all batches of an update."""
        return self.accumulated_keys[piece] if piece in self.accumulated_keys else self.run_keys_of(piece)

    def run_keys_of(self, piece: GradientPiece) -> Tensor:
        """The keys by which rows of a piece are summed, `[n]`, in a run's batch."""
        return tf.reshape(self.tensor(piece.of), [-1])

    def at(self, edge: Edge) -> Tensor:
        """The current input of an edge."""
        value = self.redirected.get(edge)
        return self._stand_in(value) if value is not None else self.tensor(self.view.inputs(edge.node)[edge.slot])

    def redirect(self, edges: Iterable[Edge], tensor: NamedTensor | Tensor) -> None:
        """Redirects edges to `tensor`."""
        for edge in edges:
            self.redirected[edge] = tensor

    def become_identity(self, node: str, tensor: Tensor, no_wait: Container[str] = ()) -> None:
        """Turns a node of the user's graph into an identity of `tensor`, with its name and control inputs."""
        self.replaced[node] = tensor
        self._wait_no_more(node, no_wait)

    def become_no_op(self, node: str, waits: list[Operation], no_wait: Container[str] = ()) -> None:
        """Turns a node of the user's graph into a no-op; it waits for new ops, and for its control inputs."""
        self.no_ops[node] = waits
        self._wait_no_more(node, no_wait)

    def _wait_no_more(self, node: str, no_wait: Container[str]) -> None:
        """Removes the control inputs `no_wait` of a node, whose replacement waits for them."""
        for control in self.view.controls(node):
            if control in no_wait:
                self.waits_for[node, control] = None

    def become_constant(self, node: str, value: Array) -> None:
        """Turns a node of the user's graph into a constant."""
        self.constants[node] = value

    def finish(self) -> GraphDef:
        """The changed graph as a GraphDef, without recorded shapes."""
        graph_def = without_shapes(self.view.graph_def)
        nodes = {node.name: node for node in graph_def.node}
        for edge, tensor in self.redirected.items():
            set_data_input(nodes[edge.node], edge.slot, tensor.name)
        for (name, attribute), value in self.attributes.items():
            nodes[name].attr[attribute].CopyFrom(value)
        for name, tensor in self.replaced.items():
            make_identity(nodes[name], tensor)
        for name, value in self.constants.items():
            make_constant(nodes[name], value)
        for name, waits in self.no_ops.items():
            make_no_op(nodes[name], waits)
        for (name, before), op in self.waits_for.items():
            set_control_input(nodes[name], before, op)
        made = self.copies.among(self.scratch.as_graph_def().node)
        graph_def.node.extend([n for n in made if not n.name.startswith((f"{_INPUT}/", f"{_REFERENCE}/", f"{_WAIT}/"))])
        changed = {edge.node for edge in self.redirected} | self.replaced.keys() | self.no_ops.keys()
        changed |= {name for name, _ in self.waits_for}
        self._put_in_inputs([*(nodes[name] for name in changed), *graph_def.node[len(nodes) :]])
        if self.partitions or self.worker.servers:  # where servers run, all plans of a job place nodes alike
            self._stay_here(graph_def)
        return graph_def

    def _stay_here(self, graph_def: GraphDef) -> None:
        """Places all nodes that are not on a server on this worker; TensorFlow would else choose among all tasks."""
        for node in graph_def.node:
            if "/job:" not in node.device:
                node.device = f"/job:worker/task:{self.worker.rank}{node.device}"

    def _put_in_inputs(self, changed: Iterable[NodeDef]) -> None:
        """Replaces placeholders with the user's tensors and nodes, in nodes that may have new inputs."""
        new = f"{SCOPE}/"  # TensorFlow writes the first output of built ops without a number
        pairs = [*self.inputs.items(), *self.references.items()]
        stands_for = {
            f"{tensor.op.name}": name.removesuffix(":0") if name.startswith(new) else name for name, tensor in pairs
        }
        stands_for.update({f"^{tensor.op.name}": f"^{node_of(name)}" for name, tensor in pairs})
        stands_for.update({f"^{op.name}": f"^{name}" for name, op in self.waits.items()})
        colocations = {f"loc:@{t.op.name}".encode(): f"loc:@{node_of(n)}".encode() for n, t in pairs}
        for node in changed:
            for i, name in enumerate(node.input):
                if name.removesuffix(":0") in stands_for:
                    node.input[i] = stands_for[name.removesuffix(":0")]
            if "_class" in node.attr:
                places = node.attr["_class"].list.s
                places[:] = [colocations.get(place, place) for place in places]


def open_editor(view: GraphView, worker: Worker, terms: TrainingMode) -> Editor:
    """An editor on a captured graph, which itself is not modified.

    Raises:
        TransformError: when the user's graph already contains names under `parallax/`.
    """
    existing = next((name for name in view.nodes if name.split("/")[0].lower() == SCOPE), None)
    if existing is not None:
        raise TransformError(
            f"Names under {SCOPE!r} are reserved for ops that Parallax adds, but the graph has {existing!r}. Rename it."
        )
    meetings = QueueReducer(worker.rank, worker.size, len(worker.servers))
    wire = Wire(SCOPE, terms.wire_dtype)
    reducer: Reducer = CollectiveReducer(wire)
    if not terms.synchronous or worker.size == 1:
        reducer = NoReducer()
    elif terms.sums == "servers":
        reducer = meetings
    scratch = tf.Graph()
    return Editor(worker, view, scratch, Copies(scratch), reducer, meetings, wire)
