"""Opens a worker's session: agree with the other workers, transform the graph, give variables their initial values.

Each worker starts Horovod and trains the launcher's graph (worker/one_graph.py). It takes the plan from the parcel,
lets hooks build their ops, and decides; digests of plan and decisions must be equal on all workers, because those that
disagree would wait for each other for ever. It transforms and imports the graph and opens TensorFlow's monitored
session on it. Initializers run, then every variable that all hold takes worker 0's value; variables on servers have it
already.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from parallax.analysis.reading.capture import initialization_phases
from parallax.analysis.reading.gradients import gradient_updates
from parallax.analysis.stages import Analysed, analyse, analysed_as, constraints_of, rewrites_of
from parallax.errors import PlanError
from parallax.logger import log
from parallax.plans.plan import plan_from_json
from parallax.report.text import bytes_text
from parallax.runtime.checkpoint.hook import CallingHook, CheckpointHook, Checkpoints, checkpoints
from parallax.runtime.checkpoint.values import VariableValues, values_of
from parallax.runtime.guard.guard import Guard
from parallax.runtime.measure.first_steps import FirstSteps
from parallax.runtime.measure.options import MeasureOptions
from parallax.runtime.replan.change_over import ChangeOver, places_of
from parallax.runtime.replan.options import ReplanOptions
from parallax.runtime.replan.partitions import PartitionSearch, searches
from parallax.runtime.replan.replan import Replan
from parallax.runtime.trace.hook import TraceHook
from parallax.runtime.trace.options import TraceOptions, make_ready
from parallax.runtime.verify.claimed import KeptTensors
from parallax.runtime.worker.bfloat16 import EffectHook, options_with
from parallax.runtime.worker.channels import open_channels
from parallax.runtime.worker.direct import DirectRuns, Finishing, can_be_direct
from parallax.runtime.worker.graph_files import write_events, write_text
from parallax.runtime.worker.heartbeat import current_heartbeat
from parallax.runtime.worker.hooks import LastHook, TrainingRuns, UserHook, WorkerContext, begin_hooks
from parallax.runtime.worker.job_message import JobMessage
from parallax.runtime.worker.names import Names
from parallax.runtime.worker.one_graph import launchers_graph, take_launchers_graph
from parallax.runtime.worker.profile import ProfileHook
from parallax.runtime.worker.ranks import SERVER_TASK, WORKER_TASK, ProcessGroup, current_process_group
from parallax.runtime.worker.run_log import RunLog
from parallax.runtime.worker.session import BetweenStepsHook, Session
from parallax.settings.config import Config
from parallax.settings.parts import CheckPointConfig
from parallax.transform.building import editor
from parallax.transform.pipeline import WorkerGraph, transform
from parallax.types import Graph

v1 = tf.compat.v1

_LARGE_BYTES = 64 * 2**20
"""From this size on it is told that a value is made whole; a checkpoint too holds so much at once."""


def open_session(
    graph: Graph,
    config: Config,
    parcel: JobMessage,
    equal_randomness: bool = False,
    graph_folder: Path | None = None,
    trace: TraceOptions | None = None,
    measure: MeasureOptions | None = None,
    replan: ReplanOptions | None = None,
    kept: Path | None = None,
    has_values: bool = False,
) -> tuple[Session, int, int]:
    """The session of this worker, the number of workers and this one's rank; every worker must call it.

    Args:
        graph: the user's graph.
        config: hooks and session options.
        parcel: what the launcher decided.
        equal_randomness: for verification, all workers draw the same random numbers.
        graph_folder: where this worker's graph is written for TensorBoard, if anywhere.
        trace: which steps are traced, if any.
        measure: which steps are profiled, if any.
        replan: whether a better plan is looked for, and what is done about it.
        kept: for verification, where tensors of each step are left.
        has_values: whether `session.values` shall read and write single variables.

    Raises:
        OtherGraphError: when this worker built a graph of another structure than the launcher.
        PlanError: when the plan is not this graph's.
        SessionError: when this process has opened a session before.
    """
    members = current_process_group()
    watch = current_heartbeat()
    watch.open()
    with watch.run("parallel_run", "parallel_run"):
        size, rank = members.size, members.rank
        plan = plan_from_json(parcel.plan)
        launcher, digest = launchers_graph(graph, parcel.graph, plan.fingerprint, rank)
        members.start()
        take_launchers_graph(graph, launcher, members.workers)
        analysed = analysed_as(graph, parcel.spec, digest)
        plan.check_belongs_to(analysed.spec, plan.layout)
        alone, analysed = analysed, _with_hooks(analysed, graph, config)
        rewrites = rewrites_of(analysed, plan, equal_randomness)
        _agree("plan", plan.to_json())
        _agree("decisions", repr(rewrites))
        place = _place(members, config, equal_randomness)
        worker_graph = transform(analysed.captured.view, rewrites, place)
        if rank == 0:
            tell_of_whole_values(worker_graph.cut_whole)
        open_channels(worker_graph.graph_def, members.workers, members.host_workers)
        worker = WorkerContext(graph, Names(analysed.captured.view, worker_graph), watch, analysed)
        worker.follow(plan, worker_graph)
        later = initialization_phases(analysed.captured)[1:]
        if graph_folder is not None:
            write_events(graph_folder, rank, worker_graph)
        if equal_randomness:  # a comparison from the initial values
            config = replace(config, ckpt_config=CheckPointConfig(), guard=False)
        updates = gradient_updates(analysed.captured, analysed.sources)
        training = TrainingRuns(worker, updates)
        if not equal_randomness:  # whoever compares fetches what was asked for
            worker.log = RunLog(analysed.captured.view, updates, tells=rank == 0)
            members.at_end.append(worker.log.finish)
        tracing = [*_profile(config, rank, worker, training), *_trace(trace, worker, training, worker_graph)]
        if kept is not None:
            tracing.append(KeptTensors(kept, rank, training))
        first = _first_steps(measure, replan, members, worker, training, analysed)
        if first is not None:
            tracing.append(first)
        if config.compute_dtype is not None:
            tracing.append(EffectHook(training, members))
        guard = _guard(config, members, worker, analysed, worker_graph)
        monitored, direct, saved, values = _monitored(
            graph, worker_graph, config, worker, later, tracing, guard, has_values
        )
        over = ChangeOver(members, worker, analysed, place, worker_graph, saved, guard)
        afterwards: list[BetweenStepsHook] = []
        if replan is not None and first is not None:
            # The command line goes before the script's settings, and the plan has both.
            constraints = replace(
                constraints_of(config, plan.synchronous),
                wire_dtype=plan.wire_dtype,
                accumulate_steps=plan.accumulate_steps,
            )
            afterwards.append(Replan(replan, members, worker, first, alone, constraints, over))
        if searches(config, plan, equal_randomness):
            wished = config.of_variables("partitions")
            afterwards.append(PartitionSearch(members, worker, training, alone.spec, wished, over))
        if config.export_graph_path is not None:
            write_text(Path(config.export_graph_path), rank, monitored.graph)
        if guard is not None:
            guard.begin()
    gc.freeze()  # graphs are many objects that stay: to look through them again and again costs a step a tenth
    for act in members.when_built:
        act(rank)
    session = Session(worker, monitored, size, members.workers.Dup(), direct, afterwards, guard, values)
    return session, size, rank


def tell_of_whole_values(values: Sequence[editor.CutWhole]) -> None:
    """Logs the large ones of what a worker makes whole although rows of it are wanted only."""
    for cut in values:
        if cut.size_bytes >= _LARGE_BYTES:
            log.info(
                f"{cut.op} {cut.node!r} of {cut.variable} has no rule by row: {bytes_text(cut.size_bytes)} are made "
                "whole and then cut to their owners' rows (docs/architecture.md, Initial values)."
            )


def _first_steps(
    measure: MeasureOptions | None,
    replan: ReplanOptions | None,
    members: ProcessGroup,
    worker: WorkerContext,
    training: TrainingRuns,
    analysed: Analysed,
) -> FirstSteps | None:
    """The hook that measures the first steps, if anybody wants to know what they touch."""
    if replan is not None:  # what is measured for a file is measured in the same steps
        path, cluster = (None, "") if measure is None else (measure.path, measure.cluster)
        measure = MeasureOptions(path, replan.steps, cluster)
    if measure is None:
        return None
    first = FirstSteps(measure, members, worker, training, analysed)
    members.at_end.append(first.finish)
    return first


def _guard(
    config: Config,
    members: ProcessGroup,
    worker: WorkerContext,
    analysed: Analysed,
    worker_graph: WorkerGraph,
) -> Guard | None:
    """The guard, where there are several workers that have anything equal."""
    if not config.guard or members.size == 1 or not worker_graph.synchronous:
        return None
    updates = frozenset(gradient_updates(analysed.captured, analysed.sources))
    guard = Guard(worker, members.workers.Dup(), analysed.captured.view, updates)
    worker.runs = guard.runs

    def finish() -> None:
        guard.finish()
        if members.rank == 0 and guard.step:
            log.info(guard.cost_text())

    members.at_end.append(finish)
    return guard


def _place(members: ProcessGroup, config: Config, equal_randomness: bool) -> editor.Worker:
    """Which of the workers this is, for the transform."""
    aggregates = config.communication_config.ps_config.local_aggregation
    return editor.Worker(
        rank=members.rank,
        size=members.size,
        seed=members.parcel.seed,
        equal_randomness=equal_randomness,
        hosts=members.parcel.hosts,
        merges_in_host=aggregates and members.host_workers is not None,
        servers=members.parcel.servers,
    )


def _with_hooks(analysed: Analysed, graph: Graph, config: Config) -> Analysed:
    """The graph with what the user's hooks add to it when they begin."""
    before = graph.version
    begin_hooks(config.hooks, graph)
    return analysed if graph.version == before else analyse(graph)


