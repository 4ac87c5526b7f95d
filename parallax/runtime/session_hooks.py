"""Makes the hooks of a session that trace some of its steps."""

from __future__ import annotations

from parallax.runtime.trace.hook import TraceHook
from parallax.runtime.trace.options import TraceOptions, make_ready
from parallax.runtime.worker.ranks import current_process_group
from parallax.runtime.worker.session.profile_files import ProfileHook
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.settings.config import Config
from parallax.transform.pipeline import WorkerGraph


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
