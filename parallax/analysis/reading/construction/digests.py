"""Digests of what two graphs must have in common: names and structure. Values may differ.

Structure is each node's name, op, inputs, control inputs, device, static shapes and attributes, and the bodies of the
functions that it calls. Values are those of constants, and the seeds of random ops. Names of functions and of their
captures contain counters of the process, and names with a UUID differ in every process: these are neither.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import AttrValue, FunctionDef, GraphDef, NameAttrList, NodeDef
from parallax.graph.batches import FULL
from parallax.graph.cut.layers import LAYERS
from parallax.graph.ops import takes_functions
from parallax.graph.view import EXAMPLES

SEEDS = ("seed", "seed2")
_OWN_NAMES = ("_gradient_op_type", FULL, EXAMPLES, LAYERS)
"""Attributes that are not structure: keys of a process's own Python objects, expectations, and the script's layers."""
_LEFT_OUT = frozenset([*SEEDS, *_OWN_NAMES, "shared_name"])
"""Attributes that a skeleton contains in part or not at all."""
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
"""Characters that are replaced by `_` in the name of an argument."""
SHAPES = "_output_shapes"
_PLAIN_NAMES = (SHAPES, "_class")
"""Attributes that are in no op definition, and refer to no function."""
_TEXT = 80  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class GraphDifference:
    """The first op, in graph order, in which two graphs differ.

    Attributes:
        op: its name in the second graph; where only the first graph has it, the last preceding common op, or empty.
        text: the end of a sentence after `worker 1`: the op in the second graph and in the launcher's.
    """

    op: str
    text: str


def fingerprint(graph_def: GraphDef) -> str:
    """SHA-256 over the structure of a graph, independent of the order of nodes."""
    lines = "\n".join(f"{name} {digest}" for name, digest in sorted(node_digests(graph_def).items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def node_digests(graph_def: GraphDef) -> dict[str, str]:
    """A short digest of every node's structure, by name."""
    bodies = _Bodies(graph_def)
    return {node.name: _digest(node if _is_bare(node, bodies) else _skeleton(node, bodies)) for node in graph_def.node}


def first_difference(launcher: GraphDef, local: GraphDef) -> GraphDifference | None:
    """The structural difference of a graph from the launcher's; None if there is none.

    Args:
        launcher: GraphDef, with shapes.
        local: another one.
    """
    launcher_digests, local_digests = node_digests(launcher), node_digests(local)
    if launcher_digests == local_digests:
        return None
    nodes = {node.name: node for node in local.node}
    launcher_names, local_names = [node.name for node in launcher.node], [node.name for node in local.node]
    at = next(
        (i for i, name in enumerate(launcher_names) if local_digests.get(name) != launcher_digests[name]),
        len(launcher_names),
    )
    more = next((i for i, name in enumerate(local_names) if name not in launcher_digests), len(local_names))
    if more < at or at == len(launcher_names):
        name = local_names[more]
        return GraphDifference(name, f"built op {name!r} ({nodes[name].op}), which the launcher's graph does not have")
    node = launcher.node[at]
    if node.name in nodes:
        how = _describe_difference(node, nodes[node.name], _Bodies(launcher), _Bodies(local))
        return GraphDifference(node.name, f"built op {node.name!r} differently from the launcher: {how}")
    missing = f"has no op {node.name!r} ({node.op}), which the launcher's graph has"
    if more < len(local_names):
        name = local_names[more]
        return GraphDifference(name, f"{missing}, and built {name!r} ({nodes[name].op}) instead")
    before = next((name for name in reversed(launcher_names[:at]) if name in nodes), "")
    return GraphDifference(before, f"{missing} after {before!r}" if before else missing)


def function_names(launcher: GraphDef, local: GraphDef) -> dict[str, str]:
    """Name of a function in a graph -> its name in the launcher's graph, which has the same structure."""
    return {other: one for one, other in _Pairs(launcher, local).functions}


def are_alike(first: GraphDef, second: GraphDef) -> bool:
    """Whether two graphs have equal structure, values and expected batch lengths."""
    if fingerprint(first) != fingerprint(second):
        return False
    return not any(
        values_differ(one, other) or any(_attribute(one, name) != _attribute(other, name) for name in (FULL, EXAMPLES))
        for one, other in _Pairs(first, second).nodes
    )


