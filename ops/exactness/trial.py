"""Tries one program: compares N workers, whose graphs run as one, with one process on the global batch.

A program is Python text (script.py lists what it defines). Its outcome is one of
- `equal`: on every worker, every variable, slots included, ends with the value of the one process;
- `refused`: a ParallaxError before the first step;
- `wrong`: a variable ends with another value;
- `told`: as `wrong`, but the plan states that each worker's loss is taken for a mean over its batch, and why;
- `unproven`: the values are equal, but the analysis makes a false claim about a tensor (claims.py);
- `foreign`: any other exception, or a ParallaxError in a step;
- `infinite`: the one process ends with values, or squares of values, that are not finite: there is nothing to compare;
- `unstable`: a variable ends with another value, and so it does in the one process if roundings perturb all initial
  values and the results of arithmetic: the program amplifies roundings (its rate is too large, or it sorts rows that
  differ only by roundings), so a comparison proves nothing;
- `invalid`: the one process cannot train the program; a fault of the program.
"""

from __future__ import annotations

import gc
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ops.exactness.claims import first_false
from ops.exactness.runs import SEED, Built, NotFinite, Ran, Watched, train_one_process, train_workers
from ops.exactness.script import Script
from parallax.analysis.graph_to_plan import AnalysedGraph, analyse, make_feasible_plan, rewrites_of
from parallax.analysis.planner import make_plan, part_routes, placements
from parallax.analysis.propagation.propagate import walk_graph
from parallax.base.errors import ParallaxError, PlanError
from parallax.graph.spec import VariableClass
from parallax.plans.plan import Plan, PlanConstraints, one_host
from parallax.plans.rewrites import Rewrites
from parallax.runtime.verify.claims import find_watched
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform

ROUTES = ("hybrid", "alltoall", "allgather", "allreduce")
"""`hybrid` is the plan without constraints."""
_NO_FAULTS = ("equal", "refused", "told", "infinite", "unstable")

TOLERANCE_BY_DTYPE = {"float64": 1e-8, "float32": 2e-4}
"""Relative to the largest change of any variable of the same kind (a trained variable, or a slot of one name).

Workers add terms in another order than one process, with an error of about 1e-16 or 1e-7 of the terms. Where terms
cancel, or an optimizer divides by a small number, the error is about a thousand times larger. A wrong gradient is off
by more. The type is the least precise one in the computation (Built.computed_in).
"""
CLAIM_TOLERANCE_BY_DTYPE = {"float64": 1e-9, "float32": 1e-3}
"""Relative to the size of a tensor: where terms cancel, it is less exact than the change of a variable."""
_FOUND_INFINITE = ("Tensor had Inf", "Tensor had NaN", "Tensor had -Inf", "assertion failed")
"""Messages of the checks in programs; an assertion checks that a loss is still small."""
_UNSTABLE = 10.0
"""Factor on measured noise: workers round in other places than the perturbed ones."""
_DRAWS = 4
"""Number of draws of roundings: either of two equal rows may come first."""
_ROUNDING = {"float64": 1e-13, "float32": 1e-5}
"""Relative to the variable's own size: a variable that hardly changes is still rounded."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a program by one route.

    Attributes:
        kind: one of those that the module lists.
        message: of the error, or the variables that differ.
        place: the innermost frame of the project, or what differs; distinguishes faults.
        routes: variable -> class and route.
        seconds: of this process's processor time.
        notes: the plan's notes on differences from one process.
        gathers: the plan's notes on tensors of the global batch, if tensors have layouts.
        claim: the first false claim, if claims are checked and one is false.
    """

    kind: str
    message: str = ""
    place: str = ""
    routes: tuple[str, ...] = ()
    seconds: float = 0.0
    claim: str = ""
    notes: tuple[str, ...] = ()
    gathers: tuple[str, ...] = ()

    @property
    def is_fault(self) -> bool:
        """Whether the outcome is a fault."""
        return self.kind not in _NO_FAULTS


@dataclass(slots=True)
class _TrialSubject:
    """A program under trial: the data that all its routes share."""

    built: Built
    expected: Ran
    analysed: AnalysedGraph
    watched: Watched
    break_on_purpose: Callable[[Rewrites], Rewrites] | None


