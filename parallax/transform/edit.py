"""The graph under change: new ops are built beside the user's graph, and edges are led to them.

New ops are built in a scratch tf.Graph, where a placeholder of the same shape and type stands for every tensor of the
user's graph that they take; leading an edge elsewhere is bookkeeping. `finish` writes both into one GraphDef and puts
the user's tensors in place of the placeholders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from parallax.errors import TransformError
from parallax.graph_view import Edge, GraphView

SCOPE = "parallax"
"""All nodes that the transform adds are under this name."""
_INPUT, _WAIT, _SHAPES = "parallax_input", "parallax_wait", "_output_shapes"


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
    view: GraphView
    scratch: Any
    inputs: dict[str, Any] = field(default_factory=dict)
    waits: dict[str, Any] = field(default_factory=dict)
    led_to: dict[Edge, Any] = field(default_factory=dict)
    attributes: dict[tuple[str, str], Any] = field(default_factory=dict)
    replaced: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    counter_initializers: list[str] = field(default_factory=list)

    def tensor(self, name: str) -> Any:
        """A tensor of the user's graph, for new ops to take."""
        import tensorflow as tf

        if name not in self.inputs:
            with self.scratch.as_default(), self.scratch.name_scope(None), tf.control_dependencies(None):
                self.inputs[name] = tf.compat.v1.placeholder(
                    self.view.dtype(name), self.view.shape(name), name=f"{_INPUT}/{len(self.inputs)}"
                )
        return self.inputs[name]

    def operation(self, name: str) -> Any:
        """A node of the user's graph, for new ops to wait for."""
        import tensorflow as tf

        if name not in self.waits:
            with self.scratch.as_default(), self.scratch.name_scope(None), tf.control_dependencies(None):
                self.waits[name] = tf.no_op(name=f"{_WAIT}/{len(self.waits)}")
        return self.waits[name]

    def at(self, edge: Edge) -> Any:
        """What an edge takes now."""
        found = self.led_to.get(edge)
        return found if found is not None else self.tensor(self.view.inputs(edge.node)[edge.slot])

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
        graph_def = _without_shapes(self.view.graph_def)
        nodes = {node.name: node for node in graph_def.node}
        for edge, tensor in self.led_to.items():
            _set_data_input(nodes[edge.node], edge.slot, tensor.name)
        for (name, attribute), value in self.attributes.items():
            nodes[name].attr[attribute].CopyFrom(value)
        for name, tensor in self.replaced.items():
            _make_identity(nodes[name], tensor)
        for name, value in self.constants.items():
            _make_constant(nodes[name], value)
        made = [n for n in self.scratch.as_graph_def().node if n.name.split("/")[0] not in (_INPUT, _WAIT)]
        graph_def.node.extend(made)
        self._put_in_inputs(graph_def)
        return graph_def

    def _put_in_inputs(self, graph_def: Any) -> None:
        """Puts the user's tensors and nodes where placeholders stood for them."""
        stands_for = {f"{tensor.op.name}": name for name, tensor in self.inputs.items()}
        stands_for.update({f"^{op.name}": f"^{name}" for name, op in self.waits.items()})
        for node in graph_def.node:
            for i, name in enumerate(node.input):
                if name.removesuffix(":0") in stands_for:
                    node.input[i] = stands_for[name.removesuffix(":0")]


def open_editor(view: GraphView, worker: Worker) -> Editor:
    """An editor on a captured graph, which itself is not changed.

    Raises:
        TransformError: when the user's graph already holds names under `parallax/`.
    """
    import tensorflow as tf

    taken = next((name for name in view.nodes if name.split("/")[0].lower() == SCOPE), None)
    if taken is not None:
        raise TransformError(
            f"Names under {SCOPE!r} are for ops that Parallax adds, and the graph holds {taken!r}. Rename it."
        )
    return Editor(worker, view, tf.Graph())


def _without_shapes(graph_def: Any) -> Any:
    """A copy without the recorded shapes, which the changes make untrue; TensorFlow infers them anew."""
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    for node in copy.node:
        node.attr.pop(_SHAPES, None)
    for function in copy.library.function:
        for node in function.node_def:
            node.attr.pop(_SHAPES, None)
        for argument in function.arg_attr.values():
            argument.attr.pop(_SHAPES, None)
    return copy


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
