"""TensorFlow's monitored session on a worker's graph: hooks, initial values, and what is resumed.

Initializers run, then every variable that all workers hold takes worker 0's value, and a checkpoint is loaded where
there is one. Variables on servers have their values already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from parallax.runtime.checkpoint.checkpoints import Checkpoints, checkpoints
from parallax.runtime.checkpoint.files.stored_tensors import variable_op
from parallax.runtime.checkpoint.hook import CallingHook, CheckpointHook
from parallax.runtime.checkpoint.positions import keep_positions
from parallax.runtime.checkpoint.step_runs import StepRuns
from parallax.runtime.checkpoint.values import VariableValues, values_of
from parallax.runtime.guard.guard import Guard
from parallax.runtime.peers.hook import PeerMemory, PeerMemoryHook
from parallax.runtime.peers.memory import ops_of, peer_memory
from parallax.runtime.peers.recovery import RecoveredState
from parallax.runtime.replan.change_over import places_of
from parallax.runtime.worker.ranks import SERVER_TASK, WORKER_TASK, ProcessGroup, current_process_group
from parallax.runtime.worker.session.bfloat16 import options_with
from parallax.runtime.worker.session.direct import DirectRuns, Finishing, can_be_direct
from parallax.runtime.worker.session.run_context import WorkerContext
from parallax.runtime.worker.session.user_hooks import LastHook, UserHook
from parallax.settings.config import Config
from parallax.transform.building import editor
from parallax.transform.pipeline import WorkerGraph
from parallax.types import ConfigProto, Graph, Hook, Operation, Scaffold, Session, Tensor, Variable

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
) -> tuple[Session, DirectRuns | None, Checkpoints | None, PeerMemory | None, VariableValues | None]:
    """TensorFlow's monitored session on this worker's graph, and the direct way to it.

    With them go checkpoints, the state in the memory of hosts and values of variables, where these are wanted.

    The initializers `later` run after the others; `place` says which of the workers this is, `recovered` what it goes
    on from, where hosts have that in memory.
    """
    imported = _import(graph, worker_graph)
    members = current_process_group()
    home = f"/job:{WORKER_TASK}/task:{members.rank}" if members.target else None
    with imported.as_default(), tf.device(home):
        chiefs = () if members.rank else config.chief_only_hooks
        own = [*(UserHook(hook, worker) for hook in config.hooks), *(UserHook(hook, worker, True) for hook in chiefs)]
        hooks = [*own, *more_hooks, LastHook(worker)]
        if guard is not None:
            guard.follow(worker_graph)
        own_initializers = (*worker_graph.counter_initializers, *(s.initializer for s in worker_graph.streams.kept))
        counters = [imported.get_operation_by_name(n) for n in own_initializers]
        saved = memory = kept = None
        asked, places, is_equal = config.ckpt_config, places_of(worker_graph), worker_graph.synchronous
        if asked.keeps_state and place.keeps_positions and worker.positions is not None:
            shares = place.size if place.shares is None else place.shares
            kept = keep_positions(worker_graph, worker.positions, members.workers, place.seed, shares)
        if asked.ckpt_dir is not None:
            saved = checkpoints(graph, places, asked, members.workers, worker_graph.touched, kept)
            members.at_end.append(saved.finish)
            hooks.insert(-1, (CheckpointHook if is_equal else CallingHook)(saved, worker, not has_values))
        if asked.memory_steps is not None:
            of_table = config.of_variables("memory_hosts")
            alone = ops_of(worker.analysed.spec, [name for name, number in of_table.items() if number == 1])
            memory = peer_memory(graph, places, asked, members, worker_graph.touched, kept, recovered, alone)
            runs = StepRuns(worker, variable_op(v1.train.get_global_step(graph)), members.workers)
            hooks.insert(-1, PeerMemoryHook(memory, worker, runs, ends_early=saved is None))

        def resume(session: Session) -> None:
            if (memory is None or not memory.load(session)) and saved is not None:
                saved.load(session)
            if kept is not None:
                kept.begin(session)

        values = values_of(graph, places, members.workers.Dup(), worker) if has_values else None
        resources = [imported.get_operation_by_name(r.create.name) for r in graph.get_collection("resources")]
        scaffold = _scaffold(worker_graph, counters, resources, later, resume)
        monitored = v1.train.SingularMonitoredSession(
            hooks=hooks, scaffold=scaffold, master=members.target, config=_options(config, members)
        )
        direct = None
        if can_be_direct(imported, hooks[:-1], members.target):
            waits_for = [hook for hook in hooks if isinstance(hook, Finishing)]
            direct = DirectRuns(worker.raw, waits_for, worker_graph.overlaps, repeats=has_values)
            members.at_end.append(direct.settle)
        return monitored, direct, saved, memory, values


def _scaffold(
    worker_graph: WorkerGraph,
    counters: list[Operation],
    resources: list[Operation],
    later: list[list[str]],
    resume: Callable[[Session], None],
) -> Scaffold:
    """What TensorFlow runs before the first step, in the default graph."""
    waiting = {name for phase in later for name in phase}
    first = [v.initializer for v in v1.global_variables() if v.initializer.name not in waiting]
    return v1.train.Scaffold(
        init_op=tf.group(*counters, *first, *resources),
        init_fn=_equal_on_all(worker_graph, later, resume),
        # TensorFlow would look for variables here that servers hold.
        ready_op=v1.report_uninitialized_variables(_held_here(worker_graph)),
        ready_for_local_init_op=tf.constant([], tf.string),
        # TensorFlow would build one that takes the local rows of a table for all of it.
        saver=v1.train.Saver([], allow_empty=True),
    )


def _held_here(worker_graph: WorkerGraph) -> list[Variable]:
    """The variables that this worker has: whole, or rows of them."""
    everything = [*v1.global_variables(), *v1.local_variables()]
    return [v for v in everything if _op_name(v) not in worker_graph.on_servers]


def _options(config: Config, members: ProcessGroup) -> ConfigProto:
    """The options of this worker's session, which sees the servers and itself.

    A worker that is slow or gone then holds up no other session, but by what the two exchange.
    """
    options = options_with(config.sess_config or _default_options(), config.compute_dtype)
    if members.target:
        del options.device_filters[:]
        options.device_filters.extend([f"/job:{SERVER_TASK}", f"/job:{WORKER_TASK}/task:{members.rank}"])
    return options


def _import(graph: Graph, worker_graph: WorkerGraph) -> Graph:
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


def _default_options() -> ConfigProto:
    """One GPU for each worker of a host, where there are any (this path is untested: no machine with a GPU)."""
    import horovod.tensorflow as hvd

    options = v1.ConfigProto(allow_soft_placement=True)
    if tf.config.list_physical_devices("GPU"):
        options.gpu_options.visible_device_list = str(hvd.local_rank())
        options.gpu_options.allow_growth = True
    return options


def _equal_on_all(
    worker_graph: WorkerGraph, later: list[list[str]], resume: Callable[[Session], None]
) -> Callable[[Scaffold, Session], None]:
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
            copies.append(variable.assign(_send(mpi_ops, variable.read_value())).op)
        start = tf.group(*copies)

    def run(_: Scaffold, session: Session) -> None:
        for phase in later:
            session.run(phase)
        session.run(start)
        resume(session)

    return run


def _send(mpi_ops: ModuleType, value: Tensor) -> Tensor:
    """Worker 0's value; bfloat16, which Horovod does not know, travels as the integers of its bits."""
    if value.dtype.base_dtype == tf.bfloat16:
        return tf.bitcast(mpi_ops.broadcast(tf.bitcast(value, tf.int16), 0), tf.bfloat16)
    return mpi_ops.broadcast(value, 0)


def _op_name(variable: Variable) -> str:
    handle = getattr(variable, "handle", None)
    return str(handle.op.name if handle is not None else variable.op.name)