def try_program(
    source: str | Script,
    routes: Sequence[str] = ROUTES,
    break_on_purpose: Callable[[Rewrites], Rewrites] | None = None,
    claims: bool = False,
    layouts: bool | None = None,
) -> dict[str, Outcome]:
    """Tries a program by some routes; a route with the plan of an earlier one has the same outcome.

    Args:
        source: the program, as text or loaded.
        routes: of ROUTES.
        break_on_purpose: changes the rewrites, to test that a fault is detected.
        claims: whether claims about single tensors are checked too. Programs with a fixed batch are excluded: their
            graph for the global batch has other constants.
        layouts: as in Config; if True, the workers' shares of an open batch are unequal, and a batch of fixed length
            may be left to means.
    """
    began = time.process_time()
    with _no_collections():
        subject = _prepare_subject(source, break_on_purpose, claims, layouts)
        if isinstance(subject, Outcome):
            return {routes[0]: replace(subject, seconds=time.process_time() - began)}
        outcomes: dict[str, Outcome] = {}
        tried: dict[Any, Outcome] = {}
        for route in routes:
            outcome = _try_route(subject, route, tried)
            now = time.process_time()
            outcomes[route] = replace(outcome, seconds=now - began)
            began = now
    return outcomes


@contextmanager
def _no_collections() -> Iterator[None]:
    """Defers garbage collection to the end: graphs are cycles, and would be scanned about fifty times meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _prepare_subject(
    source: str | Script, break_on_purpose: Any, claims: bool, layouts: bool | None
) -> _TrialSubject | Outcome:
    native_ops()
    try:
        built = Built.of(source, are_uneven=bool(layouts))
        expected = train_one_process(built)
    except NotFinite as error:
        return _make_failure("infinite", error)
    except tf.errors.InvalidArgumentError as error:  # raised by a check in the program
        is_infinite = any(found in str(error) for found in _FOUND_INFINITE)
        return _make_failure("infinite" if is_infinite else "invalid", error)
    except Exception as error:  # any error of the program's text is an outcome
        return _make_failure("invalid", error)
    try:
        is_left_to_means = bool(layouts) and not built.script.is_open  # where a fixed batch cannot be opened
        analysed = analyse(built.graph, layouts=None if is_left_to_means else layouts)
    except Exception as error:
        return _before_steps(error)
    tries = claims and built.script.is_open
    seen = tuple(find_watched(analysed.captured.view, op.name) for op in built.ops) if tries else ()
    if any(seen):
        expected = train_one_process(built, seen)
    return _TrialSubject(built, expected, analysed, seen, break_on_purpose)


def plan_of(analysed: AnalysedGraph, route: str, workers: int) -> Plan:
    """Returns a plan with this route for every variable that supports it; the others keep their default."""
    layout = one_host(workers, 0)
    if route == "hybrid":
        return make_feasible_plan(analysed, layout, PlanConstraints())
    routes: dict[str, str] = {}
    for variable in analysed.spec.variables:
        try:
            make_plan(analysed.spec, layout, PlanConstraints(routes={variable.name: route}))
        except PlanError:
            continue
        routes[variable.name] = route
    return make_feasible_plan(analysed, layout, PlanConstraints(routes=routes))


def _try_route(subject: _TrialSubject, route: str, tried: dict[Any, Outcome]) -> Outcome:
    script, analysed = subject.built.script, subject.analysed
    try:
        plan = plan_of(analysed, route, script.workers)
        rewrites = rewrites_of(analysed, plan, equal_randomness=True)
        if subject.break_on_purpose is not None:
            rewrites = subject.break_on_purpose(rewrites)
        if rewrites in tried:
            return replace(tried[rewrites], seconds=0.0)
        made = [
            transform(analysed.captured.view, rewrites, Worker(rank, script.workers, SEED, equal_randomness=True))
            for rank in range(script.workers)
        ]
    except Exception as error:
        return _before_steps(error)
    try:
        by_worker = train_workers(subject.built, analysed, made, subject.watched)
    except Exception as error:
        outcome = _make_failure("foreign", error)
    else:
        own = {v.name for v in plan.variables if v.cls == VariableClass.LOCAL}
        dtype = subject.built.computed_in(analysed.captured.view)
        compared = subject.expected, [ran.last for ran in by_worker], dtype, own, subject.built.trained()
        outcome = judge(*compared)
        draws = range(_DRAWS) if outcome.kind == "wrong" else ()
        if any(judge(*compared, _noise(subject, dtype, draw)).kind == "equal" for draw in draws):
            outcome = replace(outcome, kind="unstable")
        outcome = _with_claim(outcome, _false_claim(subject, plan, by_worker))
    routes = tuple(f"{v.name}: {v.cls.value} by {v.route}" for v in plan.variables)
    notes, gathers = ((), rewrites.notes) if rewrites.layouts else (rewrites.notes, ())
    kind = "told" if outcome.kind == "wrong" and analysed.captured.means else outcome.kind
    tried[rewrites] = outcome = replace(outcome, kind=kind, routes=routes, notes=notes, gathers=gathers)
    return outcome


def _with_claim(outcome: Outcome, claim: str) -> Outcome:
    if claim and outcome.kind == "equal":
        return Outcome("unproven", claim, claim=claim)
    return replace(outcome, claim=claim)


def _false_claim(subject: _TrialSubject, plan: Plan, by_worker: list[Ran]) -> str:
    """Returns the first claim that is false in some step; later steps are wrong as a consequence."""
    if not any(subject.watched):
        return ""
    analysed, spec = subject.analysed, subject.analysed.spec
    walk = walk_graph(analysed.captured, analysed.sources, part_routes(spec, plan), True, placements(spec, plan))
    tolerance = CLAIM_TOLERANCE_BY_DTYPE[subject.built.computed_in(analysed.captured.view)]
    for step, expected in enumerate(subject.expected.seen):
        claim = first_false(walk, expected, [ran.seen[step] for ran in by_worker], tolerance)
        if claim is not None:
            return f"step {step}: {claim}"
    return ""


def _noise(subject: _TrialSubject, dtype: str, draw: int) -> dict[str, float]:
    """Returns by how much roundings of all initial values and results change each variable's last value."""
    expected, step = subject.expected, np.finfo(dtype).eps
    start = {
        name: value * (1 + step).astype(value.dtype) if np.issubdtype(value.dtype, np.floating) else value
        for name, value in expected.initial.items()
    }
    try:
        moved = train_one_process(subject.built, start=start, draw=draw).last
    except NotFinite:
        return dict.fromkeys(expected.last, float("inf"))
    return {name: _measure_gap(moved[name], last) for name, last in expected.last.items()}


