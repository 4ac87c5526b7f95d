"""Compares the workers during training: replicated variables, and the order of exchanges.

Every worker computes a 64-bit fingerprint of each of its variables (fingerprints.py) after the same steps, and workers
send each other one digest of all of them. If digests differ, they compare variable by variable. A difference ends the
job unless it is rounding or was caused by the loop on some workers alone. A step is a training run: all workers make
equally many, because they train together, so all reach a comparison after the same run.

The guard is no hook, so that runs stay direct. A variable that no update reads (a metric) may differ when workers have
run its writers unequally often, as worker 0 does when it evaluates. A variable that updates read must be equal, and the
message lists each worker's runs. Each worker keeps its digests when its session closes, and they are compared when all
scripts have ended: the guard adds no wait.

Workers are compared after steps 1, 2, 4, 8, and then at intervals that keep the overhead negligible (`next_check`).
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from parallax.base.errors import GuardError
from parallax.base.types import Array, Comm, Tensor, Value
from parallax.graph.view import VARIABLES, GraphView
from parallax.report.logger import log
from parallax.report.text import pluralize
from parallax.runtime.guard.difference import (
    ValueDifference,
    difference_text,
    is_rounded_type,
    is_rounding,
    largest_difference,
    order_text,
    unequal_runs_text,
    when_text,
)
from parallax.runtime.guard.fingerprints import Fingerprint, fingerprint
from parallax.runtime.guard.watched_variables import WatchedVariable, find_applied, watched_variables, writers_of
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.session.accumulation import Gather
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.runtime.worker.session.runs import Runs
from parallax.transform.pipeline import WorkerGraph

_NAN = -1
_CPU_INFO = Path("/proc/cpuinfo")
_PROCESSOR = ("model name", "flags", "CPU part", "Features")


class _State(NamedTuple):
    """A worker's state after a step: the 64-bit fingerprint of each variable, None if it has no value."""

    step: int
    digests: tuple[int | None, ...]
    order: bytes

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(repr(self).encode()).digest()


class _Report(NamedTuple):
    """A worker's message at every comparison: the digest of its state, and seconds."""

    digest: bytes
    made_s: float
    met_s: float
    elapsed_s: float
    step_s: float


@dataclass(slots=True)
class _Clock:
    """Times of one worker; `spent_s` is the cost of all comparisons, and equal on all workers."""

    began_s: float | None = None
    compared_s: float = 0.0
    compared_step: int = 0
    steps_s: float = 0.0
    met_s: float = 0.0
    spent_s: float = 0.0


