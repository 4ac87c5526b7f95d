"""Finds the batches of a script's graph: feeds, iterators and queues with an open first dimension.

A worker's script feeds its share of the global batch there. Batches that one op combines have equal lengths; where they
do not, the first step raises the error (transform/passes/weigh_uneven_batches.py).
"""

from __future__ import annotations

from collections.abc import Set

from parallax.graph.batches import giver_of, has_loops, is_opened, mark_batch_of_script, sparse_feeds
from parallax.graph.control_flow import branches_of, loop_conditions
from parallax.graph.view import GraphView, node_of

SOURCES = (
    *("Placeholder", "PlaceholderV2", "IteratorGetNext", "QueueDequeue", "QueueDequeueV2"),
    *("QueueDequeueMany", "QueueDequeueManyV2", "QueueDequeueUpTo", "QueueDequeueUpToV2"),
)
DEFAULTS = ("PlaceholderWithDefault",)
_COPIES, _ASSIGNS = ("Identity", "Cast", "EnsureShape"), ("Assign", "AssignVariableOp")
_READS, _BOOL = ("TensorArrayReadV3",), 10  # types.proto
_JOINS = ("Concat", "ConcatV2")
_LEADING = (3, 9, 21)  # types.proto: int32, int64, variant
_FLOWS = ("TensorArrayWriteV3", "TensorArrayScatterV3", "TensorArraySplitV3")
"""Ops that return a scalar that represents an array of tensors."""
_PASSES = ("Enter", "Merge", "Switch", "Identity", "NextIteration", "Exit")


def mark_open_batches(view: GraphView, initial: Set[str], losses: Set[str], autodiff: Set[str]) -> bool:
    """Marks the batches of a graph without marks of a front end.

    Args:
        view: the captured graph, which is modified.
        initial: nodes on which initial values depend: a placeholder among them is not a batch.
        losses: the nodes that are differentiated.
        autodiff: the nodes that differentiate them.

    Returns:
        Whether there are any, and losses read no source of fixed length next to them, which may or may not be a batch.
    """
    sparse = sparse_feeds(view)
    sources = [
        node
        for node in view.nodes_of((*SOURCES, *DEFAULTS))
        if node not in initial and (node in sparse or _is_open(view, node))
    ]
    needed = view.ancestors(losses) - initial
    if any(node in needed and _is_fixed(view, node) for node in view.nodes_of(SOURCES)):
        return False
    for number, group in enumerate(_groups(view, sources, autodiff)):
        if not all(node in sparse for node in group):  # else no tensor has the length of the batch
            for node in group:
                mark_batch_of_script(view, node, number)
    return bool(sources)


def _is_open(view: GraphView, source: str) -> bool:
    """Whether a source returns a tensor with an open first dimension that is not assigned to a variable."""
    return any(_has_open_rows(view, tensor) and not is_assigned(view, tensor) for tensor in view.outputs(source))


def is_assigned(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is assigned to a variable, and so is no batch of examples."""
    takers = view.consumers(tensor)
    return any(
        (view.op(edge.node) in _ASSIGNS and edge.slot == 1)
        or (view.op(edge.node) in _COPIES and is_assigned(view, f"{edge.node}:0"))
        for edge in takers
    )


def _is_fixed(view: GraphView, source: str) -> bool:
    """Whether a source returns a tensor of fixed length that nothing has opened."""
    fixed_tensors = [tensor for tensor in view.outputs(source) if ((view.shape(tensor) or (None,))[0] or 1) > 1]
    return any(not all(is_opened(view.nodes[edge.node]) for edge in view.consumers(tensor)) for tensor in fixed_tensors)


def _has_open_rows(view: GraphView, tensor: str) -> bool:
    shape = view.shape(tensor)
    return bool(shape) and shape is not None and shape[0] is None


def _groups(view: GraphView, sources: list[str], autodiff: Set[str]) -> list[list[str]]:
    """The sources that ops combine, in groups.

    Paths through results of known shape count only for integers, such as lengths, and for tensors that represent a list
    of tensors. A loop combines the arrays from which its iterations read with their number. Gradient rows of several
    lookups are concatenated whatever their lengths.
    """
    root = {node: node for node in sources}

    def find(node: str) -> str:
        while root[node] != node:
            node = root[node]
        return node

    for node, feed in sparse_feeds(view).items():
        if node in root and feed.places in root:
            root[find(node)] = find(feed.places)
    of_giver = {node: node for node in sources}
    for node in sources:
        if giver := giver_of(view.nodes[node]):
            root[find(node)] = find(of_giver.setdefault(giver, node))
    begun, of_tensor, known = set(sources), dict[str, str](), -1
    while len(of_tensor) > known and sources:  # an iteration reads the results of the preceding one
        known = len(of_tensor)
        for node in view.topological_order():
            tensors = [*view.inputs(node), *(_find_limits(view, node) if view.op(node) in _READS else ())]
            sources_before = [node] if node in begun else [of_tensor[t] for t in tensors if t in of_tensor]
            is_of_rows = node in autodiff and view.op(node) in _JOINS
            for other in [] if is_of_rows else sources_before[1:]:
                root[find(other)] = find(sources_before[0])
            for tensor in view.outputs(node) if sources_before else ():
                if leads_on(view, tensor):
                    of_tensor[tensor] = sources_before[0]
        if not has_loops(view):
            break
    groups: dict[str, list[str]] = {}
    for node in sources:
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())


def _find_limits(view: GraphView, node: str) -> list[str]:
    """The tensors that are compared to decide whether a node's loop runs another iteration."""
    loops = [one.predicate for one in branches_of(view)[node] if one.is_loop]
    waiting = [loop_conditions(view)[loop] for loop in loops[-1:] if loop in loop_conditions(view)]
    limits, seen = list[str](), set[str]()
    while waiting:  # a flag of an iteration may follow from the one before
        tensor = waiting.pop()
        if tensor not in seen:
            seen.add(tensor)
            inputs = view.inputs(node_of(tensor))
            waiting += [one for one in inputs if view.dtype(one) == _BOOL]
            limits += [one for one in inputs if view.dtype(one) != _BOOL]
    return limits


def leads_on(view: GraphView, tensor: str) -> bool:
    """Whether a tensor that is computed from a batch may have an axis of it, or its length."""
    shape, op = view.shape(tensor), view.op(node_of(tensor))
    return shape is None or None in shape or view.dtype(tensor) in _LEADING or op in (*_FLOWS, *_PASSES)
