"""Checks that a metric's state is a sum over examples, which adds up over workers, and that no step returns it."""

from __future__ import annotations

from collections.abc import Sequence

from parallax.base.errors import GraphError
from parallax.base.types import ConcreteFunction, Handle, Operation, Tensor, Variable
from parallax.functions.tracing.traced_values import handle_of

_RETURNED = (
    "The step returns a value computed from {name!r}, of which each worker holds only a part. Do not return it, and "
    "ask after the step: the metric.result() of the script covers all workers."
)
_ADDS = ("AddV2", "Add", "AddN", "Identity", "Cast", "Reshape", "EnsureShape")
_NOT_A_SUM = (
    "{name!r} is written by {op} instead of being added to, but each worker's metrics count only its rows of the "
    "batch, and are summed over the workers. Keep sums and counts in a metric, and compute in its `result`; or "
    "compute other values in a callback's on_epoch_end, or with `evaluate` after `fit`."
)


def check_sums(concrete: ConcreteFunction, variables: Sequence[Variable]) -> None:
    """Refuses a step that writes a metric's variable other than by adding to it.

    Args:
        concrete: the traced step.
        variables: the tf.Variables of metrics.

    Raises:
        GraphError: the step does so.
    """
    variable_by_handle = {id(handle_of(one)): one for one in variables}
    for outer, inner in concrete.graph.captures:
        if id(outer) not in variable_by_handle:
            continue
        for op in inner.consumers():
            if op.type == "AssignVariableOp" and (other := _no_addition(op.inputs[1], inner)):
                raise GraphError(_NOT_A_SUM.format(name=variable_by_handle[id(outer)].name.split(":")[0], op=other))


def check_returned(concrete: ConcreteFunction, variables: Sequence[Variable], results: Sequence[Tensor]) -> None:
    """Refuses a step that returns a value computed from variables of which each worker has a part.

    Args:
        concrete: the traced step.
        variables: the tf.Variables.
        results: what it returns, tensors of its graph.

    Raises:
        GraphError: the step does so.
    """
    variable_by_handle = {id(handle_of(one)): one for one in variables}
    for outer, inner in concrete.graph.captures:
        if id(outer) in variable_by_handle and any(_is_computed_of(one, inner) for one in results):
            raise GraphError(_RETURNED.format(name=variable_by_handle[id(outer)].name.split(":")[0]))


def _no_addition(value: Tensor, handle: Handle) -> str:
    """The op by which a variable's old value enters the new one other than by addition; empty if there is none."""
    while not _reads(value.op, handle):
        before = [one for one in value.op.inputs if _is_computed_of(one, handle)]
        if len(before) != 1 or (value.op.type not in _ADDS and not _is_first_of_difference(value.op, before[0])):
            return str(value.op.type)
        value = before[0]
    return ""


def _is_first_of_difference(op: Operation, before: Tensor) -> bool:
    return op.type == "Sub" and op.inputs[0] is before


def _reads(op: Operation, handle: Handle) -> bool:
    return op.type == "ReadVariableOp" and op.inputs[0] is handle


def _is_computed_of(tensor: Tensor, handle: Handle) -> bool:
    seen, waiting = {tensor.op.name}, [tensor.op]
    while waiting:
        op = waiting.pop()
        if _reads(op, handle):
            return True
        before = [one.op for one in op.inputs if one.op.name not in seen]
        seen.update(one.name for one in before)
        waiting += before
    return False
