"""Makes the hooks of a session that trace some of its steps, and the files of `ProfileConfig`, as in Parallax 2019.

    PROFILE_DIR/HOST/worker:RANK/run_meta/run_meta_STEP    a RunMetadata
    PROFILE_DIR/HOST/worker:RANK/timeline/timeline_STEP    the same for chrome://tracing or Perfetto, as JSON
    PROFILE_DIR/HOST/worker:RANK/metagraph                 the worker's graph, a MetaGraphDef

A step is a training run. Its number is the global step before the run; without one in the graph, the number of earlier
training runs.
"""

from __future__ import annotations

import socket
from pathlib import Path

import tensorflow as tf
from tensorflow.python.client.timeline import Timeline

from parallax.base.errors import ConfigError
from parallax.base.types import Coordinator, RunArgs, RunContext, RunValues, Session
from parallax.runtime.trace.hook import TraceHook
from parallax.runtime.trace.options import TraceOptions, make_ready
from parallax.runtime.worker.ranks import current_process_group
from parallax.runtime.worker.reports.graph_files import meta_graph
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.settings.config import Config
from parallax.settings.parts import ProfileConfig
from parallax.transform.pipeline import WorkerGraph

v1 = tf.compat.v1


def profile_hooks(config: Config, rank: int, worker: WorkerContext, training: TrainingRuns) -> list[ProfileHook]:
    """The hook that traces steps, if any are to be traced on this worker."""
    profile = config.profile_config
    if profile.profile_dir is None or profile.profile_worker not in (None, rank):
        return []
    return [ProfileHook(profile, rank, worker, training)]


def trace_hooks(
    options: TraceOptions | None, worker: WorkerContext, training: TrainingRuns, worker_graph: WorkerGraph
) -> list[TraceHook]:
    """The hook that traces steps of all workers, if any are to be traced."""
    if options is None:
        return []
    members = current_process_group()
    make_ready(options.folder, members.rank)
    hook = TraceHook(options, members, worker, training, worker_graph.synchronous)
    members.at_end.append(hook.finish)
    return [hook]


class ProfileHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Traces the steps of one worker that a ProfileConfig names; precedes the session's last hook.

    Args:
        config: the steps, and the folder.
        rank: this worker's.
        worker: its graph.
        training: identifies the runs that are steps.
    """

    def __init__(self, config: ProfileConfig, rank: int, worker: WorkerContext, training: TrainingRuns) -> None:
        self._config = config
        self._rank = rank
        self._worker = worker
        self._training = training
        self._step: int | None = None  # the step being traced
        self._folder = Path(config.profile_dir or "") / socket.gethostname() / f"worker:{rank}"

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the graph."""
        graph = meta_graph(session.graph)
        self._write("metagraph", graph.SerializeToString())

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Requests a trace if the run is a step that is to be traced."""
        self._step = None
        step = self._training.step
        if step is None:
            return None
        if global_step := self._own_global_step():
            step = int(self._worker.raw.run(global_step))
        if not self._config.traces(step, self._rank):
            return None
        self._step = step
        return v1.train.SessionRunArgs(None, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE))

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Writes the trace."""
        if self._step is None:
            return
        metadata = run_values.run_metadata
        self._write(f"run_meta/run_meta_{self._step}", metadata.SerializeToString())
        trace = Timeline(metadata.step_stats).generate_chrome_trace_format()
        self._write(f"timeline/timeline_{self._step}", trace.encode())

    def _own_global_step(self) -> str:
        """The tensor of the global step, if the graph has one that a worker can read alone."""
        with self._worker.graph.as_default():
            variable = v1.train.get_global_step(self._worker.graph)
        if variable is None:
            return ""
        name = str(self._worker.graph.as_graph_element(variable).name)
        resolved = self._worker.names.resolve((name,), ())
        return "" if resolved.collectives else resolved.tensors[0]

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise ConfigError(
                f"profile_dir must be a writable folder: {path}: {error.strerror}. Name another."
            ) from error
