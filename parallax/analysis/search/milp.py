"""Chooses one option for every variable, so that the predicted step is the shortest that fits into memory.

Options that make any step longer than a known step are removed first. The remaining choices are enumerated if they are
few; otherwise they form a mixed-integer program, solved by HiGHS (Huangfu and Hall 2018), in which variables of equal
cost are one class.

    n[c, o]  how many variables of class c take option o: whole, their sum over o the variables of c
    z[k]     1 when charge k is paid: n[c, o] <= |c| z[k] for each charge k of an option
    B[p]     seconds of phase p at its busiest end: at least the loads of every end
    F[p]     longest wait in phase p, in seconds: at least the rounds and charges of each process that waits
    B'[p]    and F'[p]: the remainders of these after overlap (step_time.py)
    T[p]     seconds of phase p: at least F'[p] + B[p], and at least F[p] + B'[p]
    E        seconds after compute: at least those of its phases, less the part that compute hides
    memory   of every host with a limit: at most its free memory
    minimise T over all phases before compute and after the update, + E

The objective is the predicted step less the part that no choice changes, so its bound is one of the step. Ties that the
solver leaves open are broken afterwards variable by variable, in the order of their names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parallax.analysis.search.problem import Problem, best_of, count_of
from parallax.analysis.timing.route_seconds import (
    AFTER,
    BEFORE,
    FULL,
    LEFT,
    NEW_VALUES,
    PHASES,
    Charge,
    Floats,
    RouteOption,
)
from parallax.analysis.timing.step_time import compute_phases, step_of
from parallax.base.errors import NotEnoughMemory
from parallax.base.types import Array
from parallax.report.text import bytes_text

EXACT_NODES, LARGE_NODES = 20_000, 1
"""Nodes of the search tree: as many as small models ever need; for large ones only the root, whose bound is close. A
limit on nodes instead of seconds makes the plan the same on every host.
"""

LARGE = 400
"""The number of columns from which a model is large."""

ENUMERATED = 20_000
"""Up to this number of choices all are enumerated, which takes less time than the solver's start."""

_SCALE = 1000.0
"""The solver ignores differences of 1e-7, so its unit is a thousandth of a step."""

_NOTHING = 1e-9
"""Relative difference of steps that counts as rounding."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The solution.

    Attributes:
        picks: the option of each variable.
        step_s: the predicted step.
        bound_s: a lower bound of every choice.
    """

    picks: tuple[int, ...]
    step_s: float
    bound_s: float


def solve(problem: Problem, slowness: float = 1.0) -> Solution:
    """The best options; `slowness` divides the rates of all links.

    Raises:
        NotEnoughMemory: nothing fits into memory.
    """
    first = [min(range(len(o)), key=lambda i: (_price_isolated(problem, o[i], slowness), i)) for o in problem.options]
    first = _settle(problem, first, slowness)
    known_s = problem.step_seconds(first, slowness) if problem.fits(first) else None
    remaining = _drop_dominated(problem, known_s, slowness)
    fixed_s = problem.load.session_s + problem.load.compute_s
    if known_s is not None and all(len(of) == 1 for of in remaining):
        return Solution(tuple(of[0] for of in remaining), known_s, known_s)
    small = replace(
        problem,
        options=tuple(tuple(options[o] for o in of) for options, of in zip(problem.options, remaining, strict=True)),
    )
    if count_of(small) <= ENUMERATED:
        best = best_of(small, slowness)
        if best is None:
            raise _no_room(problem)
        picks = _settle(problem, [of[p] for of, p in zip(remaining, best, strict=True)], slowness)
        step_s = problem.step_seconds(picks, slowness)
        return Solution(tuple(picks), step_s, step_s)
    unit = _SCALE / max((known_s or problem.step_seconds(first, slowness)) - fixed_s, 1e-9)
    optimum = _Program(small, _classes(small), unit, slowness).solve(
        LARGE_NODES if small.columns > LARGE else EXACT_NODES
    )
    if optimum is None:
        raise _no_room(problem)
    picked, bound = optimum
    picks = _settle(problem, [of[p] for of, p in zip(remaining, picked, strict=True)], slowness)
    step_s = problem.step_seconds(picks, slowness)
    bound_s = min(step_s, bound / unit + fixed_s)
    if step_s - bound_s <= 1e-7 * max(step_s - fixed_s, 0.0):  # the solver's own tolerance
        bound_s = step_s
    return Solution(tuple(picks), step_s, max(0.0, bound_s))


def _no_room(problem: Problem) -> NotEnoughMemory:
    """Names the host with the largest relative shortage, and the variable with the largest minimum memory there."""
    least = np.array([np.min([o.memory for o in options], axis=0) for options in problem.options])
    needed, limits = least.sum(axis=0), np.array(problem.hosts.limits)
    place = int(np.argmax(needed - limits))
    largest = int(np.argmax(least[:, place]))
    need_text, its, free = (bytes_text(round(n)) for n in (needed[place], least[largest, place], limits[place]))
    return NotEnoughMemory(
        f"No choice of routes fits the memory of all hosts at once: on host {problem.hosts.indices[place]} the "
        f"variables need at least {need_text}, of which {problem.names[largest]} takes {its}, but only {free} are free "
        "for them, and the choices that take least there take too much elsewhere or together. Add hosts, or prescribe "
        "fewer routes by name."
    )


