"""Tries one program: N workers, as threads of this process, against one process on the joined batch.

A program is Python text (docs/exactness.md says what it defines). Its outcome is one of
- `equal`: on every worker every variable, slots included, ends as in the one process;
- `refused`: a ParallaxError before the first step;
- `wrong`: some variable ends with another value;
- `foreign`: any other exception, or a ParallaxError in a step;
- `invalid`: the one process itself does not train the program; a fault of the program.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ops.exactness.transport import Meetings, in_memory
from parallax.analysis import record
from parallax.analysis.capture import initialization_phases
from parallax.analysis.planner import make_plan
from parallax.decisions import Decisions
from parallax.errors import ParallaxError, PlanError
from parallax.plan import Plan, Wishes, one_host
from parallax.runtime.names import Names
from parallax.runtime.planning import Analysed, analyse, decide, feasible
from parallax.spec import VariableClass
from parallax.transform.edit import Worker
from parallax.transform.exchange_op import native_ops
from parallax.transform.pipeline import WorkerGraph, transform
from parallax.transform.seeds import set_seeds

v1 = tf.compat.v1
record.install()
v1.logging.set_verbosity(v1.logging.ERROR)  # autograph says that it cannot read a program's text, which needs none

STEPS, SEED = 4, 7
ROUTES = ("hybrid", "alltoall", "allgather", "allreduce")
"""`hybrid` is what is planned when nothing is asked for."""

TOLERANCE_BY_DTYPE = {"float64": 1e-8, "float32": 2e-4}
"""Of the largest change that any variable of the same kind has seen (a trained variable, or a slot of one name).

Sums over workers are taken in another order than in one process, which costs about 1e-16 or 1e-7 of the terms; where
terms cancel, or an optimizer divides by a small number, some thousand times that. A wrong gradient is off by more.
"""
_ROUNDING = {"float64": 1e-13, "float32": 1e-5}
"""Of the variable's own size: a variable that hardly changes is still rounded."""
_THREADS = 256
"""A thread waits in each meeting, and all threads of all workers' sessions are one pool."""


@dataclass(frozen=True, slots=True)
class Script:
    """A program, loaded.

    Attributes:
        workers: number of workers.
        rows: of each worker's batch.
        is_open: whether the graph leaves the batch dimension open; else the joined batch has a graph of its own.
        control_flow_v2: whether conditionals and loops are functional.
        optimizes: whether TensorFlow's graph optimizers run, as they do in a user's session.
        dtype: of the variables, which says how exact a comparison can be.
        feeds: (random state, rows) -> name of placeholder -> value.
        build: rows, or None -> the ops that are run in turn; builds in the default graph.
    """

    workers: int
    rows: int
    is_open: bool
    control_flow_v2: bool
    optimizes: bool
    dtype: str
    feeds: Callable[[Any, int], dict[str, Any]]
    build: Callable[[int | None], Sequence[Any]]

    @staticmethod
    def load(source: str, name: str = "program") -> Script:
        """Runs a program's text, which builds nothing yet."""
        names: dict[str, Any] = {"__name__": name}
        exec(compile(source, f"<{name}>", "exec"), names)
        return Script(
            names["WORKERS"],
            names["ROWS"],
            names["OPEN_BATCH"],
            names["CONTROL_FLOW_V2"],
            names.get("OPTIMIZES", True),
            names["F"].name,
            names["feeds"],
            names["build"],
        )

    def graph(self, rows: int) -> tuple[Any, list[Any]]:
        """The program's graph for a batch, and the ops that are run in turn."""
        toggle = v1.enable_control_flow_v2 if self.control_flow_v2 else v1.disable_control_flow_v2
        toggle()
        graph = tf.Graph()
        try:
            with graph.as_default():
                v1.set_random_seed(3)
                made = self.build(None if self.is_open else rows)
        finally:
            v1.enable_control_flow_v2()
        return graph, list(made) if isinstance(made, list | tuple) else [made]

    def batches(self) -> list[list[dict[str, Any]]]:
        """For each step the batch of each worker."""
        rng = np.random.RandomState(0)
        return [[self.feeds(rng, self.rows) for _ in range(self.workers)] for _ in range(STEPS)]

    def options(self) -> Any:
        """Of a session, whose threads can all wait at once."""
        config = v1.ConfigProto(intra_op_parallelism_threads=1, use_per_session_threads=False)
        config.session_inter_op_thread_pool.add(num_threads=_THREADS, global_name="exactness")
        config.graph_options.rewrite_options.disable_meta_optimizer = not self.optimizes
        return config


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a program by one route.

    Attributes:
        kind: as the module says.
        message: of the error, or which variables differ.
        place: the innermost frame of the project, or what differs: what tells faults apart.
        routes: variable -> class and route.
        seconds: of this process's processor time.
    """

    kind: str
    message: str = ""
    place: str = ""
    routes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_fault(self) -> bool:
        """Whether it must not be."""
        return self.kind not in ("equal", "refused")


@dataclass(frozen=True, slots=True)
class OneProcess:
    """What the one process has: by variable, its initial and its last value; and which are trained."""

    initial: dict[str, Any]
    last: dict[str, Any]
    trained: frozenset[str]


@dataclass(slots=True)
class Subject:
    """A program under trial: what all its routes share."""

    script: Script
    graph: Any
    ops: list[Any]
    batches: list[list[dict[str, Any]]]
    expected: OneProcess
    analysed: Analysed | None = None


def try_program(
    source: str, routes: Sequence[str] = ROUTES, break_on_purpose: Callable[[Decisions], Decisions] | None = None
) -> dict[str, Outcome]:
    """Tries a program by each of some routes; one whose plan is that of a route before has that one's outcome.

    Args:
        source: the program.
        routes: of ROUTES.
        break_on_purpose: changes the decisions, to see that a fault is noticed.
    """
    began = time.process_time()
    native_ops()
    try:
        subject = _subject(source)
    except Exception as error:  # whatever the program's text raises is kept as the outcome
        return {routes[0]: replace(_failed("invalid", error), seconds=time.process_time() - began)}
    try:
        subject.analysed = analyse(subject.graph)
    except Exception as error:
        return {routes[0]: replace(_before_steps(error), seconds=time.process_time() - began)}
    outcomes: dict[str, Outcome] = {}
    tried: dict[Any, Outcome] = {}
    for route in routes:
        outcome = _outcome(subject, route, tried, break_on_purpose)
        now = time.process_time()
        outcomes[route] = replace(outcome, seconds=now - began)
        began = now
    return outcomes


def plan_of(analysed: Analysed, route: str, workers: int) -> Plan:
    """A plan with this route for every variable that it is possible for; the others keep their own."""
    layout = one_host(workers, 0)
    if route == "hybrid":
        return feasible(analysed, layout, Wishes())
    routes: dict[str, str] = {}
    for variable in analysed.spec.variables:
        try:
            make_plan(analysed.spec, layout, Wishes(routes={variable.name: route}))
        except PlanError:
            continue
        routes[variable.name] = route
    return feasible(analysed, layout, Wishes(routes=routes))


def joined(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The workers' batches one after the other; scalars are those of worker 0."""
    first = batches[0]
    return {name: np.concatenate([b[name] for b in batches]) if np.ndim(first[name]) else first[name] for name in first}