def judge(
    expected: Ran,
    by_worker: list[dict[str, Any]],
    dtype: str,
    own: set[str],
    trained: frozenset[str],
    noise: Mapping[str, float] | None = None,
) -> Outcome:
    """Compares every worker's variables with the one process's.

    Args:
        expected: the result of the one process.
        by_worker: last values of each worker.
        dtype: in which the program computes.
        own: variables that are local to each worker.
        trained: variables that have gradients.
        noise: change of each variable's last value by roundings.
    """
    changes: dict[str, float] = {}
    kinds = {name: _kind(name, trained) for name in expected.last}
    for name, last in expected.last.items():
        changes[kinds[name]] = max(changes.get(kinds[name], 0.0), _size(last - expected.initial[name]))
    differing = []
    for name, last in expected.last.items():
        if name.split(":")[0] in own:
            continue
        change = changes[kinds[name]]
        allowed = TOLERANCE_BY_DTYPE[dtype] * change + _ROUNDING[dtype] * _size(last)
        allowed = max(allowed, _UNSTABLE * (noise or {}).get(name, 0.0))
        gap = max(_measure_gap(values[name], last) for values in by_worker)
        if not gap <= (allowed if np.issubdtype(last.dtype, np.floating) else 0):
            differing.append(f"{name} by {gap / change if change else gap:.2g} of the change {change:.2g}")
    if differing:
        return Outcome("wrong", "; ".join(differing), "")
    return Outcome("equal")


def _kind(name: str, trained: frozenset[str]) -> str:
    """Returns `trained` for a trained variable, else the name of the slot."""
    return "trained" if name in trained else re.split("[/_]", name.split(":")[0].rstrip("_0123456789"))[-1]


def _measure_gap(received: Any, expected: Any) -> float:
    return _size(received.astype(np.float64) - expected) if received.shape == expected.shape else float("inf")


def _size(value: Any) -> float:
    return float(np.max(np.abs(np.asarray(value, np.float64)), initial=0.0))


def _before_steps(error: Exception) -> Outcome:
    """Returns the outcome of an error before the first step: a refusal if the error is the project's."""
    return _make_failure("refused" if isinstance(error, ParallaxError) else "foreign", error)


def _make_failure(kind: str, error: Exception) -> Outcome:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/parallax/" in f.filename]
    at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else "in a step"
    if isinstance(error, tf.errors.OpError):
        at = "in a step"
    if isinstance(error, RecursionError):  # any of the functions that call each other may be innermost
        at = ""
    return Outcome(kind, f"{type(error).__name__}: {str(error)[:1500]}", f"{type(error).__name__} {at}")
