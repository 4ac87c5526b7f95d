"""Lower bounds on the length of a step, which hold for every schedule of its activities.

An activity takes seconds of one resource (a device, a link), which executes one activity at a time, or of none. It
begins when all its predecessors have ended. Where steps overlap, an activity may also depend on one of the preceding
step: such a pair crosses the *border*.

One step alone. The head of an activity is the time before which it cannot begin, its tail the time that must pass after
it. Both are longest paths, lengthened by contention for one resource: all predecessors of an activity have ended when
it begins, so its head is at least the earliest head of those on one resource plus their seconds. On each resource the
bound is the length of Jackson's preemptive schedule of heads, seconds and tails (Carlier 1982, "The one-machine
sequencing problem"), which is computed exactly; it also holds for schedules that interrupt activities or share a
resource.

Steps that overlap. Their period is at least the seconds of any resource, and at least the largest ratio of seconds to
borders over the cycles through borders: an activity that depends on itself over n steps takes the cycle's seconds once
in n periods (Reiter 1968, "Scheduling parallel computations"). Between two borders the seconds are those of a longest
path, or those of the activities between them on one resource, with the earliest head and the shortest tail. The largest
ratio is found by Karp's theorem (1978, "A characterization of the minimum cycle mean in a digraph"). The period is also
at least the bound of one step alone for the activities that lie, across the border, between the start of an activity
and the start of the same activity in the next step.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bits = NDArray[np.uint8]

_WINDOWS = 2
"""The number of the longest activities of each resource for which the bound from one step to the next is computed."""

_MOST_BYTES = 1 << 28
"""The limit for the predecessor matrix; for larger steps heads and tails are longest paths alone, and the bound is
lower.
"""


@dataclass(frozen=True, slots=True)
class Activity:
    """A part of a step.

    Attributes:
        name: unique in the step.
        seconds: its duration.
        resource: the resource that it occupies; None for an activity that may overlap with any others.
        needs: names of its predecessors in the step.
    """

    name: str
    seconds: float
    resource: str | None = None
    needs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Rejects invalid seconds."""
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"An activity takes 0 seconds or more, and {self.name} is to take {self.seconds}.")


@dataclass(frozen=True, slots=True, eq=False)
class StepActivities:
    """The activities of a step in topological order; made by `step_of_activities`.

    Attributes:
        names: of the activities.
        seconds: `[n]`.
        resources: `[n]`, None where an activity occupies none.
        needs: `[n]`, the numbers of each activity's predecessors.
        borders: (of a step, of the next step), as numbers: the second begins when the first has ended.
    """

    names: tuple[str, ...]
    seconds: Floats
    resources: tuple[str | None, ...]
    needs: tuple[tuple[int, ...], ...]
    borders: tuple[tuple[int, int], ...]

    def users(self) -> tuple[tuple[int, ...], ...]:
        """`[n]`, the numbers of each activity's successors."""
        successors: list[list[int]] = [[] for _ in self.names]
        for place, needed in enumerate(self.needs):
            for one in needed:
                successors[one].append(place)
        return tuple(map(tuple, successors))

    def loads(self) -> dict[str, float]:
        """Seconds of each resource."""
        load_by_resource: dict[str, float] = {}
        for resource, seconds in zip(self.resources, self.seconds, strict=True):
            if resource is not None:
                load_by_resource[resource] = load_by_resource.get(resource, 0.0) + float(seconds)
        return load_by_resource


def step_of_activities(activities: Sequence[Activity], borders: Sequence[tuple[str, str]] = ()) -> StepActivities:
    """A step of activities, given in any order.

    Args:
        activities: of the step.
        borders: (of a step, of the next step), by name.

    Raises:
        ValueError: two have one name, one has a missing predecessor, or there is a cycle.
    """
    by_name = {one.name: one for one in activities}
    if len(by_name) < len(activities):
        raise ValueError("Each activity has a name of its own, and some have the same.")
    referenced = {name for one in activities for name in one.needs} | {name for pair in borders for name in pair}
    if missing := sorted(referenced - by_name.keys()):
        raise ValueError(f"An activity needs {missing[0]}, which is none of the step.")
    ordered = _in_order(activities)
    number = {one.name: place for place, one in enumerate(ordered)}
    return StepActivities(
        tuple(number),
        np.array([one.seconds for one in ordered], dtype=float),
        tuple(one.resource for one in ordered),
        tuple(tuple(sorted({number[name] for name in one.needs})) for one in ordered),
        tuple(dict.fromkeys((number[a], number[b]) for a, b in borders)),
    )


def bound_step_seconds(step: StepActivities) -> float:
    """A lower bound, in seconds, of every schedule of one step."""
    if not step.names:
        return 0.0
    forward = range(len(step.names))
    heads = _heads(step, forward, step.needs)
    tails = _heads(step, forward[::-1], step.users())
    longest_path_s = float((heads + step.seconds + tails).max())
    for resource in step.loads():
        places = [place for place in forward if step.resources[place] == resource]
        longest_path_s = max(longest_path_s, jackson_makespan(heads[places], step.seconds[places], tails[places]))
    return longest_path_s


