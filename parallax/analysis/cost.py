"""Bytes and rounds of each route, per worker and step.

W workers, u touched rows, width d, e bytes an element, i bytes an id, w bytes the whole variable. Every figure is what
one worker sends; it receives as many. Simplified: all workers touch equally many rows, and owners are equally loaded.
By another pattern of owners (plan.VariablePlan.owner_pattern) the same is the mean over the workers. With half
precision on the wire e and w are those of what travels (parallax/wire.py).
"""

from __future__ import annotations

import math

from parallax.plan import ALLGATHER, ALLREDUCE, ALLTOALL, PS, RouteCost
from parallax.spec import VariableSpec
from parallax.wire import element_bytes, rows_travel_as, sums_travel_as


def allreduce_cost(variable: VariableSpec, workers: int, wire: str | None = None) -> RouteCost:
    """A ring all-reduce sends 2(W-1)/W of the variable (Patarasuk and Yuan 2009)."""
    return RouteCost(ALLREDUCE, 2 * (workers - 1) * reduced_bytes(variable, wire) // workers, 1)


def allgather_cost(
    variable: VariableSpec, workers: int, touched_rows: int | None, wire: str | None = None
) -> RouteCost:
    """Every worker's merged rows and ids reach every other: (W-1) u (i + de) around a ring."""
    if touched_rows is None:
        return RouteCost(ALLGATHER, None, 1)
    row_bytes = id_bytes(variable, workers) + sent_row_bytes(variable, wire)
    return RouteCost(ALLGATHER, (workers - 1) * touched_rows * row_bytes, 1)


def alltoall_cost(variable: VariableSpec, workers: int, touched_rows: int | None, wire: str | None = None) -> RouteCost:
    """Ids out, rows back, gradients out, each to the owner: (W-1)/W u (i + 2de)."""
    if touched_rows is None:
        return RouteCost(ALLTOALL, None, 3)
    row_bytes = id_bytes(variable, workers) + 2 * sent_row_bytes(variable, wire)
    return RouteCost(ALLTOALL, (workers - 1) * touched_rows * row_bytes // workers, 3)


def ps_cost(
    variable: VariableSpec,
    workers: int,
    touched_rows: int | None,
    by_row: bool,
    has_fronts: bool = False,
    wire: str | None = None,
) -> RouteCost:
    """What one worker sends to servers, and the servers to it.

    By row: ids out, rows back, gradient rows with their ids out: u (i + 8 + 2de), for accumulators number rows in 8
    bytes. Whole: the gradient out, the new value back: 2w, never halved. All of it crosses from one process to another,
    also where both are on one host.

    Where every server has a front (parallax/plan.py), rows go between workers, in three rounds more, and as by
    `alltoall` (W-1)/W u (i + 2de) leave a host. What a front and its server send each other stays there, uncounted.
    """
    if not by_row:
        return RouteCost(PS, 2 * variable.value_bytes, 2)
    rounds = 7 if has_fronts else 4
    if touched_rows is None:
        return RouteCost(PS, None, rounds)
    if has_fronts:
        return RouteCost(PS, alltoall_cost(variable, workers, touched_rows, wire).sent_bytes, rounds)
    row_bytes = id_bytes(variable, workers) + 8 + 2 * sent_row_bytes(variable, wire)
    return RouteCost(PS, touched_rows * row_bytes, 4)


def id_bytes(variable: VariableSpec, workers: int) -> int:
    """Ids travel as int32 where the table's rows allow."""
    return 4 if -(-variable.rows // workers) * workers < 2**31 else 8


def sent_row_bytes(variable: VariableSpec, wire: str | None) -> int:
    """Bytes of one row on the wire, without its id."""
    return variable.width * element_bytes(variable.dtype, variable.dtype_bytes, rows_travel_as(variable.dtype, wire))


def reduced_bytes(variable: VariableSpec, wire: str | None) -> int:
    """Bytes of a whole gradient that an all-reduce adds up.

    A sparse gradient is made dense first and carries one more column, which counts who touched a row.
    """
    elements = math.prod(variable.shape) + (variable.rows if variable.has_slices else 0)
    return elements * element_bytes(variable.dtype, variable.dtype_bytes, sums_travel_as(variable.dtype, wire))
