"""Records the requested steps of one worker, and gathers the traces of all workers.

In synchronous training all workers reach the end of the last requested step, and merge the traces there. The rest
(asynchronous training, fewer steps than requested) is merged when the scripts have ended: every worker gets there, or
fails, which ends the job. Before the merge each worker writes its own traces.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from parallax.base.types import Comm, Coordinator, RunArgs, RunContext, RunMetadata, RunValues, Session
from parallax.cluster.team_names import HOST
from parallax.graph.view import GraphView
from parallax.report.show import show
from parallax.runtime.trace.chrome import trace_text
from parallax.runtime.trace.clocks import SAME_CLOCK, Offset, Ping, best_offset, offset_at
from parallax.runtime.trace.limits import step_limits
from parallax.runtime.trace.offsets import Bounds, both, offset_between, server_bounds
from parallax.runtime.trace.ops import Step, read_step
from parallax.runtime.trace.options import MERGED, SUMMARY, TraceOptions, rank_file
from parallax.runtime.trace.rows import RankTrace, correct_times, rank_trace
from parallax.runtime.trace.stage_passes import (
    StagePasses,
    add_predictions,
    count_alive_bytes,
    find_passes,
    merge_runs,
    stage_lines,
)
from parallax.runtime.trace.summary import summary
from parallax.runtime.trace.waits import arrivals, last_arrivals, waits
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.runtime.worker.session.direct import TraceRequest
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.transform.building.all_to_all import ALL_TO_ALL
from parallax.transform.swap import as_planned

v1 = tf.compat.v1
_LOG = logging.getLogger("parallax.trace")
_ROUNDS = 20  # requests to rank 0; the one with the shortest round trip counts


class TraceHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Traces one worker; all workers must have one, and call `finish` at their ends.

    With a model in stages, a step is an update, of several runs that overlap: their traces are complete when none of
    them is in flight.

    Attributes:
        request: of the run in progress, if it may overlap and is to be traced.
        finished: whether the traces are written, and runs need no more inspection.

    Args:
        options: the steps, and the folder.
        members: the job.
        worker: this one's graph.
        training: identifies the runs that are steps.
        synchronous: whether all workers run each step together.

    Raises:
        ValueError: there is no current plan yet.
    """

    def __init__(
        self,
        options: TraceOptions,
        members: ProcessGroup,
        worker: WorkerContext,
        training: TrainingRuns,
        synchronous: bool,
    ) -> None:
        if worker.plan is None:
            raise ValueError("Steps are traced under a plan.")
        self._options = options
        self._members = members
        self._worker = worker
        self._training = training
        self._plan = worker.plan
        self._runs_of_step = worker.plan.accumulate_steps if worker.plan.stages else 1
        # Traced runs that overlap are prepared on their own, for which the step before is traced in vain.
        self._first = max(0, options.first - 1) if worker.plan.stages else options.first
        self._synchronous = synchronous
        self._comm: Comm = None
        self._offsets: list[Offset] = []
        self._run: int | None = None  # the run being traced
        self.request: TraceRequest | None = None
        self._measured: list[tuple[int, RunMetadata]] = []
        self._runs: tuple[Step, ...] | None = None
        self.finished = False
        hosts = members.parcel.hosts
        several = len(set(hosts)) > 1
        self._host = members.parcel.addresses[hosts[members.rank]] if several else socket.gethostname()
        # GPU kernels and the servers' work are in full traces only, which cost more.
        needs_all = bool(members.target) or bool(tf.config.list_physical_devices("GPU"))
        self._level = v1.RunOptions.FULL_TRACE if needs_all else v1.RunOptions.SOFTWARE_TRACE

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Measures the clocks for the first time; every worker calls it."""
        self._comm = self._members.workers.Dup()
        self._offsets.append(_measured_offset(self._comm, self._members.parcel.hosts))

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Requests a trace if the run is of a requested step."""
        self._run = self.request = None
        run = None if self.finished else self._training.step
        if run is None or not self._first <= run // self._runs_of_step <= self._options.last:
            return None
        self._run = run
        if self._plan.stages:
            self.request = TraceRequest(self._level, v1.RunMetadata())
            return None
        return v1.train.SessionRunArgs(None, options=v1.RunOptions(trace_level=self._level))

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Keeps the measurements; writes them after the last requested step."""
        if self._run is None:
            return
        # Parsed later: it takes time, and would delay the next step.
        if self._run >= self._options.first * self._runs_of_step:
            metadata = run_values.run_metadata if self.request is None else self.request.run_metadata
            self._measured.append((self._run, metadata))
        if self._run + 1 < (self._options.last + 1) * self._runs_of_step:
            return
        if self._plan.stages:
            run_context.session.run([])  # returns when no run is in flight, and all have filled their metadata
        if not self._synchronous:
            self._write_alone()
            return
        with self._worker.watch.run("the trace", "trace"):
            self.finish()

    def finish(self) -> None:
        """Gathers and writes the traces of all workers; a second call has no effect."""
        if self.finished or self._comm is None:
            return
        self.finished = True
        runs = self._write_alone()
        comm, rank = self._comm, self._members.rank
        barrier(comm)
        self._offsets.append(_measured_offset(comm, self._members.parcel.hosts))
        trace, steps = self._with_others(runs)
        self._write(rank_file(self._options.folder, rank), trace_text([trace], steps))
        traces = comm.gather(trace)
        if rank == 0:
            stages: Iterable[str] = ()
            if self._plan.stages:
                passes = add_predictions([trace.passes for trace in traces], self._plan)
                traces = [replace(trace, passes=found) for trace, found in zip(traces, passes, strict=True)]
                stages = stage_lines(passes, self._plan)
            text = summary(traces, (self._options.first, self._options.last), stages)
            self._write(self._options.folder / MERGED, trace_text(traces))
            self._write(self._options.folder / SUMMARY, text)
            show(text)

    def _write_alone(self) -> tuple[Step, ...]:
        """Writes this worker's trace on its own clock, unless already done; returns its runs."""
        if self._runs is None:
            self._runs = tuple(
                read_step(run // self._runs_of_step, metadata.step_stats, run % self._runs_of_step)
                for run, metadata in self._measured
            )
            self._measured.clear()
            steps = merge_runs(self._runs)
            alone = rank_trace(self._members.rank, self._host, SAME_CLOCK, steps, ())
            self._write(rank_file(self._options.folder, self._members.rank), trace_text([alone], steps))
        return self._runs

    def _with_others(self, runs: tuple[Step, ...]) -> tuple[RankTrace, tuple[Step, ...]]:
        """This worker's trace on rank 0's clock with its waits for others, and its steps on that clock."""
        comm, members, parcel = self._comm, self._members, self._members.parcel
        at_us = runs[0].ops[0].start_us if runs and runs[0].ops else self._offsets[0].at_us
        uncertainty_us = max(offset.uncertainty_us for offset in self._offsets)
        offset = Offset(at_us, offset_at(self._offsets, at_us), uncertainty_us)
        offsets_and_bounds = comm.allgather((offset, server_bounds(runs, offset.offset_us)))
        servers = _server_offsets(parcel.servers, parcel.hosts, *zip(*offsets_and_bounds, strict=True))
        runs = tuple(correct_times(run, self._offsets, servers) for run in runs)
        steps, rank, group = merge_runs(runs), members.rank, members.stage or members.island
        came = arrivals(steps, self._within_host(), parcel.hosts[rank], group)
        waited = waits(rank, came, last_arrivals(comm.allgather(came)))
        known = tuple(servers.get(number) for number in range(len(parcel.servers)))
        trace = replace(rank_trace(rank, self._host, offset, steps, waited, known), group=group)
        view = GraphView(self._worker.names.run_view.graph_def)
        if self._plan.stages:
            autodiff = {node for record in self._worker.analysed.captured.records for node in record.ops}
            measured, alive_bytes = find_passes(runs, view, autodiff), count_alive_bytes(runs)
            return replace(trace, passes=StagePasses(members.stage, measured, alive_bytes)), steps
        return replace(trace, limits=step_limits(view, steps, waited, self._within_host())), steps

    def _within_host(self) -> frozenset[str]:
        """The collectives between the workers of a host: those of a process set."""
        nodes = self._worker.names.run_view.nodes.values()
        return frozenset(as_planned(n.name) for n in nodes if n.op == ALL_TO_ALL and n.attr["among"].s.decode() == HOST)

    def _write(self, path: Path, text: str) -> None:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:  # a failed write of a trace does not end training
            _LOG.warning("The trace of this step range is lost: %s cannot be written: %s.", path, error.strerror)


def _measured_offset(comm: Comm, hosts: tuple[int, ...]) -> Offset:
    """The offset between this worker's clock and rank 0's; all workers must call it. A host has one clock."""
    rank = comm.Get_rank()
    offset = SAME_CLOCK
    for other in (r for r, host in enumerate(hosts) if host != hosts[0]):
        if rank == 0:
            for _ in range(_ROUNDS):
                comm.recv(source=other)
                comm.send(_now_us(), other)
        elif rank == other:
            offset = best_offset([_ping(comm) for _ in range(_ROUNDS)])
    return offset


def _ping(comm: Comm) -> Ping:
    sent_us = _now_us()
    comm.send(None, 0)
    answered_us = comm.recv(source=0)
    return Ping(sent_us, answered_us, _now_us())


def _now_us() -> float:
    """The current time on the clock of TensorFlow's traces."""
    return time.time_ns() / 1000


def _server_offsets(
    servers: tuple[int, ...], hosts: tuple[int, ...], offsets: tuple[Offset, ...], bounds: tuple[dict[int, Bounds], ...]
) -> dict[int, Offset]:
    """The offsets of the servers' clocks: those of a worker on their host, or estimated from messages."""
    offset_by_server = {}
    for number, host in enumerate(servers):
        if host in hosts:
            offset_by_server[number] = offsets[hosts.index(host)]
            continue
        known: Bounds | None = None
        for one in bounds:
            known = both(known, one.get(number, Bounds()))
        offset = offset_between(known) if known is not None else None
        if offset is not None:
            offset_by_server[number] = offset
    return offset_by_server