def bound_period_seconds(step: StepActivities) -> float:
    """A lower bound, in seconds, of the period of every schedule of overlapping steps."""
    bound_s = max(step.loads().values(), default=0.0)
    # An activity bound only to itself adds nothing to longer cycles: without that border they have a larger ratio.
    bound_s = max([bound_s, *(float(step.seconds[a]) for a, b in step.borders if a == b)])
    borders = [(a, b) for a, b in step.borders if a != b]
    if not borders:
        return bound_s
    between = _between(step, [b for _, b in borders], [a for a, _ in borders])
    bound_s = max(bound_s, largest_cycle_mean(between))
    for resource in step.loads():
        places = [place for place, owner in enumerate(step.resources) if owner == resource]
        longest = sorted(places, key=lambda place: -step.seconds[place])[:_WINDOWS]
        bound_s = max([bound_s, *(bound_step_seconds(_window(step, place)) for place in longest)])
    return bound_s


def jackson_makespan(heads: Floats, seconds: Floats, tails: Floats) -> float:
    """The length of Jackson's preemptive schedule: among the available activities, the one with the longest tail runs.

    Args:
        heads: `[n]`, the earliest begin of each.
        seconds: `[n]`, on the resource.
        tails: `[n]`, the time that passes after the end of each.
    """
    waiting: list[tuple[float, int]] = []
    left = [float(one) for one in seconds]
    now, longest = 0.0, 0.0
    coming = sorted(range(len(left)), key=lambda one: heads[one])
    for place, one in enumerate(coming):
        now = max(now, float(heads[one]))
        heapq.heappush(waiting, (-float(tails[one]), one))
        until = float(heads[coming[place + 1]]) if place + 1 < len(coming) else math.inf
        while waiting and now < until:
            tail, chosen = waiting[0]
            spent = min(left[chosen], until - now)
            left[chosen] -= spent
            now += spent
            if left[chosen] > 0:
                break
            heapq.heappop(waiting)
            longest = max(longest, now - tail)
    return longest


def largest_cycle_mean(weights: Floats) -> float:
    """The largest mean weight of a cycle's edges; 0 where there is none.

    Args:
        weights: `[n, n]`, of the edge from row to column; -inf without one.
    """
    number = len(weights)
    walks = np.full((number + 1, number), -np.inf)  # the heaviest walk of that many edges to each
    walks[0] = 0.0
    for edges in range(number):
        walks[edges + 1] = (walks[edges][:, None] + weights).max(axis=0)
    ends = np.isfinite(walks[number])
    if not ends.any():
        return 0.0
    means = (walks[number, ends] - walks[:number, ends]) / (number - np.arange(number))[:, None]
    return max(0.0, float(means.min(axis=0).max()))


def _in_order(activities: Sequence[Activity]) -> list[Activity]:
    """The activities in topological order, otherwise in the given one."""
    users: dict[str, list[int]] = {}
    missing = [len(set(one.needs)) for one in activities]
    for place, one in enumerate(activities):
        for name in set(one.needs):
            users.setdefault(name, []).append(place)
    ready = [place for place, count in enumerate(missing) if not count]
    ordered = []
    while ready:
        one = activities[heapq.heappop(ready)]
        ordered.append(one)
        for place in users.get(one.name, ()):
            missing[place] -= 1
            if not missing[place]:
                heapq.heappush(ready, place)
    if len(ordered) < len(activities):
        waiting = next(one.name for one, count in zip(activities, missing, strict=True) if count)
        raise ValueError(f"Activities need each other in a circle, of which {waiting} waits.")
    return ordered


def _heads(step: StepActivities, order: Sequence[int], needs: Sequence[Sequence[int]]) -> Floats:
    """`[n]`, heads; with the order reversed and successors as predecessors, tails."""
    heads: Floats = np.zeros(len(order))
    columns, of_resource = _columns(step)
    before = _before(order, needs, columns)
    for one in order:
        for needed in needs[one]:
            heads[one] = max(heads[one], heads[needed] + step.seconds[needed])
        if before is None or len(needs[one]) < 2:  # with one predecessor, its head includes everything
            continue
        is_before = np.unpackbits(before[one], count=len(columns)).astype(bool)
        for places in of_resource.values():
            on_it = columns[places[is_before[places]]]
            if on_it.size:
                heads[one] = max(heads[one], heads[on_it].min() + step.seconds[on_it].sum())
    return heads


