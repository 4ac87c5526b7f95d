"""Finds the ops that produce a step's batches where they are not fed, and whether workers shard them.

A batch comes from an iterator, a queue, a reader, or Python code without inputs. The producers behind the op's resource
(the dataset of the op that initializes an iterator, the values enqueued into a queue) are followed too, into functions
as well. An input is sharded if these depend on the shard numbers of `parallax.shard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from parallax.base.types import NodeDef
from parallax.graph.control_flow import branches_of
from parallax.graph.ops import takes_seeds
from parallax.graph.shard import mark_of
from parallax.graph.view import GraphView

_ITERATOR_GETS = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")
_QUEUE_GETS = ("QueueDequeue", "ReaderRead")
_DATA = ("IteratorGetNext", "OneShotIterator")
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_BY_NAME = ("IteratorFromStringHandle", "IteratorFromStringHandleV2")
_FILLS = ("MakeIterator", "QueueEnqueue")
_FED = ("Placeholder", "PlaceholderV2")
_RESOURCE_TYPES = ("resource", "variant")


@dataclass(frozen=True, slots=True)
class BatchSource:
    """An op that produces batches.

    Attributes:
        node: its name.
        tensors: its results that can be fetched.
        is_iterator: whether it reads elements of a dataset.
        is_sharded: whether its input depends on the index of this worker's shard.
        is_opaque: whether its input depends on feeds or on Python code, so that the graph does not determine it.
        is_shuffled: whether it is shuffled without a seed, so that each worker has another order.
    """

    node: str
    tensors: tuple[str, ...]
    is_iterator: bool
    is_sharded: bool
    is_opaque: bool
    is_shuffled: bool


def random_ops(view: GraphView, nodes: Iterable[str]) -> list[str]:
    """The given nodes that draw random numbers from their own state, sorted."""
    return sorted(n for n in nodes if takes_seeds(view.nodes[n]))


def data_ops(view: GraphView, nodes: Iterable[str]) -> list[str]:
    """The given nodes that produce batches without feeds: iterators, queues and readers, sorted."""
    return sorted(n for n in nodes if view.op(n) in _DATA or view.op(n).startswith(_QUEUE_GETS))


def batch_sources(view: GraphView, updates: Iterable[str]) -> tuple[BatchSource, ...]:
    """The sources of batches for the ops that update variables from gradients, by name.

    Ops in TensorFlow 1 branches and loops are left out: they cannot be fetched.

    Args:
        view: the user's graph.
        updates: the ops that update variables from gradients.
    """
    step = view.ancestors(updates)
    branches = branches_of(view)
    nodes = sorted(n for n in step if _yields_batches(view, n) and not branches.get(n))
    return tuple(_describe(view, node) for node in nodes)


def _yields_batches(view: GraphView, node: str) -> bool:
    op = view.op(node)
    return op in _ITERATOR_GETS or op.startswith(_QUEUE_GETS) or (op in _PYTHON and not view.inputs(node))


def _describe(view: GraphView, node: str) -> BatchSource:
    inputs = _nodes_behind(view, node)
    own = [view.nodes[name] for name in inputs if not _is_handle(view, name)]
    groups = [own, *_nodes_of_functions(view, own)]
    every = [one for group in groups for one in group]
    return BatchSource(
        node=node,
        tensors=tuple(_fetchable_outputs(view, node)),
        is_iterator=view.op(node) in _ITERATOR_GETS,
        is_sharded=any(mark_of(one) for one in every),
        is_opaque=any(one.op in (*_FED, *_PYTHON) for one in every),
        is_shuffled=any(_is_unseeded(one, {n.name: n for n in group}) for group in groups for one in group),
    )


def _is_handle(view: GraphView, node: str) -> bool:
    """Whether a node only selects one of the graph's iterators."""
    takers = [view.op(edge.node) for edge in view.consumers(f"{node}:0")]
    return bool(takers) and all(op in _BY_NAME for op in takers)


def _fetchable_outputs(view: GraphView, node: str) -> Iterator[str]:
    """The outputs of a node with a NumPy type; the content of an optional is the result of its readers."""
    import tensorflow as tf

    if view.op(node) == "IteratorGetNextAsOptional":
        for edge in view.consumers(f"{node}:0"):
            if view.op(edge.node) == "OptionalGetValue" and not branches_of(view).get(edge.node):
                yield from _fetchable_outputs(view, edge.node)
        return
    for tensor in view.outputs(node):
        if tf.as_dtype(view.dtype(tensor)).name not in _RESOURCE_TYPES:
            yield tensor


def _nodes_behind(view: GraphView, node: str) -> list[str]:
    """The ancestors of a source, including those of the resources that it reads, sorted."""
    ancestors = view.ancestors([node])
    while True:
        handles = {name for name in ancestors if view.op(name).endswith(("Iterator", "IteratorV2", "Queue", "QueueV2"))}
        if any(view.op(name) in _BY_NAME for name in ancestors):  # it may refer to any iterator that has a handle
            handles |= {view.inputs(n)[0].split(":")[0] for n in view.nodes if view.op(n) == "IteratorToStringHandle"}
        fills = {
            edge.node
            for name in handles
            for edge in view.consumers(f"{name}:0")
            if view.op(edge.node).startswith(_FILLS)
        }
        more = view.ancestors(fills | handles)
        if more <= ancestors:
            return sorted(ancestors)
        ancestors |= more


def _nodes_of_functions(view: GraphView, nodes: Iterable[NodeDef]) -> list[list[NodeDef]]:
    """The nodes of each function that some nodes call, directly or indirectly."""
    library = {function.signature.name: function for function in view.graph_def.library.function}
    bodies: list[list[NodeDef]] = []
    waiting, seen = [name for node in nodes for name in _called_by(node)], set[str]()
    while waiting:
        name = waiting.pop()
        if name in library and name not in seen:
            seen.add(name)
            bodies.append(list(library[name].node_def))
            waiting += [called for node in bodies[-1] for called in _called_by(node)]
    return bodies


def _called_by(node: NodeDef) -> list[str]:
    names = [value.func.name for value in node.attr.values() if value.HasField("func")]
    return names + [f.name for value in node.attr.values() if value.HasField("list") for f in value.list.func]


def _is_unseeded(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Whether a node shuffles a dataset by a seed drawn at run time: TensorFlow then sets both seeds to 0.

    Args:
        node: the node.
        nodes: of the graph or function that contains it, by name.
    """
    from tensorflow.python.framework import tensor_util

    if not node.op.startswith("Shuffle"):
        return False
    seeds = [nodes.get(tensor.split(":")[0]) for tensor in node.input[2:4]]
    return all(s is not None and s.op == "Const" and not tensor_util.MakeNdarray(s.attr["value"].tensor) for s in seeds)
