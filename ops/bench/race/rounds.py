"""Runs a race: every system is started and warmed up, then they take turns, round by round."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ops.bench.race.accelerators import has_losses, twin_of
from ops.bench.race.field import RESERVE_BYTES, Entry, NoMemory, NotRunning
from ops.bench.race.measure import available_bytes
from ops.bench.race.models import model_of
from ops.bench.race.place import Place
from ops.bench.race.results import Race, Ran, Turn
from ops.bench.race.shortest import Shortest, shortest_of
from ops.bench.race.systems import BESIDE, OTHER_LOSSES
from ops.bench.race.turns import Task

WARM_UP_STEPS = 6
"""The first steps are far slower: TensorFlow prepares the graph, connections are opened, links fill."""

ALONE = "alone"

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a race.

    Attributes:
        model: name of the model.
        sizes: sizes that differ from the model's defaults.
        systems: the systems, in the order of their turns.
        workers: workers per host.
        rate_bytes_per_s: rate of each link; 0 for no limit.
        rounds: turns of each system.
        turn_s: approximate seconds of a turn.
        start_limit_s: time limit for start and warm-up of a system.
        intra_threads: threads of each process within an op.
        inter_threads: ops that each process runs in parallel.
        environment: variables of all processes.
        beside: the checkout that `parallax-beside` runs.
    """

    model: str
    sizes: Mapping[str, Any]
    systems: tuple[str, ...]
    workers: int
    rate_bytes_per_s: int
    rounds: int
    turn_s: float
    start_limit_s: float
    intra_threads: int
    inter_threads: int
    environment: Mapping[str, str]
    beside: str = ""


@dataclass
class _Runner:
    """The state of a system during the race."""

    system: str
    entry: Entry | None = None
    starts: int = 0
    steps: int = 0
    limit_s: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peaks: tuple[int, ...] = ()
    problem: str = ""

    def drop(self) -> None:
        """Ends its processes before the end of the race."""
        if self.entry is not None:
            self.entry.end()
        self.entry = None


def turn_steps(step_s: float, turn_s: float) -> int:
    """Returns the number of steps of a turn of about `turn_s`: 3 to 200, or 2 if a step takes more than 20 s."""
    if step_s > 20:
        return 2
    return max(3, min(200, round(turn_s / step_s)))


def run_race(place: Place, wanted: Wanted, tell: Callable[[str], None]) -> Race:
    """Starts all systems, runs their turns, and ends them.

    Args:
        place: where the race runs.
        wanted: the settings.
        tell: receives a line for each event.
    """
    asked = wanted.model, dict(wanted.sizes), len(place.hosts), wanted.workers
    least_bytes, formula = _in_a_process(least_of, *asked)
    shortest = _in_a_process(shortest_of, *asked, _rate(place, wanted))
    runners = [_Runner(system) for system in (*wanted.systems, ALONE)]
    waiting, heats = runners, 0
    while waiting:
        waiting = _run_heat(waiting, place, wanted, tell)
        heats += 1
    if heats > 1:
        tell(f"Memory was too small for all systems at once: they ran in {heats} groups.")
    runs = [_ran(runner, has_losses(wanted.model, wanted.sizes)) for runner in runners]
    return _race(place, wanted, runs, least_bytes, formula, shortest)


def _run_heat(runners: list[_Runner], place: Place, wanted: Wanted, tell: Callable[[str], None]) -> list[_Runner]:
    """Runs as many systems together as fit into memory, and returns those that must wait until these have ended."""
    with contextlib.ExitStack() as ends:
        started: list[_Runner] = []
        waiting: list[_Runner] = []
        most_bytes = 0
        for runner in runners:
            before = available_bytes()
            if started and before - most_bytes < RESERVE_BYTES:
                waiting.append(runner)
                continue
            try:
                _start(runner, place, wanted, ends, tell)
            except NoMemory as error:
                runner.drop()
                if started:
                    tell(f"{runner.system}: waits for memory")
                    waiting.append(runner)
                    continue
                runner.problem = str(error)
            started.append(runner)
            most_bytes = max(most_bytes, before - available_bytes())
        for number in range(wanted.rounds):
            for runner in started:
                _take_turn(runner, f"round {number + 1} of {wanted.rounds}", tell)
        for runner in started:
            if runner.entry is not None:
                runner.peaks = runner.entry.finish()
    return waiting


