"""Feeds the one process the workers' random numbers for ops that draw per example, such as dropout.

All workers of a verification draw the same numbers for their local rows, and the one process would draw other numbers
for all rows. So each worker saves its draws of a step, and the one process is fed these, concatenated along the axis
along which its own draw would be longer. Draws inside conditionals and loops can be neither fetched nor fed.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from parallax.analysis.propagation.visit_node import is_random
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.lowering.function_bodies import functions_of
from parallax.base.types import Array
from parallax.graph.control_flow import branches_of
from parallax.report.text import list_first
from parallax.runtime.supervisor.sealed_files import read_file_value, write_value

DRAWS_FILE = "draws.json"


def draws_of(walk: Walk, fetch: str) -> tuple[list[str], list[str]]:
    """The random draws of a step that differ between workers.

    Args:
        walk: in which all workers draw the same.
        fetch: the op that a step runs.

    Returns:
        The tensors that can be fetched; and random ops inside conditionals and loops, whose draws cannot be.
    """
    view, branches, functions = walk.view, branches_of(walk.view), functions_of(walk.view, is_random)
    tensors: list[str] = []
    hidden: list[str] = []
    for node in sorted(view.ancestors([fetch])):
        op = view.op(node)
        hidden += [op for op in map(functions.differing_op, functions.of_node(view.nodes[node])) if op]
        if not is_random(op):
            continue
        local_draws = [t for t in view.outputs(node) if t not in walk.states or walk.states[t].kind != "same"]
        if local_draws and branches[node]:
            hidden.append(node)
        else:
            tensors += local_draws
    return tensors, hidden


def save_draws(folder: Path, tensors: Sequence[str]) -> None:
    """Saves the names of drawn tensors for both sides."""
    write_value(folder / DRAWS_FILE, list(tensors))


def read_draws(folder: Path) -> list[str]:
    """Reads the names that `save_draws` has saved."""
    return read_file_value(folder / DRAWS_FILE, list[str])


def concatenate_draws(files: Iterable[Sequence[Path]], shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Concatenates the workers' draws for the rows of one global batch.

    Args:
        files: of the workers, in the order of their rows; several where stages of the model have parts of the draws.
        shapes: tensor -> shape of the one process's draw.

    Returns:
        Those that concatenate to the shape of the one process's; others are drawn equally on all sides, or cannot be
        concatenated.
    """
    draws_by_tensor = {}
    with ExitStack() as stack:
        parts = [ChainMap(*(stack.enter_context(np.load(file)) for file in of_rows)) for of_rows in files]
        for tensor, shape in shapes.items():
            if not all(tensor in part for part in parts):
                continue
            draws_of_workers = [part[tensor] for part in parts]
            axis = _axis([value.shape for value in draws_of_workers], shape)
            if axis is not None:
                draws_by_tensor[tensor] = np.concatenate(draws_of_workers, axis)
    return draws_by_tensor


def _axis(parts: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> int | None:
    """The axis along which parts concatenate to the full shape; None if there is none."""
    if any(len(part) != len(whole) for part in parts):
        return None
    for axis in range(len(whole)):
        others = {(*part[:axis], *part[axis + 1 :]) for part in parts}
        if others == {(*whole[:axis], *whole[axis + 1 :])} and sum(part[axis] for part in parts) == whole[axis]:
            return axis
    return None


def hidden_text(hidden: Sequence[str]) -> str:
    """The message about values that the one process cannot be fed from the workers, in case of a difference."""
    return (
        f"Random ops and batches in conditionals, loops or functions, and sparse elements: {list_first(hidden)}. The "
        "single process has other values than the workers there, which alone makes results differ. To compare, turn "
        "them off (a dropout rate of 0), or feed them.\n"
    )