class Guard:
    """The guard of one worker; all workers have one.

    Attributes:
        runs: records of this worker's runs.
        step: the number of steps made.
        checks: the number of comparisons.

    Args:
        worker: this worker's graph and session.
        comm: communicator of the workers, the guard's own.
        view: the user's graph.
        updates: its ops that gradients reach and that write variables. An optimizer's ops also count if no gradient is
            known to reach them: the guard must detect updates that the analysis has missed.
    """

    def __init__(self, worker: WorkerContext, comm: Comm, view: GraphView, updates: frozenset[str]) -> None:
        self._worker = worker
        self._comm = comm
        self._view = view
        self._updates = updates | find_applied(view)
        variables = [name for name, node in view.nodes.items() if node.op in VARIABLES]
        writers = frozenset(writer for name in variables for writer in writers_of(view, name))
        self.runs = Runs(view, writers, TrainingRuns(worker, self._updates).trains)
        self.step = self.checks = 0
        self._next = 1
        self._equal = -1  # the last step after which all were equal; 0 for the initial values
        self._clock = _Clock()
        self._watched: tuple[WatchedVariable, ...] = ()
        self._ops: dict[str, Fingerprint] = {}
        self._here: dict[str, str] = {}
        self._calls: dict[tuple[str, ...], Callable[[], list[Value]]] = {}
        self._there: set[str] = set()  # variables in the session that are known to have a value
        self._rounded: set[str] = set()
        self._last: _State | None = None
        self._finished_step: int | None = None
        self._rounds_alike = len(set(comm.allgather(_processor()))) == 1

    def follow(self, worker_graph: WorkerGraph, names: Mapping[str, str] | None = None) -> None:
        """Switches to a new plan; adds its ops to the default graph, a worker's.

        Args:
            worker_graph: made by the plan.
            names: node of the user's graph -> node in the session, if that is another.
        """
        graph = tf.compat.v1.get_default_graph()
        self._watched = watched_variables(self._view, self._updates, worker_graph)
        self._here = {one.op: (names or {}).get(one.op, one.op) for one in self._watched}
        self._calls = {}
        for one in self._watched:
            here = self._here[one.op]
            if here not in self._ops:
                self._ops[here] = fingerprint(graph.get_operation_by_name(here), one, worker_graph.lazily_updated)

    def begin(self) -> None:
        """Compares the initial values, once they exist; every worker must call it.

        TensorFlow's preparation of the run then counts as part of the start, not of the first step.

        Raises:
            GuardError: on all workers, when they differ.
        """
        with self._worker.watch.run("the guard's comparison of initial values", "guard, 0"):
            self._compare(time.monotonic())
        self._clock = _Clock()

    def after_run(
        self,
        fetched: tuple[str, ...],
        for_hooks: tuple[str, ...],
        fed: Mapping[str, Value] | set[str],
        gather: Gather | None,
        seconds: float,
    ) -> None:
        """Counts a run of the user's loop, and compares the workers when due.

        Args:
            fetched: by the user, in the user's names.
            for_hooks: fetched by hooks.
            fed: by both.
            gather: for a run that accumulates gradients for a later update.
            seconds: how long it took.

        Raises:
            GuardError: on all workers, when they differ.
        """
        kind = self.runs.add(self._worker.names, fetched, for_hooks, fed, gather)
        if not kind.is_step:
            return
        now_s = time.monotonic()
        if self._clock.began_s is None:
            self._clock.began_s = self._clock.compared_s = now_s - seconds
        self._clock.steps_s += seconds
        self.step += 1
        if self.step >= self._next:
            with self._worker.watch.run(f"the guard's comparison after step {self.step}", f"guard, {self.step}"):
                self._compare(now_s)

    def close(self) -> None:
        """Keeps this worker's state when its session ends successfully, to compare it with the others' at the end."""
        state, nan = self._state(), [self._ops[self._here[one.op]].has_nan for one in self._watched]
        checked = [i for i, of_one in enumerate(nan) if of_one is not None and state.digests[i] is not None]
        nan_flags = self._run(tuple(nan[i] for i in checked)) if checked else []
        have = {i for i, has_nan in zip(checked, nan_flags, strict=True) if has_nan}
        # Which of several NaN results from a sum depends on the worker: their bits mean nothing.
        digests = tuple(_NAN if i in have else digest for i, digest in enumerate(state.digests))
        self._last = state._replace(digests=digests)

    def finish(self) -> bool:
        """Compares the final states of all workers, every one of which must call it.

        Returns:
            False if there was no step since the last call, and nothing is done.

        Raises:
            GuardError: on all workers, when they differ.
        """
        if self._finished_step == self.step:
            return False
        self._finished_step = self.step
        if self._last is None and self._worker.raw is not None:
            self.close()
        barrier(self._comm)
        ends: list[_State | None] = self._comm.allgather(self._last)
        known = [end for end in ends if end is not None]
        if len(known) == len(ends) and len({end.step for end in known}) == 1:
            self.checks += 1
            self._check_equal(known, at_end=True)
        self._last = None
        return True

    def cost_text(self) -> str:
        """The cost of the comparisons so far."""
        share = self._clock.spent_s / self._clock.steps_s if self._clock.steps_s else 0.0
        return (
            f"Guard: {self.checks} comparisons of {pluralize(len(self._watched), 'variable')} took "
            f"{self._clock.spent_s:.2g} s, {100 * share:.2g} % of the steps' time."
        )

    def _compare(self, now_s: float) -> None:
        clock = self._clock
        self.checks += 1
        state = self._state()
        made_s = time.monotonic() - now_s
        steps = max(1, self.step - clock.compared_step)
        step_s = (now_s - clock.compared_s) / steps
        report = _Report(state.digest, made_s, clock.met_s, now_s - (clock.began_s or now_s), step_s)
        began_s = time.monotonic()
        reports: list[_Report] = self._comm.allgather(report)
        clock.met_s = time.monotonic() - began_s
        if any(one.digest != reports[0].digest for one in reports):
            self._check_equal(self._comm.allgather(state))
            clock.spent_s += max(self._comm.allgather(time.monotonic() - began_s - clock.met_s))
        self._equal = self.step
        self.runs.forget_recent()
        # The last worker to arrive does not wait: its time is that of the comparison. All must schedule the same next
        # step.
        clock.spent_s += max(one.made_s for one in reports) + min(one.met_s for one in reports)
        times = Times(clock.spent_s, min(o.elapsed_s for o in reports), min(o.step_s for o in reports))
        self._next = next_check(self.step, times) if self.step else 1
        clock.compared_s, clock.compared_step = time.monotonic(), self.step

    def _state(self) -> _State:
        """This worker's current state."""
        names = [self._here[one.op] for one in self._watched]
        unknown = tuple(name for name in names if name not in self._there)
        if unknown:
            initialized_flags = self._run(tuple(self._ops[name].is_there for name in unknown))
            self._there.update(name for name, is_there in zip(unknown, initialized_flags, strict=True) if is_there)
        there = tuple(name for name in names if name in self._there)
        digests = {}
        if there:
            made = self._run(tuple(self._ops[name].digest for name in there))
            digests = {name: int(one[0]) for name, one in zip(there, made, strict=True)}
        return _State(self.step, tuple(digests.get(name) for name in names), self.runs.list_collective_runs().digest)

    def _run(self, tensors: tuple[Tensor, ...]) -> list[Value]:
        """The values of some tensors; the same ones are fetched repeatedly."""
        key = tuple(tensor.name for tensor in tensors)
        if key not in self._calls:
            self._calls[key] = self._worker.raw.make_callable(list(tensors))
        return self._calls[key]()

    def _check_equal(self, states: Sequence[_State], at_end: bool = False) -> None:
        """Raises GuardError, on all workers, if states differ that must be equal.

        Args:
            states: by worker.
            at_end: whether the sessions have ended: the workers' actions since their last step do not count.
        """
        if len({(state.step, state.order) for state in states}) > 1 and not at_end:
            raise GuardError(order_text(self._comm.allgather(self.runs.list_collective_runs().recent), self.step))
        suspects = [i for i in range(len(self._watched)) if len({state.digests[i] for state in states}) > 1]
        ran = [dict(self.runs.written_by(self._watched[i].writers)) for i in suspects]
        by_worker = self._comm.allgather(ran)
        for number, i in enumerate(suspects):
            one, counts = self._watched[i], [of_worker[number] for of_worker in by_worker]
            unequal = unequal_runs_text(counts)
            if unequal and (at_end or not one.trains):
                continue  # the loop has caused it, and no step reads the variable
            values = [state.digests[i] for state in states]
            largest: list[ValueDifference | None] = []
            if not at_end and None not in values:
                largest = self._comm.allgather(largest_difference(self._comm, self._pieces(one)))
            if self._is_the_same(one, largest, at_end):
                continue
            wrote = [(self._view.op(n), n) for n in one.writers if any(n in of_worker for of_worker in counts)]
            others = [self._watched[j].op for j in suspects[number + 1 :]]
            when = when_text(self.step, self._equal, at_end)
            raise GuardError(difference_text(one, when, values, largest, wrote, unequal, others))

    def _is_the_same(self, one: WatchedVariable, largest: Sequence[ValueDifference | None], at_end: bool) -> bool:
        """Whether values whose bits differ are equal, or differ by rounding of different processors."""
        if not largest:
            return at_end and is_rounded_type(one.dtype) and not self._rounds_alike
        known = [one for one in largest if one is not None]
        if not known:
            return True
        if self._rounds_alike or not all(is_rounding(found, one.dtype, self.step) for found in known):
            return False
        if one.op not in self._rounded and self._comm.Get_rank() == 0:
            most = max(known, key=lambda found: found.size)
            log.info(
                "Workers have different processors or numbers of cores, which round differently: after step "
                f"{self.step} their copies of {one.op!r} differ by at most {most.size:.2g}, for values up to "
                f"{most.scale:.2g}."
            )
        self._rounded.add(one.op)
        return True

    def _pieces(self, one: WatchedVariable) -> Iterator[Array]:
        """The value of a variable, in pieces by row."""
        for piece in self._ops[self._here[one.op]].pieces:
            value = self._worker.raw.run(piece)
            yield np.asarray(value, object if isinstance(value, bytes) else None)


