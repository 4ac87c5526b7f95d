"""Marks by which a graph designates the batch of a step, and the values that a step reports of it.

A batch that is so marked may have another length on each worker, including zero: a worker's mean over its batch then
counts by its share of all workers' examples. Marks are attributes of nodes, which survive calls, inlining and import of
functions. A graph without marks has batches of equal length.

The length of the global batch is a sum over the workers. Where the graph has a fed tensor for it, no op waits for that
sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tensorflow.core.framework import attr_value_pb2

from parallax.base.types import Graph, NodeDef, Operation, Tensor, Variable
from parallax.graph.tensor_stores import tensors_read
from parallax.graph.view import EXAMPLES, NEXT_ITERATIONS, GraphView, node_of, once_per_view

_BATCH, _LENGTH, _ELEMENTS = "_parallax_batch", "_parallax_length", "_parallax_elements"
_ROW_ENDS = "_parallax_row_ends"
_SPARSE, _GIVER = "_parallax_sparse", "_parallax_giver"
_OPENED, _SCRIPT = "_parallax_opened", "script/"
"""Prefixes of step names in scripts' graphs: steps that the analysis infers, as no front end has named them."""
SUBSTITUTES = "parallax_opened/"
"""Prefix of the nodes that compute a fixed batch's constants from the batch."""
_SUBSTITUTE = "_parallax_substitute"
_STATED_RANK, _MOST_RANK = "_parallax_stated_rank", "_parallax_most_rank"
_STATED_LENGTH = "_parallax_stated_length"
_REPORTED, _PART, _RUN = "_parallax_reported", "_parallax_part", "_parallax_run"
FULL, _NUMERIC_LENGTH = "_parallax_full", "_parallax_numeric_length"
_MARKS = frozenset([_BATCH, _LENGTH, _ELEMENTS, _ROW_ENDS, _REPORTED, _PART, _RUN])
"""Marks of batch lengths, which do not affect the identity of a graph."""
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_SPARSE_ROLES = ("places", "values", "shape")
VALUE, ADDED, ROWS, WHOLE, SAME = "value", "added", "rows", "whole", "same"
"""The kinds of a reported result: a scalar that is averaged, or summed, over the workers; rows that are concatenated; a
value that every worker receives, or already has.
"""


def mark_batch(placeholder: Tensor, step: str) -> None:
    """Marks the first dimension of a placeholder as a batch's length, which may differ among workers.

    Args:
        placeholder: a tensor that is fed, of rank 1 or more.
        step: the name of the step; all batches of one step have one length on a worker.
    """
    _set(placeholder.op, _BATCH, step)


def mark_run(run: Operation, step: str) -> None:
    """Marks the op that runs a step of a front end, which may have no batch."""
    _set(run, _RUN, step)


def mark_numeric_length(placeholder: Tensor) -> None:
    """Marks a batch whose step may compute with the length of the global batch as a number."""
    _set(placeholder.op, _NUMERIC_LENGTH, "")


def has_numeric_length(node: NodeDef) -> bool:
    """Whether a batch is so marked."""
    return _NUMERIC_LENGTH in node.attr


def mark_batch_of_script(view: GraphView, node: str, number: int) -> None:
    """Marks the results of open length of a captured graph's node as batches, which workers share.

    Args:
        view: the captured graph, which is modified.
        node: a placeholder, or an op that reads elements from an iterator or a queue.
        number: of the step; batches of one step have one length on a worker.
    """
    view.nodes[node].attr[_BATCH].s = f"{_SCRIPT}{number}".encode()
    view.remembered.clear()


def mark_opened(node: NodeDef, examples: int) -> None:
    """Marks a node as the source of a batch of `examples` examples, whose length the graph leaves open."""
    node.attr[_OPENED].i = node.attr[EXAMPLES].i = examples


def is_opened(node: NodeDef) -> bool:
    """Whether a node is the source of a batch of fixed length whose length the graph leaves open."""
    return _OPENED in node.attr


def fixed_length(node: NodeDef) -> int:
    """The number of examples of such a batch on each worker; 0 for any other node."""
    return int(node.attr[_OPENED].i) if _OPENED in node.attr else 0


