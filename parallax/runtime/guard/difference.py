"""Describes a difference between workers: its size, each worker's value, and the op that writes the variable.

Every route yields equal bits: all-reduces and exchanges return the same bits to all workers, and the same kernels on
the same processors compute the same results from them. Two things may differ: which of several NaN results from a sum,
and the sign of a zero. Hosts with different processors or numbers of cores may round differently; a difference between
them counts when it is larger than ROUNDINGS roundings a step, accumulated as a random walk.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parallax.base.types import Array, Comm, Value
from parallax.report.text import list_first, name_ranks
from parallax.runtime.guard.watched_variables import WatchedVariable

ROUNDINGS = 32
"""So many operations of a step may each round differently on two processors; over steps that is a random walk."""
_NAMED = 5  # further variables that a message lists
_SENT_BYTES = 64 * 2**20
_FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52, "complex64": 23, "complex128": 52}

_REMEDY = (
    "It must be written with the same value on every worker. If the loop assigns or restores it on some workers, do "
    "so on all of them; otherwise the plan is wrong here: please report it, or continue anyway with "
    "Config(guard=False)."
)


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """The largest difference between a worker's value and worker 0's.

    Attributes:
        size: absolute; infinite where the two cannot be subtracted.
        place: index of the element.
        mine: this worker's element.
        first: worker 0's.
        scale: worker 0's largest absolute value.
    """

    size: float
    place: tuple[int, ...]
    mine: str
    first: str
    scale: float


def largest_difference(comm: Comm, pieces: Iterator[Array]) -> ValueDifference | None:
    """Returns the largest difference from worker 0's value; None if there is none. Every worker must call it.

    Two numbers are the same when they are equal or both NaN: which of two zeros or two NaN results from a sum depends
    on the order of addition.

    Args:
        comm: communicator of the workers.
        pieces: the value, in pieces by row.
    """
    largest: ValueDifference | None = None
    scale, first_row = 0.0, 0
    for piece in pieces:
        theirs = _of_worker_0(comm, piece)
        if theirs is None:
            return ValueDifference(float("inf"), (), f"shape {list(piece.shape)}", "another shape", 0.0)
        one = _largest(piece, theirs)
        scale = max(scale, _magnitude(theirs))
        if one is not None and (largest is None or one.size > largest.size):
            place = (one.place[0] + first_row, *one.place[1:]) if one.place else ()
            largest = ValueDifference(one.size, place, one.mine, one.first, 0.0)
        first_row += piece.shape[0] if piece.ndim else 0
    return None if largest is None else ValueDifference(largest.size, largest.place, largest.mine, largest.first, scale)


def is_rounded_type(dtype: str) -> bool:
    """Whether values of a type, by TensorFlow's name, are rounded."""
    return dtype in _FRACTION_BITS


def is_rounding(largest: ValueDifference, dtype: str, steps: int) -> bool:
    """Whether different rounding of the same updates on different processors explains a difference after some steps."""
    bits = _FRACTION_BITS.get(dtype)
    return bits is not None and largest.size <= ROUNDINGS * 2.0**-bits * largest.scale * max(1, steps) ** 0.5


def difference_text(
    one: WatchedVariable,
    when: str,
    values: Sequence[Hashable],
    largest: Sequence[ValueDifference | None],
    wrote: Sequence[tuple[str, str]],
    unequal: str,
    others: Sequence[str],
) -> str:
    """The message about a variable that differs.

    Args:
        one: the variable.
        when: the time of the difference, from `when_text`.
        values: by worker, an identification of its value; None for none.
        largest: by worker, the largest difference from worker 0's value; empty if unknown.
        wrote: op and name of the last writer.
        unequal: about runs that write it and that not all workers made; empty if they made the same.
        others: further variables that differ.
    """
    lines = [
        f"Variable {one.op!r} ({one}) must be equal on all workers, but differs {when}: "
        f"{_groups(values)}.{_size(largest)}"
    ]
    if wrote:
        ops = [f"{op} {node!r}" for op, node in wrote]
        lines.append(f"It is written by {list_first(ops, _NAMED)}.")
    else:
        lines.append("No op of the graph writes it except its initializer.")
    if unequal:
        lines.append(unequal)
    if others:
        lines.append(f"Other variables differ too: {list_first(list(map(repr, others)), _NAMED)}.")
    return " ".join([*lines, _REMEDY])


