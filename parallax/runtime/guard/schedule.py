"""Decides after which steps workers are compared: 1, 2, 4, 8, and then so that it costs next to nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

DOUBLING_UP_TO = 8
"""So many steps are compared whatever it costs: most faults show in the first."""
PERIOD_S = 30.0
"""Steps between two comparisons double until they take this long."""
SHARE = 0.005
"""The most of a job's time that comparisons after those first ones may bring their sum to."""


@dataclass(frozen=True, slots=True)
class Times:
    """What is known after a comparison; equal on all workers, who must go on to the same next one.

    Attributes:
        spent_s: seconds of all comparisons so far.
        elapsed_s: since the first step.
        step_s: seconds of a step, with what the loop does between.
    """

    spent_s: float
    elapsed_s: float
    step_s: float


def next_check(step: int, times: Times) -> int:
    """The step after which workers are compared next, when they have been after `step`."""
    if step < DOUBLING_UP_TO:
        return 2 * step
    step_s = max(times.step_s, 1e-6)
    steps = min(step, math.ceil(PERIOD_S / step_s))
    affordable = math.ceil((times.spent_s / SHARE - times.elapsed_s) / step_s)
    return step + max(1, steps, affordable)