def least_seconds(problem: Problem) -> float:
    """A lower bound of every choice: each load and wait is minimal over the options, and no round is shared."""
    loads, waits = _least(problem)
    return step_of(compute_phases(waits, loads), problem.load)


def _least(problem: Problem, slowness: float = 1.0) -> tuple[Floats, Floats]:
    """The sum over the variables of the minimum load of each end, and of the minimum wait of each waiting process."""
    loads = sum(np.min([o.extra_s + slowness * o.link for o in options], axis=0) for options in problem.options)
    waits = sum(np.min([o.waits for o in options], axis=0) for options in problem.options)
    return np.asarray(loads), np.asarray(waits)


def _drop_dominated(problem: Problem, known_s: float | None, slowness: float) -> list[list[int]]:
    """The options of each variable without those that make any step longer than a known one.

    With one option fixed and every other load and wait minimal, the step is at least that of their sum.
    """
    everything = [list(range(len(options))) for options in problem.options]
    if known_s is None or not problem.options:
        return everything
    loads, waits = _least(problem, slowness)
    remaining = []
    for of, options in zip(everything, problem.options, strict=True):
        if len(of) == 1:
            remaining.append(of)
            continue
        priced = [o.extra_s + slowness * o.link for o in options]
        others, waiting = loads - np.min(priced, axis=0), waits - np.min([o.waits for o in options], axis=0)
        may = []
        for number, option in enumerate(options):
            charged = sum((problem.pricing.charges[k] for k in option.charges), np.zeros_like(option.waits))
            phases = compute_phases(waiting + option.waits + charged, others + priced[number])
            if step_of(phases, problem.load) <= known_s * (1 + _NOTHING):
                may.append(number)
        remaining.append(may)
    return remaining


def _classes(problem: Problem) -> list[list[int]]:
    """The variables with equal costs for all options."""
    classes: dict[tuple[object, ...], list[int]] = {}
    for number, options in enumerate(problem.options):
        key = tuple(
            (o.extra_s.tobytes(), o.link.tobytes(), o.waits.tobytes(), o.charges, o.memory.tobytes()) for o in options
        )
        classes.setdefault(key, []).append(number)
    return list(classes.values())


