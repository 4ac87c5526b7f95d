"""The values of small matrices that gradients make shapes of, where a vector is made of one."""

from __future__ import annotations

from parallax.analysis.layouts.facts import Value
from parallax.analysis.layouts.step_walk import StepWalk
from parallax.graph.lengths import Length
from parallax.graph.view import split_tensor


def flatten_matrix(step: StepWalk, tensor: str) -> Value | None:
    """The elements of a matrix, row by row, where they are known.

    Args:
        step: the walk.
        tensor: a matrix; known are rows and columns of constants, and vectors side by side.
    """
    view, node = step.view, split_tensor(tensor)[0]
    inputs, op = view.inputs(node), view.op(node)
    if op == "Slice":
        whole, (begin, size) = view.constant(inputs[0]), (step.facts[one].numbers() for one in inputs[1:])
        if whole is None or begin is None or size is None or whole.ndim != 2 or whole.dtype.kind != "i":
            return None
        cut = whole[tuple(slice(a, None if n < 0 else a + n) for a, n in zip(begin, size, strict=True))]
        return tuple(Length.of(int(n)) for n in cut.ravel())
    if op == "ConcatV2":
        return _join_columns(step, node)
    if op != "Transpose" or view.op(split_tensor(inputs[0])[0]) != "Pack":
        return None
    rows = [step.facts[one].value for one in view.inputs(split_tensor(inputs[0])[0])]
    vectors = [row for row in rows if isinstance(row, tuple)]
    is_known = len(vectors) == len(rows) and len(set(map(len, vectors))) == 1
    if (
        not is_known
        or view.nodes[split_tensor(inputs[0])[0]].attr["axis"].i
        or step.facts[inputs[1]].numbers() != [1, 0]
    ):
        return None
    return tuple(length for column in zip(*vectors, strict=True) for length in column)


def _join_columns(step: StepWalk, node: str) -> Value | None:
    """The elements of vectors that have been made columns and stand side by side."""
    view, (*columns, axis) = step.view, step.view.inputs(node)
    makers = [split_tensor(column)[0] for column in columns]
    if step.facts[axis].numbers() != [1] or any(view.op(maker) != "Reshape" for maker in makers):
        return None
    facts = [step.facts[view.inputs(maker)[0]] for maker in makers]
    vectors = [fact.value for fact in facts if isinstance(fact.value, tuple) and fact.rank == 1]
    if len(vectors) < len(columns) or len(set(map(len, vectors))) > 1:
        return None
    return tuple(length for row in zip(*vectors, strict=True) for length in row)