def _start(runner: _Runner, place: Place, wanted: Wanted, ends: contextlib.ExitStack, tell: Any) -> None:
    tell(f"{runner.system}: starts")
    runner.starts += 1
    task = Task(
        runner.system,
        wanted.model,
        dict(wanted.sizes),
        str(place.folder / f"{len(place.hosts)}-{runner.system}-{runner.starts}"),
        len(place.hosts) * wanted.workers,
        wanted.intra_threads,
        wanted.inter_threads,
        {"environment": dict(wanted.environment), **({"beside": wanted.beside} if runner.system == BESIDE else {})},
    )
    runner.entry = ends.enter_context(Entry(place, task))
    try:
        taken = runner.entry.take_turn(WARM_UP_STEPS, wanted.start_limit_s)
    except NoMemory:
        raise
    except NotRunning as error:
        _drop(runner, error, tell)
        return
    step_s = statistics.median(taken.step_s[WARM_UP_STEPS // 2 :])
    runner.steps = turn_steps(step_s, wanted.turn_s)
    runner.limit_s = 60 + 10 * runner.steps * step_s
    runner.losses += taken.losses
    tell(f"{runner.system}: warm, {step_s:.3g} s a step, {runner.steps} steps a turn")


def _take_turn(runner: _Runner, label: str, tell: Any) -> None:
    if runner.entry is None:
        return
    try:
        taken = runner.entry.take_turn(runner.steps, runner.limit_s)
    except NotRunning as error:
        _drop(runner, error, tell)
        return
    runner.turns.append(taken.turn)
    runner.losses += taken.losses
    wire = f", {taken.turn.wire_bytes / 1e6:.3f} MB" if taken.turn.received_bytes else ""
    tell(f"{label}, {runner.system}: {taken.turn.step_s:.4g} s a step{wire}")


def _drop(runner: _Runner, error: NotRunning, tell: Any) -> None:
    """Drops a failed system; the others continue."""
    runner.drop()
    runner.problem = str(error)
    tell(f"{runner.system}: {runner.problem}")


def _ran(runner: _Runner, are_compared: bool) -> Ran:
    synchronous = are_compared and runner.system not in OTHER_LOSSES
    return Ran(runner.system, synchronous, tuple(runner.turns), tuple(runner.losses), runner.peaks, runner.problem)


def _rate(place: Place, wanted: Wanted) -> int:
    """Returns the rate of each link; 0 without a limit."""
    return wanted.rate_bytes_per_s if place.is_lab else 0


def _race(
    place: Place, wanted: Wanted, runs: Sequence[Ran], least_bytes: float, formula: str, shortest: Shortest | None
) -> Race:
    model = model_of(wanted.model, **wanted.sizes)
    alone = runs[-1]
    if not alone.turns:
        raise NotRunning(f"The model does not run on one process: {alone.problem}")
    hosts, twin = len(place.hosts), twin_of(wanted.model, wanted.sizes)
    device_s = twin.device_s if twin else 0.0
    return Race(
        wanted.model,
        tuple((name, getattr(model, name)) for name in model.__dataclass_fields__),  # type: ignore[attr-defined]
        hosts,
        wanted.workers,
        _rate(place, wanted),
        model.units * hosts * wanted.workers,
        model.unit,
        least_bytes,
        formula,
        alone.step_s,
        tuple(runs[:-1]),
        device_s,
        twin.dilation if twin and device_s else 1.0,
        len(os.sched_getaffinity(0)),
        *((shortest.alone_s, shortest.overlapping_s) if shortest else ()),
    )


def _in_a_process(function: Callable[..., _Found], *arguments: Any) -> _Found:
    """Calls a function that builds a graph in a separate process, which frees the graph's memory when it exits."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *arguments).result()


def least_of(name: str, sizes: dict[str, Any], hosts: int, workers: int) -> tuple[float, str]:
    """Returns the least bytes of a host and their formula; 0 and empty if they cannot be computed."""
    try:
        from ops.bench.race.least import least_bytes
    except ImportError:
        return 0.0, ""
    import tensorflow as tf

    model = model_of(name, **sizes)
    with tf.Graph().as_default() as graph:
        model.build()
    least = least_bytes(model, graph, hosts, workers)
    return least.bytes, least.formula
