"""Finds the variables that a traced step writes, and those of metrics that add up over workers.

Each worker keeps a part of a variable that steps only add to, such as the counts of Keras's own metrics; no step sends
it. A variable that a step overwrites, such as a largest value, is replicated like the variables of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from parallax.base.errors import GraphError
from parallax.base.types import ConcreteFunction, Graph, Handle, Operation, Tensor, Variable
from parallax.functions.tracing.traced_values import handle_of

_RETURNED = (
    "The step returns a value computed from {name!r}, of which each worker holds only a part. Do not return it, and "
    "ask after the step: the metric.result() of the script covers all workers."
)
_ADDS = ("AddV2", "Add", "AddN", "Identity", "Cast", "Reshape", "EnsureShape")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
_SCATTERS = ("ResourceScatter", "ResourceStridedSlice")
_ALSO_WRITTEN = (
    "All steps must update {name!r} in the same way, but one step adds to it or only reads it, so each worker keeps a "
    "part of it, and another step overwrites it by {op}. Use a separate metric in each step, or one kind of update."
)


def find_sums(graph: Graph, variables: Iterable[Variable]) -> list[Variable]:
    """The variables that a function only adds to, or does not write.

    Args:
        graph: of a traced function, or of one that is being traced.
        variables: tf.Variables.
    """
    inner_by_handle = {id(outer): inner for outer, inner in graph.captures}
    return [one for one in variables if not _find_other_write(inner_by_handle.get(id(handle_of(one))))]


def check_sums(graphs: Iterable[Graph], sums: Iterable[Variable]) -> None:
    """Refuses steps of which one overwrites a variable that workers keep parts of for another.

    Args:
        graphs: of the traced steps.
        sums: the tf.Variables that `find_sums` has returned for any of the steps.

    Raises:
        GraphError: a step overwrites one of them.
    """
    sums = list(sums)
    for graph in graphs:
        inner_by_handle = {id(outer): inner for outer, inner in graph.captures}
        for one in sums:
            if op := _find_other_write(inner_by_handle.get(id(handle_of(one)))):
                raise GraphError(_ALSO_WRITTEN.format(name=one.name.split(":")[0], op=op))


def find_written(graph: Graph, variables: Iterable[Variable]) -> list[Variable]:
    """The variables that a traced function may write: all that it passes to an op other than a read.

    Args:
        graph: of the function.
        variables: tf.Variables.
    """
    inner_by_handle = {id(outer): inner for outer, inner in graph.captures}
    captured = [(one, inner_by_handle.get(id(handle_of(one)))) for one in variables]
    return [
        one
        for one, handle in captured
        if handle is not None and any(op.type not in _READS for op in handle.consumers())
    ]


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


def _find_other_write(handle: Handle | None) -> str:
    """The op by which a function writes a variable other than by adding to it; empty if there is none."""
    for op, used in () if handle is None else _list_uses(handle):
        if op.type == "AssignVariableOp" and (other := _find_other_op(op.inputs[1], used)):
            return other
        if op.type.startswith(_SCATTERS) and op.outputs == [] and not op.type.endswith(("Add", "Sub")):
            return str(op.type)
    return ""


def _list_uses(handle: Handle) -> Iterator[tuple[Operation, Handle]]:
    """The ops with a variable as an input, and the variable in their function: also in functions that are called."""
    for op in handle.consumers():
        yield op, handle
        place = next(number for number, one in enumerate(op.inputs) if one is handle)
        for name in _called_functions(op):
            body = getattr(op.graph._get_function(name), "graph", None)
            if body is not None:  # its inputs are the op's last ones: a conditional has a predicate first
                yield from _list_uses(body.inputs[place - len(op.inputs) + len(body.inputs)])


def _called_functions(op: Operation) -> Iterator[str]:
    """The names of the functions that an op calls."""
    for value in op.node_def.attr.values():
        yield from (one.name for one in (value.func, *value.list.func) if one.name)


def _find_other_op(value: Tensor, handle: Handle) -> str:
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
