"""Finds moving averages of what a batch gives, as batch normalization keeps, and has them be the same on all workers.

In a graph whose batches may be uneven (graph/batches.py), what is written to such a variable is the mean over the
workers, by their shares of the examples. A moving mean is then the one process's, where what is averaged is; a moving
variance is the mean of the variances within the workers' batches. What adds up (counts of metrics, sums) is no average:
there the old value goes into the new one by addition alone. In other graphs each worker keeps its own.
"""

from __future__ import annotations

from parallax.analysis.propagation.own_state import is_of_batch
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.capture import variable_of_tensor
from parallax.graph.batches import batch_by_node, is_part
from parallax.graph.ops import StateOp, state_op
from parallax.graph.view import Edge, GraphView, split_tensor
from parallax.plans.rewrites import AllReduce

_FLOATS = ("bfloat16", "float16", "float32", "float64")
_LINEAR = ("AddV2", "Add", "Sub", "AddN", "Neg", "Identity", "Cast", "RealDiv", "StopGradient")
_COPIES = ("Identity", "Cast", "Reshape")
_SHOWN = 3


def take_mean(walk: Walk, node: str, state: StateOp, variable: str) -> bool:
    """Has the workers' mean written to a variable, where it is a moving average; False where it is none."""
    if state.value is None or state.kind not in ("assign", "delta") or variable in walk.assumed.own | walk.known.shared:
        return False
    if node not in batch_by_node(walk.view) or walk.known.captured.variables[variable].dtype not in _FLOATS:
        return False
    tensor = walk.view.inputs(node)[state.value]
    if not _is_average(walk, tensor, variable) or not walk.agrees(walk.known.branches[node]):
        return False
    walk.all_reduces.append(AllReduce(tensor, (Edge(node, state.value),), "workers_mean"))
    walk.averaged.append(variable)
    return True


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of moving averages, and of other state that each worker has of its own batches."""
    notes = []
    if averaged := list(dict.fromkeys(walk.averaged)):
        notes.append(
            f"{_names(walk, averaged)} average over steps what each worker computes of its own batch, and one "
            "process would of all workers' batches: the mean over the workers is written, each counted by its examples"
        )
    if own := _of_own_batches(walk):
        notes.append(
            f"each worker writes {_names(walk, own)} from its own batches, and worker 0's is kept: one process would "
            "write it from those of all workers. What adds up over the workers, say so of: aggregation='sum'"
        )
    if given := _of_worker_0(walk):
        notes.append(
            f"{_names(walk, given)} take on all workers what worker 0 computes of its own batch: one process would "
            "compute it of all workers' batches"
        )
    return tuple(notes)


def _names(walk: Walk, variables: list[str]) -> str:
    names = [walk.known.captured.variables[v].logical_name for v in variables]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _of_own_batches(walk: Walk) -> list[str]:
    """The variables that workers write from batches that may be uneven, of which nothing else is known."""
    view, batches, found = walk.view, batch_by_node(walk.view), set()
    for node in batches:
        state = state_op(view.op(node), len(view.inputs(node)))
        if state is not None and node not in walk.known.initial:
            written = (
                variable_of_tensor(view, walk.known.captured.variables, view.inputs(node)[s]) for s in state.state
            )
            found |= {v for v in written if v in walk.assumed.own and not is_part(view.nodes[v])}
    return sorted(found)


def _of_worker_0(walk: Walk) -> list[str]:
    """The variables to which what worker 0 computes of its batch is written, on all workers; not a value fed whole."""
    view, variables, found = walk.view, walk.known.captured.variables, set()
    taken = [one for one in walk.broadcasts if is_of_batch(walk, one.tensor) and not is_fed(view, one.tensor)]
    for node in {edge.node for one in taken for edge in one.edges} - walk.known.initial:
        state = state_op(view.op(node), len(view.inputs(node)))
        if state is not None:
            found |= {v for s in state.state if (v := variable_of_tensor(view, variables, view.inputs(node)[s]))}
    return sorted(found)


def is_fed(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is what a placeholder is fed, as it is."""
    while view.op(split_tensor(tensor)[0]) in _COPIES:
        tensor = view.inputs(split_tensor(tensor)[0])[0]
    return view.op(split_tensor(tensor)[0]).startswith("Placeholder")


def _is_average(walk: Walk, tensor: str, variable: str) -> bool:
    """Whether the old value goes into a new one times something, and otherwise by sums alone."""
    view, is_multiplied, seen = walk.view, False, set[str]()
    waiting = [tensor]
    while waiting:
        one = waiting.pop()
        node = split_tensor(one)[0]
        if node in seen or variable not in view.ancestors([node]):
            continue
        seen.add(node)
        if variable_of_tensor(view, walk.known.captured.variables, one) == variable:
            continue
        if view.op(node) == "Mul":
            is_multiplied = True
        elif view.op(node) not in _LINEAR:
            return False
        waiting += view.inputs(node)
    return is_multiplied
