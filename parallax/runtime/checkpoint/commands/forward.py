"""Extracts the forward part of a user's graph: the ops between given inputs and outputs, without any training op.

Ops that write a variable are refused, because a read-only file cannot keep what is written. Ops that read their own
input pipeline or call Python are refused too, because no file contains these. Reference variables become resource
variables, so that every loader of current TensorFlow accepts them. Names of the user's graph are preserved.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.strict import shown
from parallax.base.types import FunctionDef, Graph, GraphDef, NodeDef
from parallax.graph.ops import state_op
from parallax.graph.view import GraphView, node_of, split_tensor, tensor_name
from parallax.report.text import list_first

_REFERENCES = ("Variable", "VariableV2")
_VARIABLES = (*_REFERENCES, "VarHandleOp")
_BY_REFERENCE = {f"Ref{op}": op for op in ("Switch", "Merge", "Enter", "Exit", "NextIteration", "Identity")}
_PIPELINES = ("IteratorGetNext", "IteratorGetNextSync", "OneShotIterator", "QueueDequeue", "ReaderRead")
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_OF_TABLES = ("LookupTable", "InitializeTable", "HashTable")
_FILE_TABLES = ("InitializeTableFromTextFile", "InitializeTableFromTextFileV2")
_MOST_NAMED = 10


@dataclass(frozen=True)
class ForwardGraph:
    """The exported graph.

    Attributes:
        graph_def: its nodes, with placeholders as inputs and resource variables.
        inputs: the user's name of each input -> its tensor here.
        outputs: the user's name of each output -> its tensor here.
        variables: the variable ops.
        initializers: ops that fill tables of `tf.lookup`.
    """

    graph_def: GraphDef
    inputs: dict[str, str]
    outputs: dict[str, str]
    variables: tuple[str, ...]
    initializers: tuple[str, ...]


def forward_graph(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> ForwardGraph:
    """Extracts the forward part of a graph, which stays unchanged.

    Args:
        graph: the user's.
        inputs: tensors that will be fed, each `TENSOR` or `NAME=TENSOR`; none for every placeholder without a default,
            and every tensor of an iterator, that the outputs need.
        outputs: tensors that will be fetched, in the same form.

    Raises:
        CheckpointError: when a tensor does not exist, there is no output, or the outputs need ops that cannot be
            exported.
    """
    view = GraphView(graph.as_graph_def(add_shapes=True))
    if not outputs:
        raise CheckpointError(
            "A SavedModel needs outputs, and a graph does not say which of its tensors is wanted. Name them by "
            f"--output TENSOR. {_list_names('Among them may be', output_candidates(view))}"
        )
    fetched, fed = _name_tensors(view, outputs, "--output"), _name_tensors(view, inputs, "--input")
    if not inputs:
        fed = _as_keys(_open_inputs(view, fetched.values()))
    cut = frozenset(fed.values())
    starts = [node_of(tensor) for tensor in fetched.values() if tensor not in cut]
    needed = view.ancestors(starts, cut)
    initializers = _initializers(graph, view, needed)
    needed |= view.ancestors(initializers)
    _check_needed(view, needed, frozenset(node_of(tensor) for tensor in cut), fetched)
    return _edit_graph(view, needed, fed, fetched, initializers)


def output_candidates(view: GraphView) -> list[str]:
    """Likely outputs of a model: tensors computed from variables that no node reads, or that join with labels."""
    seen: dict[str, tuple[bool, frozenset[str]]] = {}
    candidates = []
    for node in view.topological_order():
        op = view.op(node)
        before = [seen[one] for one in view.predecessors(node) if one in seen]
        if op in _VARIABLES:
            seen[node] = (True, frozenset())
        elif op == "Placeholder" or op.startswith(_PIPELINES):
            seen[node] = (False, frozenset({node}))
        elif _trains(view, node) or any(one not in seen for one in view.predecessors(node)):
            continue  # the nodes after it are excluded too
        else:
            seen[node] = (any(v for v, _ in before), frozenset().union(*(fed for _, fed in before)))
            candidates += _find_joins(view, node, seen)
    read = {one for node in seen for one in view.predecessors(node)}
    ends = [node for node, (learned, fed) in seen.items() if learned and fed and node not in read]
    return list(dict.fromkeys([*candidates, *(f"{node}:0" for node in ends if view.outputs(node))]))


def _find_joins(view: GraphView, node: str, seen: dict[str, tuple[bool, frozenset[str]]]) -> list[str]:
    """The tensors from variables that a node combines with inputs on which they do not depend."""
    fed = seen[node][1]
    return [
        tensor
        for tensor in view.inputs(node)
        if (made := seen.get(node_of(tensor), (False, fed)))[0] and made[1] and made[1] != fed
    ]


def _trains(view: GraphView, node: str) -> bool:
    """Whether a node writes variables, or belongs to autodiff, for which TensorFlow has its own name scope."""
    return _writes(view.nodes[node]) or any(word.startswith("gradients") for word in node.split("/"))


def _writes(node: NodeDef) -> bool:
    """Whether a node writes a variable; tables of `tf.lookup` are filled once, and are exported."""
    if node.op.startswith(_OF_TABLES):
        return False
    return state_op(node.op, sum(not one.startswith("^") for one in node.input)) is not None


def _name_tensors(view: GraphView, words: Sequence[str], option: str) -> dict[str, str]:
    """The tensor of each name.

    Raises:
        CheckpointError: when there is no such tensor, or two have one name.
    """
    tensor_by_name: dict[str, str] = {}
    for word in words:
        name, _, tensor = word.rpartition("=")
        tensor = tensor_name(tensor)
        node, number = split_tensor(tensor) if tensor.rpartition(":")[2].isdecimal() else (tensor, 0)
        if node not in view.nodes or number >= len(view.outputs(node)):
            near = difflib.get_close_matches(node, view.nodes)
            raise CheckpointError(
                f"{option} must name a tensor of the graph, and {shown(word)} is none. "
                f"{_list_names('Near it are', near) or 'Name another.'}"
            )
        if name and name in tensor_by_name:
            raise CheckpointError(f"{option} must give each tensor its own name, and {shown(name)} is given twice.")
        tensor_by_name |= {name: tensor} if name else _as_keys([tensor], tensor_by_name)
    return tensor_by_name


def _as_keys(tensors: Iterable[str], used_keys: Iterable[str] = ()) -> dict[str, str]:
    """Assigns a name to each tensor: the last component of its op's name, or the full name if that is taken."""
    tensor_by_key: dict[str, str] = {}
    for tensor in tensors:
        node, number = split_tensor(tensor)
        words = [node.rpartition("/")[2], node, f"{node}_{number}"] if not number else [f"{node}_{number}"]
        tensor_by_key[
            next(word for word in [*words, tensor] if word not in tensor_by_key and word not in used_keys)
        ] = tensor
    return tensor_by_key


