"""Selects the variables of a graph that must be equal on all workers, and finds the ops that write them.

All variables of the user's graph count, also those that the plan does not name. Excluded are tables whose rows have
owners, variables that only servers store, and variables that the plan marks as per-worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import tensorflow as tf

from parallax.graph.ops import CONTROL_FLOW, op_definition, state_op, takes_state
from parallax.graph.view import VARIABLES, GraphView, node_of
from parallax.transform.pipeline import WorkerGraph

_PASSES_ON = frozenset("Identity Enter RefEnter RefIdentity Switch RefSwitch Merge RefMerge".split())
"""Ops that forward a handle or reference to ops that may write it."""


@dataclass(frozen=True, slots=True)
class WatchedVariable:
    """A variable that must be equal on all workers.

    Attributes:
        op: the variable op in the user's graph.
        dtype: TensorFlow's name of the element type.
        shape: its static shape; None if the graph does not fix it.
        trains: whether updates from gradients read it, so that a difference spreads.
        writers: the ops that write it, and calls that may.
        by_row: whether one of these writes rows. TensorFlow then copies the variable for readers.
    """

    op: str
    dtype: str
    shape: tuple[int, ...] | None
    trains: bool
    writers: tuple[str, ...]
    by_row: bool

    def __str__(self) -> str:
        return f"{self.dtype} {'of no fixed shape' if self.shape is None else list(self.shape)}"


def watched_variables(
    view: GraphView, updates: Iterable[str], worker_graph: WorkerGraph
) -> tuple[WatchedVariable, ...]:
    """The replicated variables that must be equal, in the order of the graph.

    Args:
        view: the user's graph.
        updates: the ops that write variables from gradients.
        worker_graph: of the current plan.
    """
    elsewhere = worker_graph.tables | worker_graph.on_servers | worker_graph.local_variables | worker_graph.elsewhere
    taken_nodes = _taken_by(view, updates)
    watched = []
    for name, node in view.nodes.items():
        if node.op not in VARIABLES or name in elsewhere:
            continue
        shape = node.attr["shape"].shape
        sizes = tuple(int(dim.size) for dim in shape.dim)
        is_known = not shape.unknown_rank and all(size >= 0 for size in sizes)
        writers = writers_of(view, name)
        described = (state_op(view.op(w), len(view.inputs(w))) for w in writers)
        watched.append(
            WatchedVariable(
                op=name,
                dtype=str(tf.as_dtype(node.attr["dtype"].type).name),
                shape=sizes if is_known else None,
                trains=name in taken_nodes,
                writers=writers,
                by_row=any(state is not None and state.indices is not None for state in described),
            )
        )
    return tuple(watched)


def writers_of(view: GraphView, variable: str) -> tuple[str, ...]:
    """The ops that write a variable, and the calls, branches and loops that receive it and may write it; sorted."""
    writers: set[str] = set()
    waiting, seen = [variable], {variable}
    while waiting:
        node = waiting.pop()
        for tensor in (f"{node}:0", f"{node}:1", *view.outputs(node)[2:]):
            for taker, slot in view.consumers(tensor):
                op = view.op(taker)
                if op not in _PASSES_ON:
                    if not _may_write(view, taker, slot):
                        continue
                    writers.add(taker)  # a reference passes through unchanged
                if taker not in seen:
                    seen.add(taker)
                    waiting.append(taker)
    return tuple(sorted(writers))


def find_applied(view: GraphView) -> frozenset[str]:
    """The optimizers' ops that write variables."""
    described = ((name, state_op(view.op(name), len(view.inputs(name)))) for name in view.nodes)
    return frozenset(name for name, state in described if state is not None and state.kind == "apply")


def _may_write(view: GraphView, node: str, slot: int) -> bool:
    op = view.op(node)
    if op in CONTROL_FLOW or op_definition(op) is None:  # a function's body
        return True
    state = state_op(op, len(view.inputs(node)))
    return state is not None and slot in state.state and takes_state(op, slot)


def _taken_by(view: GraphView, nodes: Iterable[str]) -> set[str]:
    """The ancestors of some nodes."""
    taken_nodes = set(nodes)
    waiting = list(taken_nodes)
    while waiting:
        for tensor in view.inputs(waiting.pop()):
            before = node_of(tensor)
            if before not in taken_nodes:
                taken_nodes.add(before)
                waiting.append(before)
    return taken_nodes


def size_bytes(one: WatchedVariable) -> int:
    """Bytes of its value; 0 if the shape is not fixed."""
    return 0 if one.shape is None else math.prod(one.shape) * int(tf.as_dtype(one.dtype).size)