def mark_substitute(node: NodeDef, tensor: str) -> None:
    """Marks a node as computing, from the batch, what some ops read in place of a tensor of the script's graph."""
    node.attr[_SUBSTITUTE].s = tensor.encode()


def find_substitutes(view: GraphView) -> dict[str, tuple[str, ...]]:
    """Tensor of the script's graph -> the tensors that some ops read in its place; not those of bodies of functions."""
    substitutes: dict[str, tuple[str, ...]] = {}
    for name, node in view.nodes.items():
        if _SUBSTITUTE in node.attr and name.startswith(SUBSTITUTES):
            tensor = node.attr[_SUBSTITUTE].s.decode()
            substitutes[tensor] = (*substitutes.get(tensor, ()), f"{name}:0")
    return substitutes


def mark_stated_rank(node: NodeDef, rank: int, most: int) -> None:
    """Marks a placeholder that the script made without a shape with the rank that the analysis found.

    Args:
        node: the placeholder.
        rank: its rank; 0 where ops only combine it with examples.
        most: the highest rank of its feeds. One above that of the examples would make pairs of them.
    """
    node.attr[_STATED_RANK].i, node.attr[_MOST_RANK].i = rank, most


def is_stated_scalar(node: NodeDef) -> bool:
    """Whether a placeholder is so marked as a scalar, or as examples that ops combine with others like one."""
    return _STATED_RANK in node.attr and not node.attr[_STATED_RANK].i


def find_stated_ranks(view: GraphView) -> dict[str, tuple[int, int]]:
    """Tensor of a placeholder that is so marked -> the lowest and the highest rank of its feeds."""
    marked = {f"{name}:0": node.attr for name, node in view.nodes.items() if _STATED_RANK in node.attr}
    return {tensor: (int(attr[_STATED_RANK].i), int(attr[_MOST_RANK].i)) for tensor, attr in marked.items()}


def mark_stated_length(node: NodeDef, length: int) -> None:
    """Marks a placeholder of open length with the number of examples that other tensors of its loss have."""
    node.attr[_STATED_LENGTH].i = length


def find_stated_lengths(view: GraphView) -> dict[str, int]:
    """Tensor of a placeholder that is so marked -> the number of examples of each worker."""
    return {f"{name}:0": int(n.attr[_STATED_LENGTH].i) for name, n in view.nodes.items() if _STATED_LENGTH in n.attr}


def mark_full(placeholder: Tensor, examples: int) -> None:
    """Marks a placeholder with the usual length of the global batch; some batches may differ, as the last of an epoch.

    Args:
        placeholder: a tensor that is marked as a batch.
        examples: the number of examples.
    """
    placeholder.op._set_attr(FULL, attr_value_pb2.AttrValue(i=examples))


def full_length(node: NodeDef) -> int:
    """The usual length of the global batch that is fed to a node; 0 where it is unknown."""
    return int(node.attr[FULL].i) if FULL in node.attr else 0


def declared_length(node: NodeDef) -> int:
    """The length of all global batches that are fed to a node, with which a step may compute; 0 if lengths differ."""
    return full_length(node) if has_numeric_length(node) else 0


def locate_part(rows: int, rank: int, size: int) -> tuple[int, int]:
    """(the first row of a worker's share of a batch, the row after its last)."""
    return rows * rank // size, rows * (rank + 1) // size


def mark_elements(placeholder: Tensor, name: str) -> None:
    """Marks a placeholder whose number of elements differs from that of examples, such as the values of ragged rows.

    Args:
        placeholder: a tensor that is marked as a batch.
        name: of the elements, by which `mark_row_ends` distinguishes them from others of the step.
    """
    _set(placeholder.op, _ELEMENTS, name)


def mark_row_ends(placeholder: Tensor, name: str) -> None:
    """Marks a placeholder as row splits: the beginning of each row and the end of the last one, one more than rows.

    Args:
        placeholder: a tensor that is marked as a batch.
        name: of the elements.
    """
    _set(placeholder.op, _ROW_ENDS, name)


def are_elements(node: NodeDef) -> bool:
    """Whether a node is a placeholder of a batch's elements, of which examples have unequally many."""
    return bool(_mark(node, _ELEMENTS))