def when_text(step: int, equal: int, at_end: bool) -> str:
    """The time since which values differ.

    Args:
        step: after which they differ; 0 for the initial values.
        equal: the last one after which they were equal; 0 for the initial values, and -1 for never.
        at_end: whether the sessions have ended.
    """
    when = "at the end" if at_end else f"after step {step}" if step else "from the start, in its initial value"
    if equal < 0:
        return when
    return f"{when} ({f'it was equal after step {equal}' if equal else 'its initial value was equal'})"


def order_text(recent: Sequence[Sequence[tuple[str, str]]], step: int) -> str:
    """The message about workers that took part in different collectives, or in another order.

    Args:
        recent: by worker (fetches, collectives) of its runs since the last comparison.
        step: after which they are compared.
    """
    for number in range(max(map(len, recent))):
        runs = [of_worker[number] if number < len(of_worker) else ("nothing", "") for of_worker in recent]
        other = next((rank for rank, run in enumerate(runs) if run[1] != runs[0][1]), None)
        if other is not None:
            difference = f"worker {other} fetched {runs[other][0]} where worker 0 fetched {runs[0][0]}"
            break
    else:
        difference = "they got here by different runs"
    return (
        f"All workers must take part in the same exchanges in the same order, but up to step {step} {difference}. "
        "Exchanges then combine different steps. Run the same fetches equally often on every worker."
    )


def unequal_runs_text(counts: Sequence[dict[str, int]]) -> str:
    """The message about ops that write a variable and that workers ran unequally often; empty if there are none.

    Args:
        counts: by worker, op -> runs.
    """
    for node in sorted({node for of_worker in counts for node in of_worker}):
        by_rank = [of_worker.get(node, 0) for of_worker in counts]
        other = next((rank for rank, count in enumerate(by_rank) if count != by_rank[0]), None)
        if other is not None:
            return f"Runs of {node!r}: worker 0 made {by_rank[0]}, worker {other} {by_rank[other]}."
    return ""


def _groups(values: Sequence[Hashable]) -> str:
    ranks: dict[Hashable, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    texts: list[str] = []
    for value, of_value in ranks.items():
        what = "none" if value is None else "another" if texts else "one value"
        texts.append(f"{name_ranks(of_value, 'worker')} {'has' if len(of_value) == 1 else 'have'} {what}")
    return ", ".join(texts)


def _size(largest: Sequence[ValueDifference | None]) -> str:
    known = [(one.size, -rank) for rank, one in enumerate(largest) if one is not None]
    if not known:
        return ""
    rank = -max(known)[1]
    one = largest[rank]
    if one is None:
        return ""
    place = f" at {list(one.place)}" if one.place else ""
    by = "" if one.size == float("inf") else f"The largest difference is {one.size:.3g}: "
    return f" {by}{one.first} on worker 0 and {one.mine} on worker {rank}{place}."


def _of_worker_0(comm: Comm, value: Array) -> Value | None:
    """Worker 0's array; None, on all workers, when shapes differ."""
    if len(set(comm.allgather((value.shape, str(value.dtype))))) > 1:
        return None
    if value.dtype == object:  # strings
        return comm.bcast(value)
    buffer = np.ascontiguousarray(value).copy() if comm.Get_rank() == 0 else np.empty(value.shape, value.dtype)
    flat = buffer.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, _SENT_BYTES):
        comm.Bcast(flat[start : start + _SENT_BYTES])
    return buffer


def _largest(mine: Array, first: Array) -> ValueDifference | None:
    if mine.dtype == object or mine.dtype == bool:
        unlike = np.asarray(mine != first)
        size = np.where(unlike, np.inf, 0.0)
    else:
        wide = np.complex128 if np.iscomplexobj(mine) else np.float64
        a, b = mine.astype(wide), first.astype(wide)
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.abs(a - b)
        unlike = np.asarray((mine != first) & ~(np.isnan(a) & np.isnan(b)))
        size = np.where(unlike, np.where(np.isnan(size), np.inf, size), 0.0)
    if not unlike.any():
        return None
    masked = np.where(unlike, size, -1.0)
    place = np.unravel_index(int(np.argmax(masked)), masked.shape) if masked.ndim else ()
    return ValueDifference(float(masked[place]), tuple(int(i) for i in place), f"{mine[place]}", f"{first[place]}", 0.0)


def _magnitude(value: Array) -> float:
    if value.dtype == object or value.dtype == bool or not value.size:
        return 0.0
    wide = np.abs(value.astype(np.complex128 if np.iscomplexobj(value) else np.float64))
    return float(np.max(wide[np.isfinite(wide)], initial=0.0))