def _subject(source: str) -> Subject:
    script = Script.load(source)
    graph, ops = script.graph(script.rows)
    batches = script.batches()
    whole, whole_ops = (graph, ops) if script.is_open else script.graph(script.rows * script.workers)
    expected = _one_process(script, whole, whole_ops, [joined(step) for step in batches])
    return Subject(script, graph, ops, batches, expected)


def _one_process(script: Script, graph: Any, ops: list[Any], batches: list[dict[str, Any]]) -> OneProcess:
    graph_def = graph.as_graph_def()
    set_seeds(graph_def, frozenset(), Worker(0, 1, SEED, equal_randomness=True))
    seeded = tf.Graph()
    with seeded.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    reads = _reads(graph)
    with v1.Session(graph=seeded, config=script.options()) as session:
        for phase in _phases(graph):
            session.run(phase)
        initial = session.run(reads)
        for step, batch in enumerate(batches):
            session.run(ops[step % len(ops)].name, fed(graph, batch))
        last = session.run(reads)
    if any(np.issubdtype(v.dtype, np.floating) and not np.all(np.isfinite(v)) for v in last.values()):
        raise ValueError("The one process ends with values that are not finite.")
    return OneProcess(initial, last, frozenset(v.name for v in graph.get_collection("trainable_variables")))


def _phases(graph: Any) -> list[list[str]]:
    """Initial values may be read from trained variables, so these come first."""
    trained = {id(v) for v in graph.get_collection("trainable_variables")}
    every = graph.get_collection("variables") + graph.get_collection("local_variables")
    first = [v.initializer.name for v in every if id(v) in trained]
    return [first, [v.initializer.name for v in every if id(v) not in trained]]


