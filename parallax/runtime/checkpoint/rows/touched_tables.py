"""Tracks the touched rows of a job's tables: the variables that record them, their reset, and the next increment."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parallax.base.types import Comm, Session
from parallax.runtime.checkpoint.format.links import Header
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.contents import Contents, TouchedTable
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.variable_rows import ReadableVariable, StoredVariable
from parallax.transform.passes.touched_rows import RowMemory


@dataclass(frozen=True, slots=True)
class Marks:
    """The records of the touched rows of all tables, in this worker's graph.

    Attributes:
        tables: one for each table, which is read like a variable.
        variables: for each, the ops of the variables whose rows it records.
        clear: ops that reset all records, where this worker runs them.
    """

    tables: tuple[StoredVariable, ...] = ()
    variables: tuple[tuple[str, ...], ...] = ()
    clear: tuple[str, ...] = ()

    def forget(self, session: Session) -> None:
        """Resets all records; every worker must call it before any worker trains."""
        if self.clear:
            session.run(self.clear)

    def describe(self, touched: RowMemory, subject: str = "Increments contain") -> str:
        """Describes the contents of increments, or of another subject, and why they are not smaller."""
        by_row = {op for ops in self.variables for op in ops}
        text = (
            f"{subject} the touched rows of {', '.join(sorted(by_row)) or 'no variable'}, and all other variables in "
            "full."
        )
        reasons: dict[str, list[str]] = {}
        for op, reason in touched.whole:
            reasons.setdefault(reason, []).append(op)
        return " ".join([text, *(f"{', '.join(ops)} are saved in full: {reason}." for reason, ops in reasons.items())])

    def contents(self, everything: Sequence[ReadableVariable], header: Header | None) -> Contents:
        """Returns the contents of a checkpoint.

        Args:
            everything: the variables, then `tables`: live, or of an image.
            header: the checkpoint's.
        """
        number = len(everything) - len(self.tables)
        variables, marks = everything[:number], everything[number:]
        if header is None or not header.base:
            return Contents(variables, (), header)
        by_op = {one.stored.op: one for one in variables}
        tables = [
            TouchedTable(one, tuple(by_op[op] for op in ops))  # type: ignore[misc]  # all of them have rows
            for one, ops in zip(marks, self.variables, strict=True)
        ]
        touched = {op for ops in self.variables for op in ops}
        return Contents([one for one in variables if one.stored.op not in touched], tables, header)


def build_marks(touched: RowMemory, stored: Sequence[CheckpointEntry], places: Places, comm: Comm) -> Marks:
    """Adds the ops that read touched rows to the default graph, a worker's.

    Args:
        touched: the records, from the transform.
        stored: the variables in checkpoints.
        places: the placement of their rows.
        comm: communicator of the workers.
    """
    by_op = {one.op: one for one in stored}
    known = {op for table in touched.tables for op in _find_aligned(table.variables, by_op)}
    parts_left_out = {one.key for one in stored if one.op not in known}  # a key is written by row, or in full
    spread, partitions, absent = dict(places.spread), dict(places.partitions), set(places.absent)
    marks, variables, clear = [], [], []
    for table in touched.tables:
        ops = tuple(op for op in table.variables if op in known and by_op[op].key not in parts_left_out)
        if not ops:
            continue
        first, name = by_op[ops[0]], table.marks or table.partitions[0]
        marks.append(CheckpointEntry(name, name, "bool", 1, (first.rows,), (first.rows,), (0,), is_part=False))
        variables.append(ops)
        if table.partitions:
            partitions[name] = table.partitions
            absent.add(name)
        elif first.op in spread:
            spread[name] = spread[first.op]
        clear += [table.clear] if table.clear else []
        clear += table.clear_partitions if comm.Get_rank() == 0 else ()
    tables = build_access(
        tuple(marks), replace(places, spread=spread, partitions=partitions, absent=frozenset(absent)), comm
    )
    return Marks(tables, tuple(variables), tuple(clear))


def _find_aligned(ops: Sequence[str], stored: Mapping[str, CheckpointEntry]) -> list[str]:
    """Of variables with the same row numbers, those whose rows begin at the same row in checkpoints."""
    stored_ops = [op for op in ops if op in stored]
    return [op for op in stored_ops if stored[op].offset[0] == stored[stored_ops[0]].offset[0]]


@dataclass
class Succession:
    """The order of checkpoints: the next is a full one, or an increment on the last. Equal on all workers.

    Attributes:
        whole_every: one of so many checkpoints is full.
        last: the header of the last; None if nothing can follow it.
    """

    whole_every: int
    last: Header | None = None

    def following(self, step: int, comm: Comm, must_be_whole: bool) -> Header | None:
        """Returns the header of the next checkpoint; None if checkpoints have none. Every worker must call it."""
        if self.whole_every == 1:
            return None
        new_id, last = str(comm.bcast(uuid.uuid4().hex)), self.last
        if must_be_whole or last is None or last.number + 1 >= self.whole_every:
            return Header(new_id, step=step)
        return Header(new_id, last.base or last.id, last.id, step, last.number + 1)

    def note_failure(self) -> None:
        """Records that the last could not be written, which loses its touched rows: the next is full."""
        self.last = None
