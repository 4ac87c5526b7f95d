"""Finds where the choice of a variable's route changes: at which link rates, and at which counts of touched rows.

The crossing points follow from predicted steps, not from a list of sampled values. Of two plans, each the best at one
end of a range, the costs are equal somewhere between. If no other plan is better there, the choice changes at that
point; else the better plan divides the range (Eisner and Severance 1976). Where costs are not linear (the busiest link
changes), a plan that is best only in the middle, between two ranges of one and the same plan, is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from parallax.analysis.routes.candidates import Candidate
from parallax.analysis.search.milp import solve
from parallax.analysis.search.problem import Problem
from parallax.analysis.search.route_all import RoutedVariables, Setting, reprice
from parallax.analysis.timing.route_seconds import Floats, RouteOption
from parallax.analysis.timing.step_time import Totals
from parallax.base.errors import PlanError
from parallax.plans.prediction import LINK, TOUCHED, Flip

SLOWEST = 1024.0
"""Slower links are tried down to this fraction of their rate; faster ones without limit."""

REPLANNED = 64
"""Up to this number of columns the whole model is planned again at each value; in larger ones all other variables stay
as planned.
"""

MOST_VARIABLES = 100
"""The number of variables, by descending seconds, for which flips are searched."""

_HALVINGS = 60
_DEPTH = 12
_EQUAL = 1e-9

Picks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Range:
    """The best picks as a function of one value: `best` finds them, `cost` is the step of some picks at a value."""

    best: Callable[[float], Picks]
    cost: Callable[[Picks, float], float]


@dataclass(frozen=True, slots=True)
class _Change:
    at: float
    before: Picks
    after: Picks


def find_flips(setting: Setting, routed: RoutedVariables, seconds: dict[str, float]) -> dict[str, tuple[Flip, ...]]:
    """For variables with a choice, the values at which another route is chosen.

    Args:
        setting: the inputs of the problem.
        routed: the choice.
        seconds: of each variable, to select the variables that are examined.
    """
    problem, picks = routed.problem, routed.solution.picks
    able = [n for n, options in enumerate(problem.options) if len({o.route for o in options}) > 1]
    able = sorted(able, key=lambda n: (-seconds[problem.names[n]], problem.names[n]))[:MOST_VARIABLES]
    columns = sum(len(options) for options in problem.options if len(options) > 1)
    totals = problem.totals(picks)
    used_bytes = sum(
        (o[p].memory for o, p in zip(problem.options, picks, strict=True)), np.zeros(len(problem.hosts.limits))
    )
    whole = None
    flips_by_variable: dict[str, tuple[Flip, ...]] = {}
    for number in able:
        if columns <= REPLANNED:
            view = _View(problem, picks, number)
            links = whole = whole or _links(view)
        else:
            view = _isolate_variable(problem, picks, number, totals, used_bytes)
            links = _links(view)
        flips = [*_link_flips(setting, view, links), *_touched_flips(setting, view, setting.candidates[number])]
        flips_by_variable[problem.names[number]] = tuple(flips)
    return flips_by_variable


@dataclass(frozen=True, slots=True)
class _View:
    """A problem that is solved again, the current picks, and the index of the examined variable."""

    problem: Problem
    picks: Picks
    place: int

    def route(self, picks: Picks) -> str:
        """The route of the variable."""
        return self.problem.options[self.place][picks[self.place]].route


def _isolate_variable(problem: Problem, picks: Picks, number: int, totals: Totals, used_bytes: Floats) -> _View:
    """A variable, and all others combined into one without a choice."""
    chosen = problem.options[number][picks[number]]
    charges = tuple(k for k, users in totals.users.items() if users - (k in chosen.charges) > 0)
    others = RouteOption(
        "others",
        (),
        totals.extra_s - chosen.extra_s,
        totals.link - chosen.link,
        totals.waits - chosen.waits,
        charges,
        np.zeros_like(chosen.link_bytes),
        used_bytes - chosen.memory,
    )
    two = replace(problem, names=("", problem.names[number]), options=((others,), problem.options[number]))
    return _View(two, (0, picks[number]), 1)


def _links(view: _View) -> tuple[list[_Change], list[_Change]]:
    """Changes as links become faster, and as they become slower; nearest first. The value is their slowness."""
    along = _Range(lambda slowness: solve(view.problem, slowness).picks, view.problem.step_seconds)
    return _changes(along, view.picks, 1.0, 0.0), _changes(along, view.picks, 1.0, SLOWEST)


def _link_flips(setting: Setting, view: _View, along: tuple[list[_Change], list[_Change]]) -> list[Flip]:
    if len(setting.layout.hosts) < 2:
        return []
    slowest = min(min(host.out_bytes_per_s, host.in_bytes_per_s) for host in setting.cluster.hosts)
    flips = []
    for changes, above in zip(along, (True, False), strict=True):
        change = _first(view, changes)
        if change is not None and change.at > 0:
            flips.append(Flip(LINK, slowest / change.at, above, view.route(change.after)))
    return flips


def _touched_flips(setting: Setting, view: _View, candidate: Candidate) -> list[Flip]:
    touched = candidate.touched
    if touched is None:
        return []
    known: dict[float, Problem] = {touched.one: view.problem}

    def at(rows: float) -> Problem:
        if rows not in known:
            known[rows] = reprice(setting, view.problem, view.place, candidate, rows)
        return known[rows]

    along = _Range(lambda rows: solve(at(rows)).picks, lambda of, rows: at(rows).step_seconds(of))
    flips = []
    for end, above in ((float(touched.rows), True), (1.0, False)):
        change = _first(view, _changes(along, view.picks, touched.one, end))
        if change is not None:
            flips.append(Flip(TOUCHED, change.at, above, view.route(change.after)))
    return flips


def _changes(along: _Range, now: Picks, start: float, end: float) -> list[_Change]:
    """The values between start and end at which the best picks change, nearest to the start first."""
    if start == end:
        return []
    try:
        there = along.best(end)
    except PlanError:  # nothing fits into memory with that many rows
        return []
    return _between(along, now, there, start, end, _DEPTH)


def _between(along: _Range, near: Picks, far: Picks, start: float, end: float, depth: int) -> list[_Change]:
    if near == far or along.cost(near, end) <= along.cost(far, end) * (1 + _EQUAL):
        return []
    low, high = start, end  # near is better at low, far at high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if along.cost(near, middle) <= along.cost(far, middle):
            low = middle
        else:
            high = middle
    at = (low + high) / 2
    best = along.best(at)
    if depth == 0 or best in (near, far) or along.cost(best, at) >= along.cost(near, at) * (1 - _EQUAL):
        return [_Change(at, near, far)]
    first = _between(along, near, best, start, at, depth - 1)
    return first + _between(along, best, far, at, end, depth - 1)


def _first(view: _View, changes: list[_Change]) -> _Change | None:
    """The nearest change after which the variable has another route."""
    now = view.route(view.picks)
    return next((change for change in changes if view.route(change.after) != now), None)
