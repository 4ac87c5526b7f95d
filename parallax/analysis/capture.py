"""Takes a tf.Graph as it stands: its nodes with shapes, its variables, and the gradients that autodiff delivered.

The capture holds names, numbers and protos only; the user's graph is neither changed nor kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parallax.analysis import record
from parallax.analysis.digests import fingerprint
from parallax.analysis.inline import inline_calls
from parallax.analysis.launcher_graph import meant
from parallax.graph_view import GraphView, split_tensor
from parallax.spec import Part

_SHAPES = "_output_shapes"


@dataclass(frozen=True, slots=True)
class CapturedVariable:
    """A TensorFlow variable as found in the graph.

    Attributes:
        logical_name: the user's name; the parts of a partitioned variable share it.
        whole_shape: shape of the logical variable.
        part: this variable's op, shape and first row.
        dtype: TensorFlow's name of the element type.
        dtype_bytes: bytes an element.
        trainable: whether it is in the collection of trainable variables.
        initializer: the op that assigns the initial value, if known.
    """

    logical_name: str
    whole_shape: tuple[int, ...]
    part: Part
    dtype: str
    dtype_bytes: int
    trainable: bool
    initializer: str


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph as captured.

    Attributes:
        view: index over the nodes, calls inlined, shapes inferred.
        fingerprint: SHA-256 over the structure of nodes and functions as the user built them.
        variables: by op name.
        records: what autodiff delivered, with the names of the ops it made.
    """

    view: GraphView
    fingerprint: str
    variables: dict[str, CapturedVariable]
    records: tuple[tuple[record.GradientRecord, frozenset[str]], ...]


def capture(graph: Any) -> Captured:
    """Captures a TF1-style graph, whether built or imported, before or after Parallax was imported.

    Args:
        graph: a tf.Graph.
    """
    graph_def = meant(graph)
    names = [op.name for op in graph.get_operations()]
    records = tuple((r, frozenset(names[r.first_op : r.end_op])) for r in record.records_of(graph))
    digest = fingerprint(graph_def)
    inlined = inline_calls(graph_def)
    view = GraphView(graph_def if inlined is graph_def else _with_shapes(inlined))
    return Captured(view, digest, _variables(graph, view), records)


def _with_shapes(graph_def: Any) -> Any:
    """Has TensorFlow infer the shapes anew."""
    import tensorflow as tf

    for node in graph_def.node:
        if _SHAPES in node.attr:
            del node.attr[_SHAPES]
    scratch = tf.Graph()
    with scratch.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return scratch.as_graph_def(add_shapes=True)


def _variables(graph: Any, view: GraphView) -> dict[str, CapturedVariable]:
    import tensorflow as tf

    keys = tf.compat.v1.GraphKeys
    trainable = {_op_name(v) for v in graph.get_collection(keys.TRAINABLE_VARIABLES)}
    declared = {}
    for key in (keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES, keys.TRAINABLE_VARIABLES):
        declared.update({_op_name(v): v for v in graph.get_collection(key)})
    found = {}
    for name, node in view.nodes.items():
        if node.op not in ("VarHandleOp", "VariableV2", "Variable"):
            continue
        shape = node.attr["shape"].shape
        if shape.unknown_rank or any(dim.size < 0 for dim in shape.dim):
            continue
        dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
        own_shape = tuple(int(dim.size) for dim in shape.dim)
        logical, whole, offset = _slice_of(declared.get(name), name, own_shape)
        found[name] = CapturedVariable(
            logical_name=logical,
            whole_shape=whole,
            part=Part(name, own_shape, offset),
            dtype=str(dtype.name),
            dtype_bytes=int(dtype.size),
            trainable=name in trainable,
            initializer=_initializer(declared.get(name), name, view),
        )
    return found


def _op_name(variable: Any) -> str:
    handle = getattr(variable, "handle", None)
    return str(handle.op.name if handle is not None else variable.op.name)


def _slice_of(variable: Any, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], int]:
    """(logical name, whole shape, first row); a part of a partitioned variable knows what it is a part of.

    Parts cut along another dimension than the rows stay variables of their own.
    """
    info = getattr(variable, "_save_slice_info", None)
    if info is None or any(info.var_offset[1:]) or list(info.full_shape[1:]) != list(shape[1:]):
        return name, shape, 0
    return str(info.full_name), tuple(int(d) for d in info.full_shape), int(info.var_offset[0])


def _initializer(variable: Any, name: str, view: GraphView) -> str:
    initializer = getattr(variable, "initializer", None)
    if initializer is not None:
        return str(initializer.name)
    for edge in view.consumers(f"{name}:0"):
        if edge.node == f"{name}/Assign":
            return edge.node
    return ""


def initialization_phases(captured: Captured) -> list[list[str]]:
    """The ops that give initial values, in phases to be run one after the other.

    Some initial values are read from other variables (a moving average starts at its variable's value). TensorFlow runs
    all initializers at once and lets such reads race; in phases, what is read is there.
    """
    reads = {}
    for name, variable in captured.variables.items():
        if variable.initializer:
            needed = captured.view.ancestors([variable.initializer]) & captured.variables.keys()
            reads[name] = needed - {name}
    phases: list[list[str]] = []
    done: set[str] = set()
    while reads:
        ready = sorted(n for n, needed in reads.items() if not (needed - done) & reads.keys()) or sorted(reads)
        phases.append([captured.variables[n].initializer for n in ready])
        done.update(ready)
        reads = {n: needed for n, needed in reads.items() if n not in done}
    return phases


def variable_of_tensor(view: GraphView, variables: dict[str, CapturedVariable], tensor: str) -> str:
    """The variable op that a handle, reference or read stands for; empty when it is none."""
    node = split_tensor(tensor)[0]
    while node not in variables and view.op(node) in ("Identity", "ReadVariableOp") and view.inputs(node):
        node = split_tensor(view.inputs(node)[0])[0]
    return node if node in variables else ""
