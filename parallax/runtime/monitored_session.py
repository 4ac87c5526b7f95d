"""Opens TensorFlow's monitored session on a worker's graph: hooks, initial values, and resumed state.

Initializers run, then every replicated variable is set to worker 0's value, and a checkpoint is loaded if there is one.
Variables on servers have their values already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import tensorflow as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import queue_runner_pb2
from tensorflow.python.framework import meta_graph

from parallax.analysis.reading.gradients import training_updates
from parallax.base.types import (
    Argument,
    ConfigProto,
    Graph,
    Hook,
    MetaGraphDef,
    Operation,
    Scaffold,
    Session,
    Tensor,
    Variable,
)
from parallax.runtime.checkpoint.checkpoints import Checkpoints, checkpoints
from parallax.runtime.checkpoint.format.stored_tensors import variable_op
from parallax.runtime.checkpoint.hook import AsynchronousCheckpointHook, CheckpointHook
from parallax.runtime.checkpoint.positions import build_positions
from parallax.runtime.checkpoint.step_runs import StepRuns
from parallax.runtime.checkpoint.values import VariableValues, values_of
from parallax.runtime.guard.guard import Guard
from parallax.runtime.islands.meetings import IslandMeetings
from parallax.runtime.islands.own_state import entries_of_islands, island_places
from parallax.runtime.memory_checkpoints.hook import PeerMemory, PeerMemoryHook
from parallax.runtime.memory_checkpoints.memory import ops_of, peer_memory
from parallax.runtime.memory_checkpoints.recovery import RecoveredState
from parallax.runtime.replan.change_over import places_of
from parallax.runtime.worker.ranks import SERVER_TASK, WORKER_TASK, ProcessGroup, current_process_group
from parallax.runtime.worker.session.bfloat16 import options_with
from parallax.runtime.worker.session.channels import close_stages
from parallax.runtime.worker.session.direct import DirectRuns, Finishing, TracesOverlap, can_be_direct
from parallax.runtime.worker.session.overlapping import MOST_ON_THEIR_WAY
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.runtime.worker.session.stage_failures import StageFailures
from parallax.runtime.worker.session.staleness import BoundedStaleness, RunClocks
from parallax.runtime.worker.session.user_hooks import LastHook, UserHook
from parallax.settings.config import Config
from parallax.transform.building import editor
from parallax.transform.passes.cut_stages import ops_here
from parallax.transform.passes.touched_rows import NO_ROW_MEMORY
from parallax.transform.pipeline import WorkerGraph

v1 = tf.compat.v1


def monitored_session(
    graph: Graph,
    worker_graph: WorkerGraph,
    config: Config,
    worker: WorkerContext,
    later: list[list[str]],
    more_hooks: Sequence[Hook],
    guard: Guard | None,
    has_values: bool,
    place: editor.Worker,
    recovered: RecoveredState | None,
    meetings: IslandMeetings | None,
) -> tuple[Session, DirectRuns | None, Checkpoints | None, PeerMemory | None, VariableValues | None]:
    """Opens TensorFlow's monitored session on this worker's graph, and its fast path.

    It also returns checkpoints, the state in the memory of hosts and values of variables, where these are configured.

    The initializers `later` run after the others; `place` is this worker's place among the workers; `recovered` is the
    state to resume from, if hosts have it in memory; `meetings` are those of islands, if there are several.
    """
    imported = _import(graph, worker_graph)
    stages = worker_graph.stages
    members = current_process_group()
    home = f"/job:{WORKER_TASK}/task:{members.rank}" if members.target else None
    with imported.as_default(), tf.device(home):
        chiefs = () if members.rank else config.chief_only_hooks
        own = [*(UserHook(hook, worker) for hook in config.hooks), *(UserHook(hook, worker, True) for hook in chiefs)]
        hooks = [*own, *more_hooks, LastHook(worker)]
        if guard is not None:
            guard.follow(worker_graph)
        own_initializers = (*worker_graph.counter_initializers, *(s.initializer for s in worker_graph.streams.saved))
        counters = [imported.get_operation_by_name(n) for n in own_initializers]
        saved = memory = kept = None
        asked, places, is_equal = config.ckpt_config, places_of(worker_graph), worker_graph.synchronous
        touched, entries = worker_graph.touched, None
        if meetings is not None:
            places = island_places(places, graph, meetings)
            meetings.open(places, touched)
            touched, entries = NO_ROW_MEMORY, partial(entries_of_islands, meetings=meetings)
        if asked.keeps_state and place.keeps_positions and worker.positions is not None:
            shares = place.among_all.size if place.shares is None else place.shares
            kept = build_positions(worker_graph, worker.positions, members.workers, place.seed, shares)
        if asked.ckpt_dir is not None:
            saved = checkpoints(graph, places, asked, members.workers, touched, kept, entries)
            members.at_end.append(saved.finish)
            hooks.insert(
                -1,
                (CheckpointHook if is_equal else AsynchronousCheckpointHook)(saved, worker, not has_values, meetings),
            )
        if worker.plan is not None and worker.plan.staleness is not None:
            hooks.insert(0, _bound_staleness(worker.plan.staleness, config, members, worker, hooks))
        if asked.memory_steps is not None:
            of_table = config.of_variables("memory_hosts")
            alone = ops_of(worker.analysed.spec, [name for name, number in of_table.items() if number == 1])
            memory = peer_memory(graph, places, asked, members, worker_graph.touched, kept, recovered, alone)
            runs = StepRuns(worker, variable_op(v1.train.get_global_step(graph)), members.workers)
            hooks.insert(-1, PeerMemoryHook(memory, worker, runs, ends_early=saved is None))

        def resume(session: Session) -> None:
            if meetings is not None:
                meetings.begin(session)
            if (memory is None or not memory.load(session)) and saved is not None:
                saved.load(session)
            if kept is not None:
                kept.begin(session)

        values = values_of(graph, places, members.workers.Dup(), worker) if has_values else None
        first = _first_initializers(imported if stages is None else graph, {name for phase in later for name in phase})
        first += [r.create.name for r in graph.get_collection("resources")]
        first, later = ops_here(stages, first), [ops_here(stages, phase) for phase in later]
        initializers = [*counters, *(imported.get_operation_by_name(name) for name in first)]
        scaffold = _scaffold(worker_graph, initializers, later, resume)
        monitored = v1.train.SingularMonitoredSession(
            hooks=hooks, scaffold=scaffold, master=members.target, config=_options(config, members)
        )
        direct = failures = None
        if stages is not None:
            failures = StageFailures(stages)
            failures.follow(worker.raw)
        has_hooks = not all(isinstance(hook, Finishing) for hook in hooks[:-1])
        if can_be_direct(imported, members.target) and (worker_graph.overlaps or not has_hooks):
            waits_for = [hook for hook in hooks if isinstance(hook, Finishing)]
            most = MOST_ON_THEIR_WAY if stages is None else stages.count - stages.stage
            direct = DirectRuns(
                worker.raw,
                waits_for,
                has_hooks=has_hooks,
                overlaps=worker_graph.overlaps,
                repeats=has_values,
                most=most,
                failures=failures,
                tracer=next((hook for hook in hooks if isinstance(hook, TracesOverlap)), None),
            )
            members.at_end.append(direct.settle)
            if worker.stages is not None:
                worker.stages.settle = direct.settle
            if meetings is not None:
                meetings.settle = direct.settle
        if stages is not None:
            members.at_close.append(close_stages)
        return monitored, direct, saved, memory, values


def _bound_staleness(
    staleness: int, config: Config, members: ProcessGroup, worker: WorkerContext, hooks: Sequence[Hook]
) -> BoundedStaleness:
    """The hook that keeps this asynchronous worker within a number of runs of the others."""
    clocks = RunClocks(members.target, _options(config, members), members.rank, members.size, staleness)
    members.at_end.insert(0, clocks.end)  # what follows there waits for all workers
    analysed = worker.analysed
    training = TrainingRuns(worker, training_updates(analysed.captured, analysed.sources))
    return BoundedStaleness(
        clocks, worker, training, [hook.join for hook in hooks if isinstance(hook, AsynchronousCheckpointHook)]
    )


def _scaffold(
    worker_graph: WorkerGraph, initializers: list[Operation], later: list[list[str]], resume: Callable[[Session], None]
) -> Scaffold:
    """Returns the ops that TensorFlow runs before the first step, in the default graph."""
    return v1.train.Scaffold(
        init_op=tf.group(*initializers),
        init_fn=_equal_on_all(worker_graph, later, resume),
        # TensorFlow would look for variables here that are on servers.
        ready_op=v1.report_uninitialized_variables(_list_local_variables(worker_graph)),
        ready_for_local_init_op=tf.constant([], tf.string),
        # TensorFlow would build one that mistakes the local rows of a table for all of it.
        saver=v1.train.Saver([], allow_empty=True),
    )


def _first_initializers(graph: Graph, later: set[str]) -> list[str]:
    """The ops that give a graph's variables their initial values, except those that run later."""
    names = [str(variable.initializer.name) for variable in graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)]
    return [name for name in names if name not in later]


