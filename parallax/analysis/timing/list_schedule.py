"""Feasible schedules of a step's activities: each free resource starts the most urgent activity that can begin.

The most urgent activity is the one at the head of the longest path (list scheduling; Graham 1966, "Bounds for certain
multiprocessing anomalies"). Overlapping steps are pipelined, two at most at one time, by two rules: earlier steps
first, and the longest path over all steps first; the rule with the shorter period wins. The period is measured in the
middle of several steps, not proven: a schedule may catch up in one interval on work that it has deferred.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parallax.analysis.timing.intervals import Interval, length, measure_overlap, union
from parallax.analysis.timing.schedule import StepActivities

_STEPS = 8
_FIRST, _LAST = 1, 5
"""The period is measured from the end of the first of these steps to the end of the last: without steps that find
resources idle, and without steps that no later ones overlap.
"""

_Key = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ListSchedule:
    """A schedule.

    Attributes:
        step_s: of one step, or from one step to the next.
        busy: by resource, its busy intervals, in the seconds that were examined.
        begins: of a step alone, activity -> when it begins.
    """

    step_s: float
    busy: Mapping[str, tuple[Interval, ...]]
    begins: Mapping[str, float] = field(default_factory=dict)

    def hidden_frac(self, device: str) -> float | None:
        """The fraction of the time of all other resources that overlaps with the device's; None where there is none."""
        others = [one for resource, busy in self.busy.items() if resource != device for one in busy]
        return hidden_frac(others, self.busy.get(device, ()))


def hidden_frac(exchanges: Iterable[Interval], computing: Iterable[Interval]) -> float | None:
    """The fraction of exchange time that overlaps with compute; None without exchanges."""
    exchanges = list(exchanges)
    exchanged = length(exchanges)
    return measure_overlap(exchanges, computing) / exchanged if exchanged else None


def schedule_one_step(step: StepActivities) -> ListSchedule:
    """A schedule of one step."""
    steps = _Steps(step, 1)
    begins = steps.find_begins([(0.0, -far) for far in steps.urgency()])
    begin_of = dict(zip(step.names, begins, strict=False))  # the last one is the end of the step
    return ListSchedule(max(steps.ends(begins), default=0.0), steps.busy(begins, 0.0, float("inf")), begin_of)


def schedule_overlapping_steps(step: StepActivities, least_s: float = 0.0) -> ListSchedule:
    """A schedule of overlapping steps.

    Args:
        step: its activities.
        least_s: a lower bound of every period (`bound_period_seconds`), below which a measured interval may fall by
            catching up.
    """
    steps = _Steps(step, _STEPS)
    urgency, size = steps.urgency(), steps.size
    schedules: list[ListSchedule] = []
    for by_step in (True, False):
        keys = [(float(by_step and place // size), -far) for place, far in enumerate(urgency)]
        begins = steps.find_begins(keys)
        ends = steps.ends(begins)
        first_s, last_s = (max(ends[: size * (number + 1)], default=0.0) for number in (_FIRST, _LAST))
        schedules.append(ListSchedule((last_s - first_s) / (_LAST - _FIRST), steps.busy(begins, first_s, last_s)))
    best = min(schedules, key=lambda one: one.step_s)
    return ListSchedule(max(best.step_s, least_s), best.busy)


class _Steps:
    """Several steps as one: activity k of step s has the number s (n + 1) + k, and the last number is that of its end.

    At most two steps are in flight, as when runs overlap (worker/session/overlapping.py): each begins when the second
    one before it has ended.
    """

    def __init__(self, step: StepActivities, count: int) -> None:
        users = step.users()
        self.size = size = len(step.names) + 1
        self._seconds = [*map(float, step.seconds), 0.0] * count
        self._resources = (*step.resources, None) * count
        self._users: list[list[int]] = []
        starts = [place for place, needs in enumerate(step.needs) if not needs]
        for first in range(0, count * size, size):
            self._users += [[first + user for user in successors or (size - 1,)] for successors in users]
            self._users.append([first + 2 * size + one for one in starts if first + 2 * size < count * size])
            for a, b in step.borders if first + size < count * size else ():
                self._users[first + a].append(first + size + b)

    def urgency(self) -> list[float]:
        """The longest path from the beginning of each activity."""
        far = [0.0] * len(self._users)
        for one in reversed(range(len(far))):
            far[one] = self._seconds[one] + max((far[user] for user in self._users[one]), default=0.0)
        return far

    def find_begins(self, keys: list[_Key]) -> list[float]:
        """The begin of each activity, where each resource takes the smallest key of those that can begin."""
        missing = [0] * len(self._users)
        for users in self._users:
            for user in users:
                missing[user] += 1
        begins = [0.0] * len(missing)
        waiting: dict[str, list[tuple[_Key, int]]] = {name: [] for name in self._resources if name is not None}
        free = dict.fromkeys(waiting, True)
        running: list[tuple[float, int]] = []
        ready, now = [one for one, count in enumerate(missing) if not count], 0.0

        def begin(one: int) -> None:
            begins[one] = now
            heapq.heappush(running, (now + self._seconds[one], one))

        while True:
            for one in ready:
                resource = self._resources[one]
                if resource is None:
                    begin(one)
                else:
                    heapq.heappush(waiting[resource], (keys[one], one))
            if not running or running[0][0] > now:  # all activities that end now have ended
                for resource in waiting:
                    if free[resource] and waiting[resource]:
                        free[resource] = False
                        begin(heapq.heappop(waiting[resource])[1])
            if not running:
                return begins
            now, over = heapq.heappop(running)
            free |= {} if self._resources[over] is None else {str(self._resources[over]): True}
            ready = []
            for user in self._users[over]:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)

    def ends(self, begins: list[float]) -> list[float]:
        """The end of each activity."""
        return [begin + seconds for begin, seconds in zip(begins, self._seconds, strict=True)]

    def busy(self, begins: list[float], first_s: float, last_s: float) -> dict[str, tuple[Interval, ...]]:
        """The busy intervals of each resource between two times."""
        intervals_by_resource: dict[str, list[Interval]] = {name: [] for name in self._resources if name is not None}
        for begin, end, resource in zip(begins, self.ends(begins), self._resources, strict=True):
            if resource is not None:
                intervals_by_resource[resource].append((max(begin, first_s), min(end, last_s)))
        return {name: tuple(union(intervals)) for name, intervals in intervals_by_resource.items()}
