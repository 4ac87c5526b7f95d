"""The graph under change: new ops are built beside a copy of the user's graph, and edges are led to them.

Building happens in a scratch tf.Graph that holds the user's nodes, so that new ops see real tensors with shapes and
types; leading an edge elsewhere is bookkeeping until `finish`, which writes both into one GraphDef.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from parallax.errors import TransformError
from parallax.graph_view import Edge

SCOPE = "parallax"
"""All nodes that the transform adds are under this name."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Which of the workers a graph is made for.

    Attributes:
        rank: number of the worker, from 0.
        size: number of workers.
        seed: the job's seed, from which unseeded random ops get theirs.
        equal_randomness: whether all workers draw the same numbers (for verification only).
    """

    rank: int
    size: int
    seed: int
    equal_randomness: bool = False

    def local_rows(self, rows: int) -> int:
        """How many of `rows` rows this worker owns: rows rank, rank + size, rank + 2 size, ..."""
        return (rows - self.rank + self.size - 1) // self.size


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor that is fed with nothing when what it carries is not asked for.

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
    """A variable `[1 + tables + 1]` in which an exchange counts what it moves.

    Entries: times run, distinct rows asked for or sent of each table, rows that left for other workers.

    Attributes:
        tensor: reads it.
        kind: `pull`, `push` or `allgather`.
        variables: the tables' variables, in order.
        row_bytes: bytes of one row's values.
        id_bytes: bytes of one id on the wire.
        trains: whether the exchange is part of a training step.
    """

    tensor: str
    kind: str
    variables: tuple[str, ...]
    row_bytes: int
    id_bytes: int
    trains: bool


@dataclass
class Editor:
    """Mutable working state of one transform."""

    worker: Worker
    scratch: Any
    led_to: dict[Edge, Any] = field(default_factory=dict)
    attributes: dict[tuple[str, str], Any] = field(default_factory=dict)
    replaced: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    counter_initializers: list[str] = field(default_factory=list)

    def tensor(self, name: str) -> Any:
        """A tensor of the user's graph."""
        return self.scratch.get_tensor_by_name(name)

    def at(self, edge: Edge) -> Any:
        """What an edge takes now."""
        found = self.led_to.get(edge)
        return found if found is not None else self.scratch.get_operation_by_name(edge.node).inputs[edge.slot]

    def lead(self, edges: Iterable[Edge], tensor: Any) -> None:
        """From now on the edges take `tensor`."""
        for edge in edges:
            self.led_to[edge] = tensor

    def become_identity(self, node: str, tensor: Any) -> None:
        """A node of the user's graph becomes an identity of `tensor`, keeping its name and control inputs."""
        self.replaced[node] = tensor

    def become_constant(self, node: str, value: Any) -> None:
        """A node of the user's graph becomes a constant."""
        self.constants[node] = value

    def finish(self) -> Any:
        """The changed graph as a GraphDef, without recorded shapes."""
        graph_def = self.scratch.as_graph_def()
        nodes = {node.name: node for node in graph_def.node}
        for edge, tensor in self.led_to.items():
            _set_data_input(nodes[edge.node], edge.slot, tensor.name)
        for (name, attribute), value in self.attributes.items():
            nodes[name].attr[attribute].CopyFrom(value)
        for name, tensor in self.replaced.items():
            _make_identity(nodes[name], tensor)
        for name, value in self.constants.items():
            _make_constant(nodes[name], value)
        for function in graph_def.library.function:
            for node in function.node_def:
                node.attr.pop("_output_shapes", None)
            for argument in function.arg_attr.values():
                argument.attr.pop("_output_shapes", None)
        return graph_def


def open_editor(graph_def: Any, worker: Worker) -> Editor:
    """An editor on a GraphDef; the GraphDef itself is not changed.

    Raises:
        TransformError: when the user's graph already holds names under `parallax/`.
    """
    import tensorflow as tf

    taken = next((n.name for n in graph_def.node if n.name.split("/")[0].lower() == SCOPE), None)
    if taken is not None:
        raise TransformError(
            f"Names under {SCOPE!r} are for ops that Parallax adds, and the graph holds {taken!r}. Rename it."
        )
    scratch = tf.Graph()
    with scratch.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return Editor(worker, scratch)


def _set_data_input(node: Any, slot: int, tensor: str) -> None:
    data = [i for i, name in enumerate(node.input) if not name.startswith("^")]
    node.input[data[slot]] = tensor


def _make_identity(node: Any, tensor: Any) -> None:
    controls = [name for name in node.input if name.startswith("^")]
    colocation = node.attr["_class"] if "_class" in node.attr else None
    node.op = "Identity"
    del node.input[:]
    node.input.extend([tensor.name, *controls])
    kept = None
    if colocation is not None:
        kept = type(colocation)()
        kept.CopyFrom(colocation)
    node.attr.clear()
    node.attr["T"].type = tensor.dtype.as_datatype_enum
    if kept is not None:
        node.attr["_class"].CopyFrom(kept)


def _make_constant(node: Any, value: Any) -> None:
    import tensorflow as tf

    controls = [f"^{name.lstrip('^').split(':')[0]}" for name in node.input]
    node.op = "Const"
    del node.input[:]
    node.input.extend(dict.fromkeys(controls))
    node.attr.clear()
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