def _processor() -> str:
    """The properties of this processor that arithmetic depends on: if they are equal, equal steps give equal bits."""
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines() if _CPU_INFO.is_file() else [platform.processor()]
    of_cpu = sorted({line for line in lines if line.startswith(_PROCESSOR)} or {platform.machine()})
    # TensorFlow splits a sum into as many parts as it may use cores, and adds in no fixed order on a GPU.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [platform.node() for _ in tf.config.list_physical_devices("GPU")]
    return repr((of_cpu, cores, gpus, tf.__version__))


DOUBLING_UP_TO = 8
"""The number of first steps that are compared whatever the cost: most faults show in these."""
PERIOD_S = 30.0
"""The interval up to which the steps between two comparisons double."""
SHARE = 0.005
"""The share of a job's time that all comparisons together may reach, after those first ones."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times known after a comparison; equal on all workers, which must schedule the same next one.

    Attributes:
        spent_s: seconds of all comparisons so far.
        elapsed_s: since the first step.
        step_s: seconds of a step, including the loop's work between steps.
    """

    spent_s: float
    elapsed_s: float
    step_s: float


def next_check(step: int, times: Times) -> int:
    """The step after which workers are compared next, after a comparison at `step`."""
    if step < DOUBLING_UP_TO:
        return 2 * step
    step_s = max(times.step_s, 1e-6)
    steps = min(step, math.ceil(PERIOD_S / step_s))
    affordable = math.ceil((times.spent_s / SHARE - times.elapsed_s) / step_s)
    return step + max(1, steps, affordable)
