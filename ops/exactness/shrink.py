"""Makes a program that shows a fault as short as it can be while the fault stays.

A program that fails otherwise shows another fault. Among wrong values there is no telling faults apart but by what is
left of the program, so any wrong value counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ops.exactness.draft import Program
from ops.exactness.trial import Outcome

Trial = Callable[[Program], Outcome]


def shrunk(program: Program, fault: Outcome, trial: Trial) -> tuple[Program, Outcome]:
    """A program with the same fault, from which no statement can be left out, and its outcome.

    Args:
        program: what shows the fault.
        fault: its outcome.
        trial: what comes of a program.
    """
    found = program, fault
    while True:
        for simpler in _simpler(found[0]):
            outcome = trial(simpler)
            if _is_the_fault(outcome, fault):
                found = simpler, outcome
                break
        else:
            return found


def _is_the_fault(outcome: Outcome, fault: Outcome) -> bool:
    return (outcome.kind, outcome.place) == (fault.kind, fault.place)


def _simpler(program: Program) -> Iterator[Program]:
    """Programs with something less, the largest steps first."""
    for plain in ({"workers": 2}, {"control_flow_v2": True}, {"resource": True}, {"tape": False}, {"optimizes": True}):
        if any(getattr(program, name) != value for name, value in plain.items()):
            yield replace(program, **plain)
    if not program.is_open:
        yield _opened(program)
    for number in reversed(range(len(program.statements))):
        statement = program.statements[number]
        if not statement.is_kept or statement.instead:
            yield program.without(number)


def _opened(program: Program) -> Program:
    statements = tuple(
        replace(s, text="n = tf.shape(i0)[0]") if s.text.strip() == "n = rows" else s for s in program.statements
    )
    return replace(program, is_open=True, statements=statements)