class _Program:
    """The program as a sparse matrix: one row of `lower <= A x <= upper` after the other."""

    def __init__(self, problem: Problem, classes: list[list[int]], unit: float, slowness: float) -> None:
        self.problem = problem
        self.classes = classes
        self.columns = [(c, o) for c, members in enumerate(classes) for o in range(len(problem.options[members[0]]))]
        self.options = [problem.options[classes[c][0]][o] for c, o in self.columns]
        charges: dict[Charge, int] = {}
        for option in self.options:
            for charge in option.charges:
                charges.setdefault(charge, len(charges))
        self.charges = charges
        self.first_charge = len(self.columns)
        self.first_busy = self.first_charge + len(charges)
        self.first_wait = self.first_busy + 2 * len(PHASES)
        self.first_phase = self.first_wait + 2 * len(PHASES)
        self.after = self.first_phase + len(PHASES)
        self.entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self._counts()
        self._loads(unit, slowness)
        self._waits(unit)
        self._charges()
        self._phases()
        self._after(unit)
        self._memory()

    def solve(self, nodes: int) -> tuple[list[int], float] | None:
        """(the option of each variable, the bound in this program's unit); None when nothing fits."""
        # Only this module needs it, and its import takes a tenth of a worker's start.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        width = self.after + 1
        rows, columns, values = (np.concatenate([e[i] for e in self.entries]) for i in range(3))
        matrix = coo_array((values, (rows, columns)), shape=(len(self.lower), width)).tocsr()
        objective = np.zeros(width)
        for phase in (*BEFORE, NEW_VALUES):
            objective[self.first_phase + phase] = 1.0
        objective[self.after] = 1.0
        most = np.full(width, np.inf)
        most[: self.first_charge] = [len(self.classes[c]) for c, _ in self.columns]
        most[self.first_charge : self.first_busy] = 1.0
        whole = np.zeros(width)
        whole[: self.first_busy] = 1
        result = milp(
            objective,
            integrality=whole,
            bounds=Bounds(np.zeros(width), most),
            constraints=LinearConstraint(matrix, self.lower, self.upper),
            options={"node_limit": nodes, "mip_rel_gap": 0.0},
        )
        if result.x is None:
            return None
        bound = result.mip_dual_bound if result.mip_dual_bound is not None else result.fun
        return self._picks(result.x), float(bound)

    def _picks(self, x: Array) -> list[int]:
        """The options of the variables: in a class the first variables take the first options."""
        picks = [0] * len(self.problem.options)
        left = [list(members) for members in self.classes]
        for column, (c, option) in enumerate(self.columns):
            for number in left[c][: round(float(x[column]))]:
                picks[number] = option
            del left[c][: round(float(x[column]))]
        return picks

    def _row(self, columns: Any, values: Any, lower: float, upper: float) -> None:
        columns, values = np.asarray(columns), np.asarray(values, float)
        self.entries.append((np.full(len(columns), len(self.lower)), columns, values))
        self.lower.append(lower)
        self.upper.append(upper)

    def _counts(self) -> None:
        of_class: list[list[int]] = [[] for _ in self.classes]
        for column, (c, _) in enumerate(self.columns):
            of_class[c].append(column)
        for columns, members in zip(of_class, self.classes, strict=True):
            self._row(columns, np.ones(len(columns)), len(members), len(members))

    def _loads(self, unit: float, slowness: float) -> None:
        loads = np.stack([unit * (o.extra_s + slowness * o.link) for o in self.options])
        for busy, (part, phase) in enumerate(np.ndindex(2, len(PHASES)), self.first_busy):
            seen = set()
            for end in range(loads.shape[-1]):
                column = loads[:, part, phase, end]
                (used,) = np.nonzero(column)
                if len(used) and column.tobytes() not in seen:
                    seen.add(column.tobytes())
                    self._row([*used, busy], [*column[used], -1.0], -np.inf, 0.0)

    def _waits(self, unit: float) -> None:
        waits = np.stack([unit * o.waits for o in self.options])
        charged = [self.problem.pricing.charges[key] for key in self.charges]
        for longest, (part, phase) in enumerate(np.ndindex(2, len(PHASES)), self.first_wait):
            for who in range(waits.shape[-1]):
                waited = waits[:, part, phase, who]
                (used,) = np.nonzero(waited)
                charges = enumerate((c[part, phase, who] for c in charged), self.first_charge)
                paid = [(column, unit * round_s) for column, round_s in charges if round_s]
                if len(used) or paid:
                    columns = [*used, *(k for k, _ in paid), longest]
                    self._row(columns, [*waited[used], *(s for _, s in paid), -1.0], -np.inf, 0.0)

    def _charges(self) -> None:
        for column, option in enumerate(self.options):
            count = len(self.classes[self.columns[column][0]])
            for charge in option.charges:
                self._row([column, self.first_charge + self.charges[charge]], [1.0, -count], -np.inf, 0.0)

    def _phases(self) -> None:
        for phase in range(len(PHASES)):
            for busy, wait in ((FULL, LEFT), (LEFT, FULL)):
                parts = (self.first_busy + busy * len(PHASES) + phase, self.first_wait + wait * len(PHASES) + phase)
                self._row([*parts, self.first_phase + phase], [1.0, 1.0, -1.0], -np.inf, 0.0)

    def _after(self, unit: float) -> None:
        parts = [self.first_phase + phase for phase in AFTER]
        hidden = unit * self.problem.load.overlap_s
        self._row([*parts, self.after], [*([1.0] * len(parts)), -1.0], -np.inf, hidden)

    def _memory(self) -> None:
        for place, limit in enumerate(self.problem.hosts.limits):
            used_bytes = np.array([option.memory[place] for option in self.options])
            (used,) = np.nonzero(used_bytes)
            self._row(used, used_bytes[used] / max(limit, 1.0), -np.inf, 1.0 if limit > 0 else 0.0)


def _settle(problem: Problem, picks: list[int], slowness: float) -> list[int]:
    """Better or equal picks, such that no change of one variable shortens the step, or saves cost at an equal step."""
    picks = list(picks)
    totals = problem.totals(picks)
    limits = np.array(problem.hosts.limits)
    used_bytes = sum((o[p].memory for o, p in zip(problem.options, picks, strict=True)), np.zeros(len(limits)))
    step_s = totals.step_seconds(problem.load, slowness)
    for _ in range(len(picks) if problem.columns <= LARGE else 1):
        changed = False
        for number, options in enumerate(problem.options):
            for other in range(len(options)):
                now = options[picks[number]]
                if other == picks[number]:
                    continue
                more = used_bytes - now.memory + options[other].memory
                if len(limits) and np.any(more > limits) and np.any(more > used_bytes):
                    continue
                totals.remove(now)
                totals.add(options[other])
                other_s = totals.step_seconds(problem.load, slowness)
                least = _NOTHING * step_s
                ties = abs(other_s - step_s) <= least
                if other_s < step_s - least or (
                    ties
                    and _price_isolated(problem, options[other], slowness) < _price_isolated(problem, now, slowness)
                ):
                    picks[number], step_s, used_bytes, changed = other, other_s, more, True
                else:
                    totals.remove(options[other])
                    totals.add(now)
        if not changed:
            break
    return picks


def _price_isolated(problem: Problem, option: RouteOption, slowness: float) -> tuple[float, ...]:
    """The isolated cost of an option, to break ties between equal steps; then the bytes it sends."""
    waits = option.waits + sum((problem.pricing.charges[k] for k in option.charges), np.zeros_like(option.waits))
    seconds = compute_phases(waits, option.extra_s + slowness * option.link).sum()
    return (round(float(seconds), 15), float(option.link_bytes.sum()), len(option.charges))