def _open_inputs(view: GraphView, outputs: Iterable[str]) -> list[str]:
    """The tensors that must be fed for some outputs: from placeholders and iterators, in graph order."""
    inputs, waiting, seen = set(), [node_of(tensor) for tensor in outputs], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if view.op(node) == "Placeholder":
            inputs.add(f"{node}:0")
            continue
        for tensor in view.inputs(node):
            producer = node_of(tensor)
            if view.op(producer).startswith("IteratorGetNext"):
                inputs.add(tensor)
            else:
                waiting.append(producer)
        waiting += view.controls(node)
    place = {node: number for number, node in enumerate(view.nodes)}
    return sorted(inputs, key=lambda tensor: (place[node_of(tensor)], split_tensor(tensor)[1]))


def _initializers(graph: Graph, view: GraphView, needed: set[str]) -> tuple[str, ...]:
    """The ops that fill those tables of `tf.lookup` that are among some nodes.

    Raises:
        CheckpointError: when a table is filled from a file, which would have to accompany the exported ones.
    """
    initializers = []
    for one in graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS):
        tables = {node_of(tensor) for tensor in view.inputs(one.name)} & needed
        if tables and view.op(one.name) in _FILE_TABLES:
            raise CheckpointError(
                f"An exported graph must not depend on files, but the table {min(tables)} is initialized from one. "
                "Name the tensors that are looked up in it by --input."
            )
        if tables:
            initializers.append(str(one.name))
    return tuple(initializers)


def _check_needed(view: GraphView, needed: set[str], cut: frozenset[str], outputs: dict[str, str]) -> None:
    """Refuses ops that cannot be exported.

    Raises:
        CheckpointError: names the op and the outputs.
    """
    listed = ", ".join(outputs.values())
    for node in sorted(needed - cut):
        op = view.op(node)
        if op == "Placeholder":
            raise CheckpointError(
                f"The inputs must be all that the outputs need, and {listed} needs {node}:0 too. Add --input {node}:0, "
                "or leave --input out."
            )
        _check_op(op, f"{listed} needs {node} ({op})")
        if _writes(view.nodes[node]):
            raise _make_refusal("must not write variables", f"{listed} needs {node} ({op}), which does")
    for function in _functions(view, needed):
        for one in function.node_def:
            called = f"{listed} needs {function.signature.name}, a function with {one.name} ({one.op})"
            _check_op(one.op, called)
            if _writes(one):
                raise _make_refusal("must not write variables", f"{called}, which does")


