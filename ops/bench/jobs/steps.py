"""Times the steps of several jobs: in each round, every job runs a turn with all others stopped."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.race.field import Entry
from ops.bench.race.place import InLab
from ops.bench.race.rounds import WARM_UP_STEPS, turn_steps
from ops.bench.race.turns import Task

START_LIMIT_S = 200.0


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a measurement.

    Attributes:
        number: number of rounds.
        turn_s: approximate seconds of a turn.
    """

    number: int
    turn_s: float


def step_seconds(place: InLab, tasks: Sequence[Task], rounds: Rounds) -> tuple[tuple[float, ...], ...]:
    """Returns the step times of each job, by round, in seconds.

    Args:
        place: a running lab.
        tasks: one per job; all jobs are started before the first round.
        rounds: number and length of the turns.

    Raises:
        NotRunning: a job did not start, or did not finish.
    """
    with contextlib.ExitStack() as ends:
        entries, steps = [], []
        seconds: list[list[float]] = []
        for task in tasks:
            entry = ends.enter_context(Entry(place, task))
            warm = entry.take_turn(WARM_UP_STEPS, START_LIMIT_S)
            step_s = statistics.median(warm.step_s[WARM_UP_STEPS // 2 :])
            entries.append(entry)
            steps.append(turn_steps(step_s, rounds.turn_s))
            seconds.append([])
        for _ in range(rounds.number):
            for entry, number, own in zip(entries, steps, seconds, strict=True):
                own.append(entry.take_turn(number, START_LIMIT_S).turn.step_s)
        for entry in entries:
            entry.finish()
    return tuple(map(tuple, seconds))