def are_row_ends(node: NodeDef) -> bool:
    """Whether a node is a placeholder of row splits."""
    return bool(_mark(node, _ROW_ENDS))


def elements_of_rows(view: GraphView) -> dict[str, str]:
    """Placeholder of row splits -> the tensor of their elements."""
    marked = {node: view.nodes[node] for node in marked_nodes(view)}
    by_name = {(batch_of(n), _mark(n, _ELEMENTS)): f"{node}:0" for node, n in marked.items() if are_elements(n)}
    ends = {node: (batch_of(n), _mark(n, _ROW_ENDS)) for node, n in marked.items() if _mark(n, _ROW_ENDS)}
    return {node: by_name[name] for node, name in ends.items()}


@dataclass(frozen=True, slots=True)
class SparseFeed:
    """The placeholders of a fed sparse tensor, with a row for each example of a batch.

    Attributes:
        places: node of `[entries, rank]`: the example's index first.
        values: node of `[entries]`.
        shape: node of `[rank]`: the number of examples first.
    """

    places: str
    values: str
    shape: str


def mark_sparse_feed(places: Operation, values: Operation, shape: Operation) -> None:
    """Marks three placeholders of a script's graph as the parts of one fed sparse tensor.

    Args:
        places: of its entries.
        values: of its entries.
        shape: of the whole tensor.
    """
    for role, op in zip(_SPARSE_ROLES, (places, values, shape), strict=True):
        _set(op, _SPARSE, f"{role} {places.name}")


def mark_parts(giver: str, parts: Sequence[NodeDef], are_sparse: bool) -> None:
    """Marks nodes as the parts of a sparse or ragged tensor of a batch, like those of one that is fed.

    Args:
        giver: the node that gives the batch.
        parts: places, values and shape; or the ends of rows, the outermost first, and the elements.
        are_sparse: whether they are the former.
    """
    for part in parts:
        part.attr[_GIVER].s = giver.encode()
    for role, part in zip(_SPARSE_ROLES, parts, strict=True) if are_sparse else ():
        part.attr[_SPARSE].s = f"{role} {parts[0].name}".encode()
    for ends, elements in () if are_sparse else pairwise(parts):
        ends.attr[_ROW_ENDS].s = elements.attr[_ELEMENTS].s = elements.name.encode()


def giver_of(node: NodeDef) -> str:
    """The node that gives the batch of which a node is so marked as a part; empty for any other node."""
    return _mark(node, _GIVER)


@once_per_view
def sparse_feeds(view: GraphView) -> dict[str, SparseFeed]:
    """Placeholder -> the fed sparse tensor of which it is a part."""
    tensor_by_role: dict[str, dict[str, str]] = {}
    for name in view.nodes_of(_PLACEHOLDERS):
        if mark := _mark(view.nodes[name], _SPARSE):
            role, key = mark.split(" ", 1)
            tensor_by_role.setdefault(key, {})[role] = name
    feeds = [SparseFeed(**roles) for roles in tensor_by_role.values() if len(roles) == len(_SPARSE_ROLES)]
    return {node: feed for feed in feeds for node in (feed.places, feed.values, feed.shape)}


def mark_length(length: Tensor, step: str) -> None:
    """Marks a tensor as the length of a step's batch; on workers it becomes the length of the global batch.

    Args:
        length: a PlaceholderWithDefault of int64, whose default is the number of a worker's examples; the fed value
            must be the length of the global batch.
        step: as the batch is marked.
    """
    _set(length.op, _LENGTH, step)


def mark_reported(identity: Tensor, kind: str) -> None:
    """Marks a tensor as reported; its reader then has the value of which the workers' mean, sum or rows must be formed.

    Args:
        identity: the result of an Identity.
        kind: VALUE, ADDED, ROWS, WHOLE or SAME.
    """
    _set(identity.op, _REPORTED, kind)


def mark_partial_sum(variable: Variable) -> None:
    """Marks a variable as partial: its value is the sum of all workers' parts, as for a metric's count.

    Args:
        variable: a resource variable.
    """
    _set(variable.handle.op, _PART, "sum")