class _Pairs:
    """The correspondence of two graphs of equal structure.

    Attributes:
        nodes: of the graphs, and of the bodies of functions.
        functions: their names.
    """

    def __init__(self, first: GraphDef, second: GraphDef) -> None:
        theirs, mine = _Bodies(first).functions, _Bodies(second).functions
        by_name = {node.name: node for node in second.node}
        self.nodes = [(node, by_name[node.name]) for node in first.node]
        self.functions: list[tuple[str, str]] = []
        known: set[str] = set()
        for one, other in self.nodes:  # which grows during the iteration
            called = [(one.op, other.op)] if other.op in mine else []
            for name in one.attr:
                pairs = zip(_find_called(one.attr[name]), _find_called(other.attr[name]), strict=True)
                called += [(function.name, same.name) for function, same in pairs]
            for function, same in called:
                if same in mine and same not in known:
                    known.add(same)
                    self.functions.append((function, same))
                    bodies = {node.name: node for node in mine[same].node_def}
                    self.nodes += [(node, bodies[node.name]) for node in theirs[function].node_def]


def has_value(node: NodeDef) -> bool:
    """Whether a node is a constant; its value is not part of the structure."""
    return bool(node.op == "Const")


def value_digest(node: NodeDef) -> str:
    """SHA-256 of a constant's value."""
    return hashlib.sha256(node.attr["value"].tensor.SerializeToString(deterministic=True)).hexdigest()


def values_differ(first: NodeDef, second: NodeDef) -> bool:
    """Whether two nodes of equal structure have different values: a constant's, or the seeds of a random op."""
    if has_value(first):
        return bool(first.attr["value"].tensor != second.attr["value"].tensor)
    return any(first.attr[name].i != second.attr[name].i for name in SEEDS if name in first.attr)


