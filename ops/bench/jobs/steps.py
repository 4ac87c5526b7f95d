"""Jobs whose steps are timed side by side: each has its turn while all others are stopped, round by round."""

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
    """How steps are timed.

    Attributes:
        number: of rounds.
        turn_s: about how long a turn is.
    """

    number: int
    turn_s: float


def step_seconds(place: InLab, tasks: Sequence[Task], rounds: Rounds) -> tuple[tuple[float, ...], ...]:
    """Seconds of a step in each round, of each job.

    Args:
        place: a lab, which is up.
        tasks: of the jobs; all are started before the first round.
        rounds: how often and how long each has its turn.

    Raises:
        NotRunning: a job did not start, or did not come to its end.
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