def _list_local_variables(worker_graph: WorkerGraph) -> list[Variable]:
    """The variables that this worker stores: in full, or rows of them."""
    everything = [*v1.global_variables(), *v1.local_variables()]
    elsewhere = worker_graph.on_servers | worker_graph.elsewhere
    return [v for v in everything if _op_name(v) not in elsewhere]


def _options(config: Config, members: ProcessGroup) -> ConfigProto:
    """The options of this worker's session, in which the servers and itself are visible.

    A slow or lost worker then blocks other sessions only through the exchanges between the two.
    """
    options = options_with(config.sess_config or _default_options(), config.compute_dtype)
    if members.target:
        del options.device_filters[:]
        options.device_filters.extend([f"/job:{SERVER_TASK}", f"/job:{WORKER_TASK}/task:{members.rank}"])
    return options


def _import(graph: Graph, worker_graph: WorkerGraph) -> Graph:
    """Imports the worker's graph, with those of the user's collections that a session needs."""
    keys = v1.GraphKeys
    needed = [keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES, keys.TABLE_INITIALIZERS, keys.QUEUE_RUNNERS]
    with graph.as_default():  # variables are not created while TensorFlow executes eagerly
        meta = meta_graph.create_meta_graph_def(
            graph_def=worker_graph.graph_def,
            graph=graph,
            collection_list=[k for k in needed if graph.get_collection(k)],
        )
    if worker_graph.stages is not None:
        _drop_elsewhere(meta, {node.name for node in worker_graph.graph_def.node})
    imported = tf.Graph()
    with imported.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    return imported


