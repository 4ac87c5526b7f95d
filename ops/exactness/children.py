"""Tries programs in child processes, which are replaced regularly: TensorFlow keeps memory of every graph that it ran.

If a child ends by itself or reports nothing for long, its current program has a fault. The next child continues with
the following program.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ops.exactness.draft import Program
from ops.exactness.grammar import program
from ops.exactness.trial import ROUTES, Outcome, try_program

GROUP = 250
"""Programs per child. A program leaks about 2 MB, and a child takes 5 s to start."""
_SILENT_S = 300.0
"""The longest program takes a few seconds; this limit is for one that waits for ever."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Which programs are tried, and how.

    Attributes:
        seed: of the programs.
        workers: number for every program; None draws it.
        routes: names separated by commas; `all`; or `one`, in turn.
        claims: whether claims about single tensors are checked too.
        layouts: as in Config.
    """

    seed: int
    workers: int | None
    routes: str
    claims: bool
    layouts: bool | None = None

    def routes_of(self, number: int) -> tuple[str, ...]:
        """Returns the routes by which a program is tried."""
        if self.routes == "all":
            return ROUTES
        if self.routes == "one":
            return (ROUTES[(self.seed + number) % len(ROUTES)],)
        return tuple(self.routes.split(","))

    def program(self, number: int) -> Program:
        """Returns the program of a number."""
        return program(self.seed, number, self.workers)

    def outcomes(self, number: int) -> dict[str, Outcome]:
        """Tries a program; returns its outcomes by route."""
        source = self.program(number).source()
        return try_program(source, self.routes_of(number), claims=self.claims, layouts=self.layouts)


Found = tuple[int, dict[str, Outcome]]
"""A program's number, and its outcomes by route."""


def run_trials(trials: Trials, numbers: Sequence[int], processes: int, until: float) -> Iterator[Found]:
    """Yields each program's outcomes once they are known. A few programs with `processes` = 1 run in this process.

    Args:
        trials: how programs are tried.
        numbers: of the programs.
        processes: number of child processes at a time.
        until: no program starts later than this, in seconds of time.time().
    """
    if processes > 1 or len(numbers) > GROUP:
        yield from _run_in_children(trials, numbers, processes, until)
        return
    for number in numbers:
        if time.time() > until:
            return
        yield number, trials.outcomes(number)


@dataclass(slots=True)
class _Child:
    process: Any
    numbers: list[int]
    heard: float


def _run_in_children(trials: Trials, numbers: Sequence[int], processes: int, until: float) -> Iterator[Found]:
    groups = [list(numbers[first : first + GROUP]) for first in range(0, len(numbers), GROUP)]
    children: dict[Connection, _Child] = {}
    while children or (groups and time.time() < until):
        while groups and len(children) < processes and time.time() < until:
            connection, child = _start_child(trials, groups.pop(0), until)
            children[connection] = child
        wait(list(children), timeout=_SILENT_S / 10)
        for connection, child in [(one, child) for one, child in children.items() if one.poll()]:
            child.heard = time.time()
            try:
                number, outcomes = connection.recv()
            except EOFError:
                child.process.join()
                del children[connection]
                if child.numbers and time.time() < until:
                    yield child.numbers[0], {"": _lost(f"its process ended with {child.process.exitcode}")}
                    groups.insert(0, child.numbers[1:])
                continue
            child.numbers.remove(number)
            yield number, outcomes
        for child in children.values():
            if time.time() - child.heard > _SILENT_S:
                child.process.kill()  # its connection then ends, which is handled as above


def _start_child(trials: Trials, numbers: list[int], until: float) -> tuple[Connection, _Child]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_try_all, args=(trials, numbers, until, theirs), daemon=True)
    process.start()
    theirs.close()
    return ours, _Child(process, list(numbers), time.time())


def _try_all(trials: Trials, numbers: list[int], until: float, connection: Connection) -> None:
    """Runs in a child: tries programs and sends their outcomes."""
    for number in numbers:
        if time.time() > until:
            break
        connection.send((number, trials.outcomes(number)))
    connection.close()


def _lost(message: str) -> Outcome:
    return Outcome("foreign", message, "its process")
