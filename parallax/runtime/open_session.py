"""Opens a worker's session: agrees with the other workers, transforms the graph and runs it under its hooks.

Each worker starts Horovod and trains the launcher's graph (session/one_graph.py). It reads the plan from the job
message, lets hooks build their ops, and derives the rewrites. Digests of plan and rewrites must be equal on all
workers, because workers that disagree would wait for each other for ever. It transforms the graph and opens
TensorFlow's monitored session on it (monitored_session.py), which gives variables their initial values.
"""

from __future__ import annotations

import gc
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from parallax.analysis.graph_decisions import GraphDecisions
from parallax.analysis.graph_to_plan import AnalysedGraph, adopt_analysis, analyse, constraints_of, rewrites_of
from parallax.analysis.reading.capture import initialization_phases
from parallax.analysis.reading.gradients import training_updates
from parallax.base.errors import PlanError
from parallax.base.types import Comm, Graph, Hook
from parallax.plans.plan import Layout, Plan, plan_from_json
from parallax.report.logger import log
from parallax.runtime.checkpoint.positions import StoredPositions, stored_positions
from parallax.runtime.guard.guard import Guard
from parallax.runtime.islands.meetings import MeetingsBetweenSteps, meetings_of
from parallax.runtime.measure.first_steps import FirstSteps
from parallax.runtime.measure.options import MeasureOptions
from parallax.runtime.memory_checkpoints.memory import state_in_memory
from parallax.runtime.memory_checkpoints.recovery import RecoveredState
from parallax.runtime.monitored_session import monitored_session
from parallax.runtime.replan.change_over import ChangeOver
from parallax.runtime.replan.options import ReplanOptions
from parallax.runtime.replan.partition_trials import PartitionSearch, searches
from parallax.runtime.replan.replan import Replan
from parallax.runtime.replan.requested_plan import RequestedChange
from parallax.runtime.session_hooks import profile_hooks, trace_hooks
from parallax.runtime.trace.options import TraceOptions
from parallax.runtime.verify.claim_records import SavedTensors
from parallax.runtime.worker.heartbeat import Heartbeat, current_heartbeat
from parallax.runtime.worker.job_message import JobMessage
from parallax.runtime.worker.ranks import ProcessGroup, current_process_group
from parallax.runtime.worker.reports.graph_files import write_events, write_text
from parallax.runtime.worker.reports.graph_notes import log_full_values, log_lost_positions
from parallax.runtime.worker.reports.nan_report import NanReport
from parallax.runtime.worker.reports.run_log import RunLog
from parallax.runtime.worker.session.batch_comparison import BatchComparison
from parallax.runtime.worker.session.bfloat16 import EffectHook
from parallax.runtime.worker.session.channels import open_channels, open_stages
from parallax.runtime.worker.session.names import Names
from parallax.runtime.worker.session.one_graph import read_launcher_graph, take_launcher_graph
from parallax.runtime.worker.session.positions import InputPositions
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.runtime.worker.session.session_parts import BetweenStepsHook
from parallax.runtime.worker.session.stage_values import StageValues
from parallax.runtime.worker.session.user_hooks import begin_hooks
from parallax.runtime.worker.session.worker_session import Session
from parallax.settings.config import Config
from parallax.settings.parts import CheckPointConfig
from parallax.transform.building import editor
from parallax.transform.pipeline import WorkerGraph, transform


@dataclass(frozen=True, slots=True)
class SessionExtras:
    """Additional work of a session during training.

    Attributes:
        equal_randomness: for verification, all workers draw the same random numbers.
        graph_folder: where this worker's graph is written for TensorBoard, if anywhere.
        trace: which steps are traced, if any.
        measure: which steps are profiled, if any.
        replan: whether to search for a better plan, and how to use it.
        verification_folder: for verification, where tensors of each step are saved.
        has_values: whether `session.values` can read and write single variables.
        decisions: the launcher's rewrites of the graph, if this worker has the graph from it; hooks may then add
            nothing to the graph.
    """

    equal_randomness: bool = False
    graph_folder: Path | None = None
    trace: TraceOptions | None = None
    measure: MeasureOptions | None = None
    replan: ReplanOptions | None = None
    verification_folder: Path | None = None
    has_values: bool = False
    decisions: GraphDecisions | None = None