def _columns(step: StepActivities) -> tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The activities that occupy a resource, and by resource the indices of its own among these."""
    columns = [n for n, resource in enumerate(step.resources) if resource is not None and step.seconds[n] > 0]
    of_resource: dict[str, list[int]] = {}
    for place, one in enumerate(columns):
        of_resource.setdefault(str(step.resources[one]), []).append(place)
    return np.array(columns, dtype=int), {name: np.array(places) for name, places in of_resource.items()}


def _before(order: Sequence[int], needs: Sequence[Sequence[int]], columns: NDArray[np.int64]) -> Bits | None:
    """`[n, columns / 8]`, a bit for each column that precedes an activity; None where that exceeds the limit."""
    width = -(-len(columns) // 8)
    if len(order) * width > _MOST_BYTES:
        return None
    column_of = {int(one): place for place, one in enumerate(columns)}
    ancestor_bits = np.zeros((len(order), width), dtype=np.uint8)
    for one in order:
        for needed in needs[one]:
            ancestor_bits[one] |= ancestor_bits[needed]
            _mark(ancestor_bits[one], column_of.get(needed))
    return ancestor_bits


def _mark(bits: Bits, column: int | None) -> None:
    if column is not None:
        bits[column >> 3] |= 128 >> (column & 7)


def _window(step: StepActivities, one: int) -> StepActivities:
    """The activities between the begin of an activity and its begin in the next step, as a separate step.

    They are the successors of the activity in the first step, including itself, that precede the one of the second.
    """
    size, users = len(step.names), step.users()
    next_of: dict[int, list[int]] = {}
    last_of: dict[int, list[int]] = {}
    for a, b in step.borders:
        next_of.setdefault(a, []).append(size + b)
        last_of.setdefault(size + b, []).append(a)

    def following(place: int) -> list[int]:
        first = place - place % size
        return [*(first + user for user in users[place % size]), *next_of.get(place, ())]

    def preceding(place: int) -> list[int]:
        first = place - place % size
        return [*(first + needed for needed in step.needs[place % size]), *last_of.get(place, ())]

    after, before = _find_reached(one, following), _find_reached(size + one, preceding)
    window = sorted(after & before - {size + one})
    number = {place: position for position, place in enumerate(window)}
    return StepActivities(
        tuple(map(str, window)),
        step.seconds[[place % size for place in window]],
        tuple(step.resources[place % size] for place in window),
        tuple(tuple(number[needed] for needed in preceding(place) if needed in number) for place in window),
        (),
    )


def _find_reached(first: int, following: Callable[[int], list[int]]) -> set[int]:
    """All nodes reachable from the first, including itself."""
    reached, waiting = {first}, [first]
    while waiting:
        for place in following(waiting.pop()):
            if place not in reached:
                reached.add(place)
                waiting.append(place)
    return reached


def _between(step: StepActivities, starts: Sequence[int], ends: Sequence[int]) -> Floats:
    """`[starts, ends]`, the minimum seconds from the begin of a start to the end of an end; -inf without a path."""
    forward = range(len(step.names))
    from_start = _longest(step, forward, step.needs, starts)
    distances: Floats = (from_start[list(ends)] + step.seconds[list(ends), None]).T
    columns, of_resource = _columns(step)
    before, after = _before(forward, step.needs, columns), _before(forward[::-1], step.users(), columns)
    if before is None or after is None or len(starts) * len(ends) * len(columns) > _MOST_BYTES:
        return distances
    to_end = _longest(step, forward[::-1], step.users(), ends)
    heads, tails = from_start[columns].T, to_end[columns].T
    precede, follow = _bits_with(before, ends, columns), _bits_with(after, starts, columns)
    for row in range(len(starts)):
        for places in of_resource.values():
            lies = follow[row, places] & precede[:, places]
            head = np.where(lies, heads[row, places], np.inf).min(axis=1)
            tail = np.where(lies, tails[:, places], np.inf).min(axis=1)
            load = head + lies @ step.seconds[columns[places]] + tail
            distances[row] = np.where(lies.any(axis=1), np.maximum(distances[row], load), distances[row])
    return distances


def _longest(
    step: StepActivities, order: Sequence[int], needs: Sequence[Sequence[int]], starts: Sequence[int]
) -> Floats:
    """`[n, starts]`, the longest path from the begin of a start to that of each activity; -inf without one.

    With the order reversed and successors as predecessors, the path from the end of each to the end of a start.
    """
    longest = np.full((len(order), len(starts)), -np.inf)
    longest[list(starts), range(len(starts))] = 0.0
    for one in order:
        for needed in needs[one]:
            np.maximum(longest[one], longest[needed] + step.seconds[needed], out=longest[one])
    return longest


def _bits_with(bits: Bits, chosen: Sequence[int], columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """`[chosen, columns]`, the columns set in the bits, and the chosen one itself."""
    named = np.unpackbits(bits[list(chosen)], axis=1, count=len(columns)).astype(bool)
    found: NDArray[np.bool_] = named | (np.array(chosen)[:, None] == columns)
    return found