def _check_op(op: str, what: str) -> None:
    if op.startswith(_PIPELINES):
        raise _make_refusal("must not read an input pipeline", what)
    if op in _PYTHON:
        raise _make_refusal("must not call Python, which is in no file", what)
    if op.startswith(("Horovod", "Parallax")):
        raise _make_refusal("must run in TensorFlow as it is", what)


def _make_refusal(rule: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"What is exported {rule}, and {what}. Name an output that comes before it, or by --input what it gives."
    )


def _functions(view: GraphView, nodes: Iterable[str]) -> list[FunctionDef]:
    """The functions of the library that some nodes call, directly or indirectly."""
    by_name = {function.signature.name: function for function in view.graph_def.library.function}
    function_by_name: dict[str, FunctionDef] = {}
    waiting = [name for node in nodes for name in _find_called(view.nodes[node])]
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in function_by_name:
            function_by_name[name] = by_name[name]
            waiting += [called for node in by_name[name].node_def for called in _find_called(node)]
    return [function_by_name[name] for name in sorted(function_by_name)]


def _find_called(node: NodeDef) -> Iterator[str]:
    yield node.op
    for value in node.attr.values():
        yield from [value.func.name, *(one.name for one in value.list.func)]


def _edit_graph(
    view: GraphView, needed: set[str], fed: dict[str, str], fetched: dict[str, str], initializers: tuple[str, ...]
) -> ForwardGraph:
    """Extracts the needed nodes, with placeholders for the fed tensors."""
    placed: dict[str, str] = {}
    nodes: list[NodeDef] = []
    for tensor in fed.values():
        node, number = split_tensor(tensor)
        name = node if not number and node not in needed else f"{node}_{number}"
        while name in needed or (name != node and name in view.nodes):
            name += "_"
        placed[tensor] = f"{name}:0"
        nodes.append(_placeholder(view, tensor, name))
    variables = []
    for node in (one for one in view.nodes if one in needed):
        nodes.append(_strip(view.nodes[node], needed))
        if view.op(node) in _VARIABLES:
            variables.append(node)
        if view.op(node) in _REFERENCES:
            nodes.append(_as_resource(nodes[-1]))
            placed.setdefault(f"{node}:0", f"{nodes[-1].name}:0")
    for one in nodes:
        for slot, name in enumerate(one.input):
            if not name.startswith("^") and not one.name.endswith(_READ):
                one.input[slot] = placed.get(tensor_name(name), name)
    made = tf.compat.v1.GraphDef(versions=view.graph_def.versions)
    made.node.extend(nodes)
    made.library.function.extend(_functions(view, needed))
    return ForwardGraph(
        made,
        {name: placed[tensor] for name, tensor in fed.items()},
        {name: placed.get(tensor, tensor) for name, tensor in fetched.items()},
        tuple(variables),
        initializers,
    )


_READ = "/parallax_export_read"


def _placeholder(view: GraphView, tensor: str, name: str) -> NodeDef:
    """The placeholder of a fed tensor."""
    made = tf.compat.v1.NodeDef(name=name, op="Placeholder")
    made.attr["dtype"].type = view.dtype(tensor)
    node, number = split_tensor(tensor)
    made.attr["shape"].shape.CopyFrom(view.nodes[node].attr["_output_shapes"].list.shape[number])
    return made


def _strip(node: NodeDef, needed: set[str]) -> NodeDef:
    """Strips a node of its device and of control dependencies on nodes that are not exported."""
    made = type(node)()
    made.CopyFrom(node)
    made.device = ""
    made.op = _BY_REFERENCE.get(node.op, node.op)
    made.attr.pop("_output_shapes", None)
    colocated = [name for name in made.attr["_class"].list.s if name.decode().removeprefix("loc:@") in needed]
    made.attr.pop("_class", None)
    if colocated:
        made.attr["_class"].list.s.extend(colocated)
    return made


def _as_resource(variable: NodeDef) -> NodeDef:
    """Converts a reference variable to a resource, in place, and returns the op that reads it."""
    read = type(variable)(name=f"{variable.name}{_READ}", op="ReadVariableOp", input=[variable.name])
    read.attr["dtype"].type = variable.attr["dtype"].type
    variable.op = "VarHandleOp"
    variable.attr["shared_name"].s = variable.attr["shared_name"].s or variable.name.encode()
    return read


def _list_names(words: str, names: Sequence[str]) -> str:
    return f"{words}: {list_first(list(map(shown, names)), _MOST_NAMED)}." if names else ""
