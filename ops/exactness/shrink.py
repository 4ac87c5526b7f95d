"""Shrinks a program that shows a fault, as far as the fault stays.

A program that fails in another way shows another fault. Wrong values cannot be told apart, so any wrong value counts as
the same fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ops.exactness.draft import Program, Statement
from ops.exactness.trial import Outcome

Trial = Callable[[Program], Outcome]


def shrink_program(program: Program, fault: Outcome, trial: Trial) -> tuple[Program, Outcome]:
    """Returns a program with the same fault, from which no statement can be removed, and its outcome.

    Args:
        program: shows the fault.
        fault: its outcome.
        trial: returns the outcome of a program.
    """
    smallest, outcome = program, fault
    for together in (True, False):  # first in large pieces, then one by one
        steps = list(_steps(smallest))
        waiting = [steps] if together else [[step] for step in steps]
        while waiting:
            taken = waiting.pop(0)
            simpler = smallest
            for step in taken:
                simpler = step(simpler)
            if simpler == smallest:
                continue
            tried = trial(simpler)
            if (tried.kind, tried.place) == (fault.kind, fault.place):
                smallest, outcome = simpler, tried
            elif len(taken) > 1:
                half = len(taken) // 2
                waiting = [taken[:half], taken[half:], *waiting]
    return smallest, outcome


def _steps(program: Program) -> Iterator[Callable[[Program], Program]]:
    """Yields simplifications of a program, the last statement first: its removal changes none before it."""
    plain: dict[str, Any] = {"workers": 2, "control_flow_v2": True, "resource": True, "tape": False, "optimizes": True}
    yield lambda one: _opened(replace(one, **plain))
    for statement in reversed(program.statements):
        if statement.plain:
            yield partial(_replace_by_plain, statement=statement)
        elif not statement.is_kept or statement.instead:
            yield partial(_without, statement=statement)


def _without(program: Program, statement: Statement) -> Program:
    """Removes a statement; one in which a name was replaced meanwhile is left to the next round."""
    return program.without(program.statements.index(statement)) if statement in program.statements else program


def _replace_by_plain(program: Program, statement: Statement) -> Program:
    made = replace(statement, text=statement.plain, plain="")
    return replace(program, statements=tuple(made if s == statement else s for s in program.statements))


def _opened(program: Program) -> Program:
    if program.is_open:
        return program
    statements = tuple(
        replace(s, text="n = tf.shape(i0)[0]") if s.text.strip() == "n = rows" else s for s in program.statements
    )
    return replace(program, is_open=True, statements=statements)