def open_session(
    graph: Graph, config: Config, parcel: JobMessage, extras: SessionExtras | None = None
) -> tuple[Session, int, int]:
    """Returns this worker's session, the number of workers and this one's rank; every worker must call it.

    Args:
        graph: the user's graph.
        config: hooks and session options.
        parcel: the launcher's job message.
        extras: additional work of the session.

    Raises:
        OtherGraphError: when this worker built a graph of another structure than the launcher.
        PlanError: when the plan does not belong to this graph.
        SessionError: when this process has opened a session before.
    """
    extras = extras or SessionExtras()
    members, watch = current_process_group(), current_heartbeat()
    watch.open()
    with watch.run("parallel_run", "parallel_run"):
        made = _make_graph(graph, config, parcel, members, extras)
        worker = _context(graph, made, members, watch)
        if extras.graph_folder is not None:
            write_events(extras.graph_folder, members.rank, made.worker_graph)
        if extras.equal_randomness:  # a comparison from the initial values
            config = replace(config, ckpt_config=CheckPointConfig(), guard=False)
        training = _training(worker, made, members, extras)
        first = _first_steps(extras, members, worker, training, made.analysed)
        hooks = _hooks(config, extras, members, worker, training, made, first)
        guard = _guard(config, members, worker, made.analysed, made.worker_graph)
        later = initialization_phases(made.analysed.captured)[1:]
        meetings = meetings_of(made.launcher_graph, made.plan, made.worker_graph, members, worker, config.guard)
        monitored, direct, saved, memory, values = monitored_session(
            graph,
            made.worker_graph,
            config,
            worker,
            later,
            hooks,
            guard,
            extras.has_values,
            made.place,
            made.recovered,
            meetings,
        )
        over = ChangeOver(members, worker, made.analysed, made.place, made.worker_graph, saved, guard, memory)
        between_steps: list[BetweenStepsHook] = []
        if extras.replan is not None and first is not None:
            between_steps.append(_replan(extras.replan, config, members, worker, first, made, over))
        if searches(config, made.plan, extras.equal_randomness):
            fixed_counts = config.of_variables("partitions")
            between_steps.append(
                PartitionSearch(members, worker, training, made.launcher_graph.spec, fixed_counts, over)
            )
        layout = Layout(made.plan.hosts, parcel.servers)
        change = RequestedChange(worker, training, made.launcher_graph.spec, layout, over, members.workers)
        if meetings is not None:
            between_steps.append(MeetingsBetweenSteps(meetings, training, saved is not None))
        elif members.stages_comm is None:
            between_steps.append(change)
        if config.export_graph_path is not None:
            write_text(Path(config.export_graph_path), members.rank, monitored.graph)
        if guard is not None:
            guard.begin()
    gc.freeze()  # graphs are many objects that stay: repeated garbage collection over them costs a tenth of a step
    for act in members.when_built:
        act(members.rank)
    in_script, size, rank = members.in_script
    session = Session(
        worker, monitored, members.replicas, in_script.Dup(), direct, between_steps, guard, values, change, meetings
    )
    if saved is not None:
        session.resumed_step, session.checkpoints = saved.loaded_step, saved
    return session, size, rank


@dataclass(frozen=True, slots=True)
class _WorkerSetup:
    """The state that the workers agreed on, and this one's graph.

    Attributes:
        plan: the launcher's.
        launcher_graph: the user's graph, as the launcher has it.
        analysed: the graph with the additions of the user's hooks.
        place: this worker's place among the workers.
        worker_graph: the graph that this worker runs.
        width_reads: ops of the user's graph whose results depend on widths of batches.
        recovered: the state that this start resumes from, if hosts have it in memory.
    """

    plan: Plan
    launcher_graph: AnalysedGraph
    analysed: AnalysedGraph
    place: editor.Worker
    worker_graph: WorkerGraph
    width_reads: tuple[str, ...]
    recovered: RecoveredState | None = None