def _drop_elsewhere(meta: MetaGraphDef, names: set[str]) -> None:
    """Removes other stages' objects from a worker's collections: variables, queues, initializers of lookup tables."""
    kinds = {v1.GraphKeys.QUEUE_RUNNERS: (queue_runner_pb2.QueueRunnerDef, "queue_name")}
    for key, collection in meta.collection_def.items():
        kind, field = kinds.get(key, (variable_pb2.VariableDef, "variable_name"))
        if collection.HasField("bytes_list"):
            remaining = [text for text in collection.bytes_list.value if _op_of(kind.FromString(text), field) in names]
            collection.bytes_list.value[:] = remaining
        elif collection.HasField("node_list"):
            remaining = [name for name in collection.node_list.value if name.split(":")[0] in names]
            collection.node_list.value[:] = remaining


def _op_of(record: Argument, field: str) -> str:
    return str(getattr(record, field)).split(":")[0]


def _default_options() -> ConfigProto:
    """One GPU for each worker of a host, if there are any (this path is untested: no machine with a GPU)."""
    import horovod.tensorflow as hvd

    options = v1.ConfigProto(allow_soft_placement=True)
    if tf.config.list_physical_devices("GPU"):
        options.gpu_options.visible_device_list = str(hvd.local_rank())
        options.gpu_options.allow_growth = True
    return options


def _equal_on_all(
    worker_graph: WorkerGraph, later: list[list[str]], resume: Callable[[Session], None]
) -> Callable[[Scaffold, Session], None]:
    """Runs the later initializers, sets replicated variables to worker 0's initial value, and resumes.

    Seeds already make them equal where random ops compute the values; this covers values from Python code.
    """
    from horovod.tensorflow import mpi_ops

    copies = []
    with tf.name_scope("parallax_start/"):
        for variable in v1.global_variables():
            elsewhere = worker_graph.tables | worker_graph.on_servers | worker_graph.elsewhere
            if _op_name(variable) in elsewhere or variable.dtype.base_dtype == tf.string:
                continue
            copies.append(variable.assign(_send(mpi_ops, variable.read_value())).op)
        start = tf.group(*copies)

    def run(_: Scaffold, session: Session) -> None:
        for phase in later:
            session.run(phase)
        session.run(start)
        resume(session)

    return run


def _send(mpi_ops: ModuleType, value: Tensor) -> Tensor:
    """Broadcasts worker 0's value; bfloat16, which Horovod does not support, travels as integers with the same bits."""
    if value.dtype.base_dtype == tf.bfloat16:
        return tf.bitcast(mpi_ops.broadcast(tf.bitcast(value, tf.int16), 0), tf.bfloat16)
    return mpi_ops.broadcast(value, 0)


def _op_name(variable: Variable) -> str:
    handle = getattr(variable, "handle", None)
    return str(handle.op.name if handle is not None else variable.op.name)