def _agree(what: str, text: str) -> None:
    """Workers that disagree would wait for each other for ever."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    for rank, other in enumerate(current_process_group().workers.allgather(digest)):
        if other != digest:
            raise PlanError(
                f"All workers must have the same {what}, and worker {rank} has another. Start the job anew."
            )


def _profile(config: Config, rank: int, worker: WorkerContext, training: TrainingRuns) -> list[ProfileHook]:
    """The hook that traces steps, if any are to be traced on this worker."""
    wanted = config.profile_config
    if wanted.profile_dir is None or wanted.profile_worker not in (None, rank):
        return []
    return [ProfileHook(wanted, rank, worker, training)]


def _trace(
    wish: TraceOptions | None, worker: WorkerContext, training: TrainingRuns, worker_graph: WorkerGraph
) -> list[TraceHook]:
    """The hook that traces steps of all workers, if any are to be traced."""
    if wish is None:
        return []
    members = current_process_group()
    make_ready(wish.folder, members.rank)
    hook = TraceHook(wish, members, worker, training, worker_graph.synchronous)
    members.at_end.append(hook.finish)
    return [hook]


def _monitored(
    graph: Graph,
    worker_graph: WorkerGraph,
    config: Config,
    worker: WorkerContext,
    later: list[list[str]],
    more_hooks: Sequence[Any],
    guard: Guard | None,
    has_values: bool,
) -> tuple[Any, DirectRuns | None, Checkpoints | None, VariableValues | None]:
    """TensorFlow's monitored session on this worker's graph, the direct way to it, checkpoints, values, where wanted.

    The initializers `later` run after the others.
    """
    imported = _imported(graph, worker_graph)
    members = current_process_group()
    home = f"/job:{WORKER_TASK}/task:{members.rank}" if members.target else None
    with imported.as_default(), tf.device(home):
        hooks = [*(UserHook(hook, worker) for hook in config.hooks), *more_hooks, LastHook(worker)]
        if guard is not None:
            guard.follow(worker_graph)
        initialize = [imported.get_operation_by_name(n) for n in worker_graph.counter_initializers]
        waiting = {name for phase in later for name in phase}
        saved = None
        if config.ckpt_config.ckpt_dir is not None:
            saved = checkpoints(graph, places_of(worker_graph), config.ckpt_config, members.workers)
            hooks.insert(-1, (CheckpointHook if worker_graph.synchronous else CallingHook)(saved, worker))
        values = values_of(graph, places_of(worker_graph), members.workers.Dup(), worker) if has_values else None
        initialize += [v.initializer for v in v1.global_variables() if v.initializer.name not in waiting]
        resources = [imported.get_operation_by_name(r.create.name) for r in graph.get_collection("resources")]
        scaffold = v1.train.Scaffold(
            init_op=tf.group(*initialize, *resources),
            init_fn=_equal_on_all(worker_graph, later, saved),
            # TensorFlow would look for variables here that servers hold.
            ready_op=v1.report_uninitialized_variables(_held_here(worker_graph)),
            ready_for_local_init_op=tf.constant([], tf.string),
            # TensorFlow would build one that takes the local rows of a table for all of it.
            saver=v1.train.Saver([], allow_empty=True),
        )
        monitored = v1.train.SingularMonitoredSession(
            hooks=hooks, scaffold=scaffold, master=members.target, config=_options(config, members)
        )
        direct = None
        if can_be_direct(imported, hooks[:-1], members.target):
            direct = DirectRuns(worker.raw, [hook for hook in hooks if isinstance(hook, Finishing)])
        return monitored, direct, saved, values


def _held_here(worker_graph: WorkerGraph) -> list[Any]:
    """The variables that this worker has: whole, or rows of them."""
    everything = [*v1.global_variables(), *v1.local_variables()]
    return [v for v in everything if _op_name(v) not in worker_graph.on_servers]


def _options(config: Config, members: ProcessGroup) -> Any:
    """The options of this worker's session, which sees the servers and itself.

    A worker that is slow or gone then holds up no other session, but by what the two exchange.
    """
    options = options_with(config.sess_config or _default_options(), config.compute_dtype)
    if members.target:
        del options.device_filters[:]
        options.device_filters.extend([f"/job:{SERVER_TASK}", f"/job:{WORKER_TASK}/task:{members.rank}"])
    return options


def _imported(graph: Graph, worker_graph: WorkerGraph) -> Any:
    """The worker's graph, with those of the user's collections that a session needs."""
    keys = v1.GraphKeys
    needed = [keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES, keys.TABLE_INITIALIZERS, keys.QUEUE_RUNNERS]
    with graph.as_default():  # variables are not written while TensorFlow executes eagerly
        meta = meta_graph.create_meta_graph_def(
            graph_def=worker_graph.graph_def,
            graph=graph,
            collection_list=[k for k in needed if graph.get_collection(k)],
        )
    imported = tf.Graph()
    with imported.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    return imported


def _default_options() -> Any:
    """One GPU for each worker of a host, where there are any (this path is untested: no machine with a GPU)."""
    import horovod.tensorflow as hvd

    options = v1.ConfigProto(allow_soft_placement=True)
    if tf.config.list_physical_devices("GPU"):
        options.gpu_options.visible_device_list = str(hvd.local_rank())
        options.gpu_options.allow_growth = True
    return options


def _equal_on_all(worker_graph: WorkerGraph, later: list[list[str]], saved: Checkpoints | None) -> Any:
    """Runs the later initializers, gives variables that every worker holds worker 0's initial value, and resumes.

    Seeds already make them equal where random ops give the values; this covers values that Python code gives.
    """
    from horovod.tensorflow import mpi_ops

    copies = []
    with tf.name_scope("parallax_start/"):
        for variable in v1.global_variables():
            elsewhere = worker_graph.tables | worker_graph.on_servers
            if _op_name(variable) in elsewhere or variable.dtype.base_dtype == tf.string:
                continue
            copies.append(variable.assign(_sent(mpi_ops, variable.read_value())).op)
        start = tf.group(*copies)

    def run(_: Any, session: Any) -> None:
        for phase in later:
            session.run(phase)
        session.run(start)
        if saved is not None:
            saved.load(session)

    return run


def _sent(mpi_ops: Any, value: Any) -> Any:
    """Worker 0's value; bfloat16, which Horovod does not know, travels as the integers of its bits."""
    if value.dtype.base_dtype == tf.bfloat16:
        return tf.bitcast(mpi_ops.broadcast(tf.bitcast(value, tf.int16), 0), tf.bfloat16)
    return mpi_ops.broadcast(value, 0)


def _op_name(variable: Any) -> str:
    handle = getattr(variable, "handle", None)
    return str(handle.op.name if handle is not None else variable.op.name)