def _make_graph(
    graph: Graph, config: Config, parcel: JobMessage, members: ProcessGroup, extras: SessionExtras
) -> _WorkerSetup:
    """Starts Horovod, reads the launcher's graph and plan, and transforms the graph as all workers do."""
    plan, equal_randomness = plan_from_json(parcel.plan), extras.equal_randomness
    members.form_teams(plan.grid, plan.num_islands)
    if extras.decisions is None:
        alone = _read_graph(graph, config, parcel, plan, members)
    else:
        members.start()
        extras.decisions.register_ops()
        alone = extras.decisions.analysed
    members.folders.redirect_hooks(config.hooks, members.workers)
    analysed = _with_hooks(alone, graph, config, plan.synchronous)
    if extras.decisions is not None and analysed is alone:
        rewrites = extras.decisions.rewrites
    else:
        rewrites = rewrites_of(analysed, plan, equal_randomness)
    _agree("plan", plan.to_json())
    _agree("decisions", repr(rewrites))
    saved = CheckPointConfig() if equal_randomness else config.ckpt_config
    place, recovered = _place(members, config, equal_randomness), None
    if saved.memory_steps is not None:
        recovered = state_in_memory(saved, members.workers)
    if saved.keeps_state and plan.synchronous and not plan.stages:
        place = _continue_streams(place, _positions_of(recovered, saved, members.workers))
    overlaps = config.overlap and not equal_randomness
    remembers_rows = saved.remembers_rows or plan.islands is not None
    worker_graph = transform(analysed.captured.view, rewrites, place, remembers_rows, overlaps)
    if members.rank == 0:
        log_full_values(worker_graph.sliced_values)
        log_lost_positions(worker_graph)
    width_reads = tuple(node for layouts in rewrites.layouts for node in layouts.width_reads)
    return _WorkerSetup(plan, alone, analysed, place, worker_graph, width_reads, recovered)


def _read_graph(graph: Graph, config: Config, parcel: JobMessage, plan: Plan, members: ProcessGroup) -> AnalysedGraph:
    """Starts Horovod, replaces the graph that this worker has built by the launcher's, and reads it."""
    launcher, digest = read_launcher_graph(graph, parcel.graph, plan.fingerprint, members.rank)
    members.start()
    take_launcher_graph(graph, launcher, members.workers)
    alone = adopt_analysis(graph, parcel.spec, digest, config.lazy_updates, plan.synchronous)
    plan.check_belongs_to(alone.spec, plan.layout)
    return alone


def _positions_of(recovered: RecoveredState | None, saved: CheckPointConfig, comm: Comm) -> StoredPositions | None:
    """The positions of the job that this one resumes; None for a start from initial values."""
    if recovered is not None:
        return recovered.positions()
    return None if saved.ckpt_dir is None else stored_positions(str(saved.ckpt_dir), comm, saved.folder_timeout_s)


def _context(graph: Graph, made: _WorkerSetup, members: ProcessGroup, watch: Heartbeat) -> WorkerContext:
    """Opens the channels of the exchanges, and returns the context of this worker's runs."""
    open_channels(made.worker_graph.graph_def, members.teams, made.plan.sums)
    stages = None if members.stages_comm is None else StageValues(open_stages(members.stages_comm))
    analysed, captured = made.analysed, made.analysed.captured
    names = Names(captured.view, made.worker_graph, fixed=captured.fixed)
    worker = WorkerContext(graph, names, watch, analysed, stages=stages)
    worker.follow(made.plan, made.worker_graph)
    return worker


def _training(worker: WorkerContext, made: _WorkerSetup, members: ProcessGroup, extras: SessionExtras) -> TrainingRuns:
    """Identifies and logs training runs; compares their batches if the script shards them itself."""
    updates = training_updates(made.analysed.captured, made.analysed.sources)
    training = TrainingRuns(worker, updates)
    inputs = {one.name: one for one in made.worker_graph.inputs.saved}
    _, size, rank = members.in_script
    worker.positions = InputPositions(rank, size, training.trains, inputs, made.plan.synchronous)
    view = made.analysed.captured.view
    if not extras.equal_randomness:  # a comparison fetches only what was requested
        worker.log = RunLog(view, updates, members.rank == 0, may_idle=extras.has_values)
        worker.nan_report = NanReport(view, worker.log.trains, members.workers.Dup())
        members.at_end += [worker.log.finish, worker.nan_report.finish]
    if members.size > 1 and members.stages_comm is None and worker.log is not None and not extras.has_values:
        comm, trains = members.workers.Dup(), worker.log.trains
        worker.batches = BatchComparison(view, updates, trains, worker.place_of, comm, made.width_reads)
        members.at_end.append(worker.batches.finish)
    return training