class _Bodies:
    """Digests of the functions of a graph, by their bodies."""

    def __init__(self, graph_def: GraphDef) -> None:
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self._digests: dict[str, str] = {}

    def digest(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = "itself"  # for a recursive function
            function = self.functions[name]
            place = {arg.name: f"argument {number}" for number, arg in enumerate(function.signature.input_arg)}
            lines = [*_arguments(function), *_results(function, place)]
            lines += [_digest(_with_arguments(_skeleton(node, self), place)) for node in function.node_def]
            self._digests[name] = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
        return self._digests[name]


def _arguments(function: FunctionDef) -> list[str]:
    """Types of arguments, whose names may contain counters of the process, and results."""
    types = [str(arg.type) for arg in function.signature.input_arg]
    return [*types, *(f"{arg.name} {arg.type}" for arg in function.signature.output_arg)]


def _results(function: FunctionDef, place: Mapping[str, str]) -> list[str]:
    pairs = [pair for results in (function.ret, function.control_ret) for pair in results.items()]
    return sorted(f"{name} {place.get(tensor, tensor)}" for name, tensor in pairs)


def _with_arguments(node: NodeDef, place: Mapping[str, str]) -> NodeDef:
    """A node of a function's body, with arguments replaced by their index, also in its colocation."""
    node.input[:] = [place.get(tensor, tensor) for tensor in node.input]
    if "_class" in node.attr:
        near = node.attr["_class"].list.s
        near[:] = [place.get(_NO_NAME.sub("_", one.decode().removeprefix("loc:@")), "").encode() or one for one in near]
    return node


def _skeleton(node: NodeDef, bodies: _Bodies) -> NodeDef:
    """A copy of a node without its values, with digests in place of function names."""
    copy = type(node)(name=node.name, device=node.device, input=_sort_controls(node.input))
    copy.op = bodies.digest(node.op) if node.op in bodies.functions else node.op
    for name, value in node.attr.items():
        if name in _OWN_NAMES or (name in SEEDS and value.HasField("i")):
            continue
        copied = copy.attr[name]
        if name == "value" and has_value(node):
            copied.tensor.dtype = value.tensor.dtype
            copied.tensor.tensor_shape.CopyFrom(value.tensor.tensor_shape)
            continue
        copied.CopyFrom(value)
        for function in _find_called(copied) if name not in _PLAIN_NAMES else ():
            if function.name in bodies.functions:
                function.name = bodies.digest(function.name)
    if "shared_name" in copy.attr:
        copy.attr["shared_name"].s = _UUID.sub(b"", copy.attr["shared_name"].s)
    return copy


def _is_bare(node: NodeDef, bodies: _Bodies) -> bool:
    """Whether a node is its own skeleton, as most are: it has only names, structure and plain attributes."""
    if takes_functions(node.op) or node.op in bodies.functions or has_value(node):
        return False
    if node.HasField("experimental_debug_info") or node.HasField("experimental_type"):
        return False
    names = [*node.attr]
    if not _LEFT_OUT.isdisjoint(names):
        return False
    if any([name[0] == "_" and name not in _PLAIN_NAMES for name in names]):
        return False
    inputs = node.input[:]
    return len(inputs) < 2 or inputs[-2][0] != "^" or inputs == _sort_controls(inputs)


def _find_called(value: AttrValue) -> Iterable[NameAttrList]:
    """The functions that an attribute refers to."""
    if value.HasField("func"):
        return [value.func]
    return value.list.func if value.HasField("list") else []


def _sort_controls(inputs: Iterable[str]) -> list[str]:
    """Data inputs in order, then control inputs by name, as these have no order."""
    names = list(inputs)
    return [n for n in names if not n.startswith("^")] + sorted(n for n in names if n.startswith("^"))


def _digest(node: NodeDef) -> str:
    return hashlib.sha256(node.SerializeToString(deterministic=True)).hexdigest()[:16]


def _describe_difference(launcher: NodeDef, local: NodeDef, their_bodies: _Bodies, own_bodies: _Bodies) -> str:
    """The difference of two nodes of one name."""
    expected, received = _skeleton(launcher, their_bodies), _skeleton(local, own_bodies)
    if expected.op != received.op:
        return f"its type is {local.op}, and the launcher's {launcher.op}"
    if expected.input != received.input:
        return f"its inputs are {_cut(', '.join(received.input))}, and the launcher's {_cut(', '.join(expected.input))}"
    if expected.device != received.device:
        return f"its device is {local.device!r}, and the launcher's {launcher.device!r}"
    # The cause of a difference precedes the shapes that follow from it.
    names = sorted(expected.attr.keys() | received.attr.keys(), key=lambda name: (name == SHAPES, name))
    name = next((n for n in names if _attribute(expected, n) != _attribute(received, n)), "")
    inside = _inside(launcher.attr[name], local.attr[name], their_bodies, own_bodies) if name else ""
    what = {SHAPES: "the static shape of its output", "value": "its type and shape"}.get(name, f"its attribute {name}")
    values = [_format_value(_attribute(node, name)) for node in (received, expected)]
    return inside or f"{what} is {values[0]}, and the launcher's {values[1]}"


def _inside(launcher: AttrValue, local: AttrValue, their_bodies: _Bodies, own_bodies: _Bodies) -> str:
    """The first difference in the bodies of the functions of two attributes; empty when there are none."""
    for theirs, mine in zip(_find_called(launcher), _find_called(local), strict=False):
        first, second = their_bodies.functions.get(theirs.name), own_bodies.functions.get(mine.name)
        if first is None or second is None or their_bodies.digest(theirs.name) == own_bodies.digest(mine.name):
            continue
        nodes = {node.name: node for node in second.node_def}
        for node in first.node_def:
            if node.name not in nodes:
                return f"in its function {mine.name} there is no op {node.name!r} ({node.op})"
            if _skeleton(node, their_bodies) != _skeleton(nodes[node.name], own_bodies):
                how = _describe_difference(node, nodes[node.name], their_bodies, own_bodies)
                return f"of op {node.name!r} in its function {mine.name}, {how}"
        known = {node.name for node in first.node_def}
        more = next((name for name in nodes if name not in known), "")
        return f"its function {mine.name} has an op {more!r} more" if more else f"the results of {mine.name} differ"
    return ""


def _attribute(node: NodeDef, name: str) -> AttrValue | None:
    attributes: Mapping[str, AttrValue] = node.attr
    return attributes[name] if name in attributes else None


def _format_value(value: AttrValue | None) -> str:
    """An attribute's value on one line."""
    if value is None:
        return "not there"
    kind = value.WhichOneof("value")
    if kind == "type":
        return str(tf.dtypes.as_dtype(value.type).name)
    if kind == "shape":
        return str(tf.TensorShape(value.shape))
    if kind == "tensor":
        return f"{tf.dtypes.as_dtype(value.tensor.dtype).name} {tf.TensorShape(value.tensor.tensor_shape)}"
    if kind == "list" and value.list.shape:
        return _cut(", ".join(str(tf.TensorShape(shape)) for shape in value.list.shape))
    return _cut(" ".join(str(getattr(value, kind) if kind else value).split()))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
