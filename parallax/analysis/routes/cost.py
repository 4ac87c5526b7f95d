"""Formulas for the bytes and rounds of each route, per worker and step.

W workers, u touched rows of a batch, k batches an update, u' touched rows of all of them, width d, e bytes an element,
i bytes an id, w bytes the whole variable; where an update reads s sums of functions of gradient rows, they are s d
wide. Every figure is what one worker sends for an update, and it receives as much; for servers it is the sum of both
directions between a worker and all servers. Simplified: all workers touch equally many rows, and owners are equally
loaded. For any other pattern of owners (VariablePlan.owner_pattern) a figure is the mean over the workers. With half
precision on the wire, e and w are those of the type on the wire (parallax/plans/half_precision.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from parallax.graph.spec import VariableSpec
from parallax.plans.half_precision import element_bytes, rows_travel_as, sums_travel_as
from parallax.plans.plan import ALLGATHER, ALLREDUCE, ALLTOALL, PS, RouteCost


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one variable that one worker sends or receives in a step.

    Attributes:
        pulled: distinct rows of each batch, summed over batches.
        pushed: distinct rows of all batches together, whose gradients are sent.
        batches: the number of batches.
    """

    pulled: int
    pushed: int
    batches: int = 1


def count_step_rows(touched: int, batches: int = 1, union: float | None = None) -> StepRows:
    """The rows of a step.

    Args:
        touched: distinct rows of a batch.
        batches: of a step.
        union: distinct rows of all its batches; None where no two share any.
    """
    pushed = touched * batches if union is None else math.ceil(union)
    return StepRows(touched * batches, pushed, batches)


def allreduce_cost(variable: VariableSpec, workers: int, wire: str | None = None) -> RouteCost:
    """A ring all-reduce sends 2(W-1)/W of the variable (Patarasuk and Yuan 2009)."""
    return RouteCost(ALLREDUCE, 2 * (workers - 1) * reduced_bytes(variable, wire) // workers, 1)


def allgather_cost(variable: VariableSpec, workers: int, rows: StepRows | None, wire: str | None = None) -> RouteCost:
    """Every worker's coalesced rows and ids reach every other: (W-1) u' (i + sde) around a ring."""
    if rows is None:
        return RouteCost(ALLGATHER, None, 1)
    row_bytes = id_bytes(variable, workers) + pushed_row_bytes(variable, wire)
    return RouteCost(ALLGATHER, (workers - 1) * rows.pushed * row_bytes, 1)


def alltoall_cost(variable: VariableSpec, workers: int, rows: StepRows | None, wire: str | None = None) -> RouteCost:
    """Ids out and rows back with each batch, gradients out, each to the owner: (W-1)/W (k u (i + de) + u' sde).

    For one batch the owner remembers the requested rows; for several the ids of gradients are sent too, in an
    additional round.
    """
    rounds = 3
    if rows is None:
        return RouteCost(ALLTOALL, None, rounds)
    of_id, of_row = id_bytes(variable, workers), sent_row_bytes(variable, wire)
    pushed_bytes = rows.pushed * (pushed_row_bytes(variable, wire) + (of_id if rows.batches > 1 else 0))
    moved = rows.pulled * (of_id + of_row) + pushed_bytes
    rounds = 2 * rows.batches + (2 if rows.batches > 1 else 1)
    return RouteCost(ALLTOALL, (workers - 1) * moved // workers, rounds)


def ps_cost(
    variable: VariableSpec,
    workers: int,
    rows: StepRows | None,
    by_row: bool,
    has_fronts: bool = False,
    wire: str | None = None,
) -> RouteCost:
    """The bytes that one worker sends to servers, and receives from them.

    By row: ids out and rows back with each batch, gradient rows with their ids out: k u (i + de) + u' (8 + sde), for
    accumulators number rows in 8 bytes. Whole: the gradient out, the new value back: 2w, never halved. All of it
    crosses from one process to another, even where both are on one host.

    Where every server has a front (parallax/plans/plan.py), rows go between workers, in three additional rounds, and
    the bytes that leave a host are those of `alltoall`. Traffic between a front and its server stays on the host,
    uncounted.
    """
    if not by_row:
        return RouteCost(PS, 2 * variable.value_bytes, 2)
    batches = 1 if rows is None else rows.batches
    rounds = 2 * batches + 2 if not has_fronts else 4 * batches + (4 if batches > 1 else 3)
    if rows is None:
        return RouteCost(PS, None, rounds)
    if has_fronts:
        return RouteCost(PS, alltoall_cost(variable, workers, rows, wire).sent_bytes, rounds)
    of_id, of_row = id_bytes(variable, workers), sent_row_bytes(variable, wire)
    sent = rows.pulled * (of_id + of_row) + rows.pushed * (8 + pushed_row_bytes(variable, wire))
    return RouteCost(PS, sent, rounds)


def id_bytes(variable: VariableSpec, workers: int) -> int:
    """Ids travel as int32 where the table's rows allow."""
    return 4 if -(-variable.rows // workers) * workers < 2**31 else 8


def sent_row_bytes(variable: VariableSpec, wire: str | None) -> int:
    """Bytes of one row on the wire, without its id."""
    return variable.width * element_bytes(variable.dtype, variable.dtype_bytes, rows_travel_as(variable.dtype, wire))


def pushed_row_bytes(variable: VariableSpec, wire: str | None) -> int:
    """Bytes of the gradient of one row on the wire, without its id."""
    return variable.sums * sent_row_bytes(variable, wire)


def reduced_bytes(variable: VariableSpec, wire: str | None) -> int:
    """Bytes of a full gradient that an all-reduce sums.

    A sparse gradient is densified first and has an additional column, which counts the workers that touched a row.
    """
    elements = math.prod(variable.shape) * variable.sums + (variable.rows if variable.has_slices else 0)
    return elements * element_bytes(variable.dtype, variable.dtype_bytes, sums_travel_as(variable.dtype, wire))