def _replan(
    options: ReplanOptions,
    config: Config,
    members: ProcessGroup,
    worker: WorkerContext,
    first: FirstSteps,
    made: _WorkerSetup,
    over: ChangeOver,
) -> Replan:
    """Returns the search for a better plan under the constraints of this one."""
    # The command line overrides the script's settings, and the plan has both.
    constraints = replace(
        constraints_of(config, made.plan.synchronous),
        wire_dtype=made.plan.wire_dtype,
        accumulate_steps=made.plan.accumulate_steps,
    )
    return Replan(options, members, worker, first, made.launcher_graph, constraints, over)


def _hooks(
    config: Config,
    extras: SessionExtras,
    members: ProcessGroup,
    worker: WorkerContext,
    training: TrainingRuns,
    made: _WorkerSetup,
    first: FirstSteps | None,
) -> list[Hook]:
    """The hooks of the session's runs, in order."""
    hooks: list[Hook] = [*profile_hooks(config, members.rank, worker, training)]
    hooks += trace_hooks(extras.trace, worker, training, made.worker_graph)
    if extras.verification_folder is not None:
        hooks.append(SavedTensors(extras.verification_folder, members.rank, training))
    if first is not None:
        hooks.append(first)
    if config.compute_dtype is not None:
        hooks.append(EffectHook(training, members))
    return hooks


def _first_steps(
    extras: SessionExtras, members: ProcessGroup, worker: WorkerContext, training: TrainingRuns, analysed: AnalysedGraph
) -> FirstSteps | None:
    """The hook that measures the first steps, if their touched rows are needed."""
    measure = extras.measure
    if extras.replan is not None:  # measurements for a file use the same steps
        path, cluster = (None, "") if measure is None else (measure.path, measure.cluster)
        measure = MeasureOptions(path, extras.replan.steps, cluster)
    if measure is None:
        return None
    first = FirstSteps(measure, members, worker, training, analysed)
    members.at_end.append(first.finish)
    return first


def _guard(
    config: Config, members: ProcessGroup, worker: WorkerContext, analysed: AnalysedGraph, worker_graph: WorkerGraph
) -> Guard | None:
    """The guard, if there are several workers with replicated state."""
    if not config.guard or members.replicas == 1 or not worker_graph.synchronous:
        return None
    updates = training_updates(analysed.captured, analysed.sources)
    guard = Guard(worker, members.team.Dup(), analysed.captured.view, updates)
    worker.runs = guard.runs

    def finish() -> None:
        if guard.finish() and members.rank == 0 and guard.step:
            log.info(guard.cost_text())

    members.at_end.append(finish)
    return guard


def _place(members: ProcessGroup, config: Config, equal_randomness: bool) -> editor.Worker:
    """This worker's place among the workers, for the transform."""
    aggregates = config.communication_config.ps_config.local_aggregation
    return editor.Worker(
        rank=members.replica,
        size=members.replicas,
        seed=members.parcel.seed,
        equal_randomness=equal_randomness,
        hosts=members.hosts_of_team,
        merges_in_host=aggregates and members.host_workers is not None,
        servers=members.parcel.servers,
        stage=members.stage,
        island=members.island,
        islands=members.islands,
    )


def _continue_streams(place: editor.Worker, stored: StoredPositions | None) -> editor.Worker:
    """Restores the seed and the sharding of datasets from the start of the job, if the latest checkpoint has them."""
    if stored is None:
        return replace(place, keeps_positions=True)
    shares = None if stored.is_in_shares(place.among_all.size) else stored.shares
    if stored.seed != place.seed and place.among_all.rank == 0:
        log.info(f"The seed is that of the job's first start, {stored.seed}, so that all goes on in one order.")
    return replace(place, keeps_positions=True, seed=stored.seed, shares=shares)


def _with_hooks(analysed: AnalysedGraph, graph: Graph, config: Config, synchronous: bool) -> AnalysedGraph:
    """The graph with the ops that the user's hooks add when they begin."""
    before = graph.version
    begin_hooks(config.hooks, graph)
    with current_process_group().folders.discard_opening_writes():
        begin_hooks(config.chief_only_hooks, graph)
    if graph.version == before:
        return analysed
    return analyse(graph, config.lazy_updates, analysed.spec.layouts, synchronous)


def _agree(what: str, text: str) -> None:
    """Requires equal text on all workers: workers that disagree would wait for each other for ever."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    for rank, other in enumerate(current_process_group().workers.allgather(digest)):
        if other != digest:
            raise PlanError(
                f"All workers must have the same {what}, but worker {rank} has another. Start the job again."
            )