def is_partial_sum(node: NodeDef) -> bool:
    """Whether a node is a variable of which each worker has a part."""
    return bool(_mark(node, _PART))


@once_per_view
def marked_nodes(view: GraphView) -> tuple[str, ...]:
    """The nodes with a mark of this module, in the order of the graph."""
    return tuple([name for name, node in view.nodes.items() if not _MARKS.isdisjoint(node.attr)])


def batch_of(node: NodeDef) -> str:
    """The step of which a placeholder is a batch; empty for any other node."""
    return _mark(node, _BATCH)


def is_of_front_end(graph: Graph) -> bool:
    """Whether a graph was made by a front end from traced steps: these and their batches are marked."""
    marks = {"Placeholder": _BATCH, "NoOp": _RUN}
    return any(op.type in marks and marks[op.type] in op.node_def.attr for op in graph.get_operations())


def is_of_script(view: GraphView) -> bool:
    """Whether a graph was made by no front end: each worker's script chooses its fetches and feeds."""
    nodes = [view.nodes[node] for node in marked_nodes(view)]
    steps = (batch_of(node) or _mark(node, _RUN) for node in nodes)
    return not any(step and not step.startswith(_SCRIPT) for step in steps)


def batch_tensors(view: GraphView, node: str) -> list[str]:
    """The results of a marked node that are batches: those whose first dimension is open, or the only one."""
    outputs = view.outputs(node)
    return [tensor for tensor in outputs if len(outputs) == 1 or (view.shape(tensor) or (0,))[0] is None]


def first_batches(view: GraphView) -> dict[str, str]:
    """Step -> the batch that defines the step's batch length: one with an entry for each example, if there is one."""
    marked = [node for node in marked_nodes(view) if batch_of(view.nodes[node])]
    has_more = {n: bool(are_elements(view.nodes[n]) or _mark(view.nodes[n], _ROW_ENDS)) for n in marked}
    first_by_step: dict[str, str] = {}
    sparse = sparse_feeds(view)
    for node in sorted(marked, key=lambda one: (one in sparse, are_elements(view.nodes[one]), has_more[one])):
        first_by_step.setdefault(batch_of(view.nodes[node]), batch_tensors(view, node)[0])
    return first_by_step


@once_per_view
def batch_by_node(view: GraphView) -> dict[str, str]:
    """Node -> the placeholder whose length is that of the batch from which the node's results are computed."""
    first = first_batches(view)
    batches = {node: first[step] for node in marked_nodes(view) if (step := batch_of(view.nodes[node]))}
    if not batches:
        return batches
    known = 0
    while len(batches) > known:
        known = len(batches)
        for node in view.topological_order():
            if node in batches:
                continue
            for tensor in tensors_read(view, node):
                if (before := node_of(tensor)) in batches:
                    batches[node] = batches[before]
                    break
        if not has_loops(view):  # an iteration reads the results of the preceding one
            break
    return batches


def has_loops(view: GraphView) -> bool:
    """Whether a graph has TensorFlow 1 loops."""
    return view.has_op(NEXT_ITERATIONS)


def length_of_batch(nodes: Mapping[str, NodeDef], batch: NodeDef) -> str:
    """The node that is the length of the global batch of a step; empty where there is none.

    Args:
        nodes: of the graph, by name.
        batch: a node that is marked as a batch of the step.
    """
    step = _mark(batch, _BATCH)
    return next((name for name, node in nodes.items() if step and _mark(node, _LENGTH) == step), "")


def length_by_step(view: GraphView) -> dict[str, str]:
    """Step -> the node that is the length of its batch, for the steps that have one."""
    return {step: node for node in marked_nodes(view) if (step := _mark(view.nodes[node], _LENGTH))}


def find_report_kind(node: NodeDef) -> str:
    """The kind in which a node reports: VALUE, ADDED, ROWS, WHOLE, SAME, or empty."""
    return _mark(node, _REPORTED)


def _set(op: Operation, name: str, value: str) -> None:
    op._set_attr(name, attr_value_pb2.AttrValue(s=value.encode()))


def _mark(node: NodeDef, name: str) -> str:
    return str(node.attr[name].s.decode()) if name in node.attr else ""