def fed(graph: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Of a batch what the graph has placeholders for, by tensor."""
    return {f"{name}:0": value for name, value in batch.items() if _has(graph, name)}


def _has(graph: Any, name: str) -> bool:
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True


def _reads(graph: Any) -> dict[str, str]:
    """Variable -> the tensor that reads it."""
    return {v.name: graph.as_graph_element(v).name for v in graph.get_collection("variables")}


def _outcome(subject: Subject, route: str, tried: dict[Any, Outcome], break_on_purpose: Any) -> Outcome:
    script, analysed = subject.script, subject.analysed
    assert analysed is not None  # try_program has set it
    try:
        plan = plan_of(analysed, route, script.workers)
        decisions = decide(analysed, plan, equal_randomness=True)
        if break_on_purpose is not None:
            decisions = break_on_purpose(decisions)
        if decisions in tried:
            return replace(tried[decisions], seconds=0.0)
        made = [
            transform(analysed.captured.view, decisions, Worker(rank, script.workers, SEED, equal_randomness=True))
            for rank in range(script.workers)
        ]
    except Exception as error:
        return _before_steps(error)
    routes = tuple(f"{v.name}: {v.cls.value} by {v.route}" for v in plan.variables)
    try:
        found = _workers(subject, made)
    except Exception as error:
        outcome = _failed("foreign", error)
    else:
        own = {v.name for v in plan.variables if v.cls == VariableClass.LOCAL}
        outcome = judge(subject.expected, found, script.dtype, own)
    tried[decisions] = outcome = replace(outcome, routes=routes)
    return outcome


def _workers(subject: Subject, made: list[WorkerGraph]) -> list[dict[str, Any]]:
    """The last values of every worker.

    Raises:
        Exception: the first that a worker raised.
    """
    meetings = Meetings(subject.script.workers)
    found: list[dict[str, Any]] = [{} for _ in made]
    errors: list[Exception] = []

    def work(rank: int) -> None:
        try:
            found[rank] = _one_worker(subject, made[rank], rank, meetings)
        except Exception as error:  # raised again below, on the thread that waits
            errors.append(error)
            meetings.fail(f"worker {rank} failed: {error}")

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def _one_worker(subject: Subject, made: WorkerGraph, rank: int, meetings: Meetings) -> dict[str, Any]:
    analysed, script = subject.analysed, subject.script
    assert analysed is not None  # try_program has set it
    names = Names(analysed.captured.view, made)
    graph_def = type(made.graph_def)()
    graph_def.CopyFrom(made.graph_def)
    functions = in_memory(graph_def, rank, meetings)
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    reads = _reads(subject.graph)
    with v1.Session(graph=imported, config=script.options()) as session:

        def run(fetches: Sequence[str], given: dict[str, Any]) -> list[Any]:
            resolved = names.resolve(tuple(fetches), given)
            values = session.run(list(resolved.tensors), {**resolved.feeds(given), **resolved.empty})
            meetings.has_run(rank)
            return list(resolved.values(values))

        for phase in [*initialization_phases(analysed.captured), list(made.counter_initializers)]:
            session.run(phase)
            meetings.has_run(rank)
        for step, batches in enumerate(subject.batches):
            run([subject.ops[step % len(subject.ops)].name], fed(subject.graph, batches[rank]))
        values = run(list(reads.values()), {})
    del functions
    return dict(zip(reads, values, strict=True))


def judge(expected: OneProcess, found: list[dict[str, Any]], dtype: str, own: set[str]) -> Outcome:
    """Compares every worker's variables with the one process's.

    Args:
        expected: of the one process.
        found: by worker.
        dtype: of the program's variables.
        own: variables that every worker keeps for itself.
    """
    changes: dict[str, float] = {}
    kinds = {name: _kind(name, expected.trained) for name in expected.last}
    for name, last in expected.last.items():
        changes[kinds[name]] = max(changes.get(kinds[name], 0.0), _size(last - expected.initial[name]))
    differing = []
    for name, last in expected.last.items():
        if name.split(":")[0] in own:
            continue
        change = changes[kinds[name]]
        allowed = TOLERANCE_BY_DTYPE[dtype] * change + _ROUNDING[dtype] * _size(last)
        gap = max(_gap(values[name], last) for values in found)
        if not gap <= (allowed if np.issubdtype(last.dtype, np.floating) else 0):
            differing.append(f"{name} by {gap / change if change else gap:.2g} of the change {change:.2g}")
    if differing:
        return Outcome("wrong", "; ".join(differing), "")
    return Outcome("equal")


def _kind(name: str, trained: frozenset[str]) -> str:
    """What the slots of all variables are called; variables that are trained are one kind, all others one by one."""
    return "trained" if name in trained else re.split("[/_]", name.split(":")[0].rstrip("_0123456789"))[-1]


def _gap(found: Any, expected: Any) -> float:
    return _size(found.astype(np.float64) - expected) if found.shape == expected.shape else float("inf")


def _size(value: Any) -> float:
    return float(np.max(np.abs(np.asarray(value, np.float64)), initial=0.0))


def _before_steps(error: Exception) -> Outcome:
    """An error before the first step: the project's own is what shall come there."""
    return _failed("refused" if isinstance(error, ParallaxError) else "foreign", error)


def _failed(kind: str, error: Exception) -> Outcome:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/parallax/" in f.filename]
    at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else "in a step"
    if isinstance(error, tf.errors.OpError):
        at = "in a step"
    return Outcome(kind, f"{type(error).__name__}: {str(error)[:1500]}", f"{type(error).__name__} {at}")
