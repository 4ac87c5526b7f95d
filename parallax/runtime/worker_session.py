"""Opens a worker's session: agree with the other workers, transform the graph, give variables their initial values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from parallax.analysis.capture import initialization_phases, node_digests
from parallax.config import Config
from parallax.errors import GraphError, PlanError
from parallax.plan import Plan, plan_from_json
from parallax.runtime.hooks import LastHook, UserHook, Worker, begin_hooks
from parallax.runtime.names import Names
from parallax.runtime.planning import Analysed, analyse, decide
from parallax.runtime.session import Session
from parallax.runtime.watch import current_watch
from parallax.transform import edit
from parallax.transform.pipeline import WorkerGraph, transform

v1 = tf.compat.v1
PLAN_FILE, NODES_FILE, SEED_FILE = "plan.json", "nodes.json", "seed.json"


def write_job(folder: Path, plan: Plan, digests: dict[str, str], seed: int) -> None:
    """Leaves for the workers what the launcher decided."""
    (folder / PLAN_FILE).write_text(plan.to_json(), encoding="utf-8")
    (folder / NODES_FILE).write_text(json.dumps(digests), encoding="utf-8")
    (folder / SEED_FILE).write_text(json.dumps(seed), encoding="utf-8")


def open_session(graph: Any, config: Config, folder: Path, equal_randomness: bool = False) -> tuple[Session, int, int]:
    """The session of this worker, the number of workers and this one's rank; every worker must call it.

    Args:
        graph: the user's graph.
        config: hooks and session options.
        folder: where the launcher left the plan.
        equal_randomness: for verification, all workers draw the same random numbers.

    Raises:
        GraphError: when the workers built different graphs; the message names a node.
        PlanError: when the plan is not this graph's.
        SessionError: when this process has opened a session before.
    """
    import horovod.tensorflow as hvd

    watch = current_watch()
    watch.open()
    with watch.run("parallel_run", "parallel_run"):
        hvd.init()
        size, rank = hvd.size(), hvd.rank()
        _agree_on_graph(graph, folder)
        analysed = analyse(graph)
        plan = plan_from_json((folder / PLAN_FILE).read_text(encoding="utf-8"))
        plan.check_belongs_to(analysed.spec, size)
        analysed = _with_hooks(analysed, graph, config)
        decisions = decide(analysed, plan, equal_randomness)
        _agree("plan", plan.to_json())
        _agree("decisions", repr(decisions))
        seed = json.loads((folder / SEED_FILE).read_text(encoding="utf-8"))
        worker_graph = transform(analysed.captured.view, decisions, edit.Worker(rank, size, seed, equal_randomness))
        worker = Worker(graph, Names(analysed.captured.view, worker_graph), watch)
        later = initialization_phases(analysed.captured)[1:]
        monitored = _monitored(graph, worker_graph, config, worker, later)
    return Session(worker, monitored, worker_graph.counters, size), size, rank


def _with_hooks(analysed: Analysed, graph: Any, config: Config) -> Analysed:
    """The graph with what the user's hooks add to it when they begin."""
    before = graph.version
    begin_hooks(config.hooks, graph)
    return analysed if graph.version == before else analyse(graph)


def _agree_on_graph(graph: Any, folder: Path) -> None:
    """All workers and the launcher must have built the same graph, node by node."""
    from mpi4py import MPI

    mine = node_digests(graph.as_graph_def())
    launcher = json.loads((folder / NODES_FILE).read_text(encoding="utf-8"))
    differing = sorted(n for n in mine.keys() | launcher.keys() if mine.get(n) != launcher.get(n))
    everyone = MPI.COMM_WORLD.allgather(differing[:3])
    for rank, nodes in enumerate(everyone):
        if nodes:
            raise GraphError(
                f"All processes of a job must build the same graph, and worker {rank} built node {nodes[0]!r} "
                "differently from the launcher. Seed what the script draws (numpy too), and build nothing from the "
                "rank, the time or the process before parallel_run."
            )


def _agree(what: str, text: str) -> None:
    """Workers that disagree would wait for each other for ever."""
    from mpi4py import MPI

    digest = hashlib.sha256(text.encode()).hexdigest()
    for rank, other in enumerate(MPI.COMM_WORLD.allgather(digest)):
        if other != digest:
            raise PlanError(
                f"All workers must have the same {what}, and worker {rank} has another. Start the job anew."
            )


def _monitored(graph: Any, worker_graph: WorkerGraph, config: Config, worker: Worker, later: list[list[str]]) -> Any:
    """TensorFlow's monitored session on this worker's graph; the initializers `later` run after the others."""
    imported = _imported(graph, worker_graph)
    with imported.as_default():
        hooks = [*(UserHook(hook, worker) for hook in config.hooks), LastHook(worker)]
        initialize = [imported.get_operation_by_name(n) for n in worker_graph.counter_initializers]
        waiting = {name for phase in later for name in phase}
        initialize += [v.initializer for v in v1.global_variables() if v.initializer.name not in waiting]
        resources = [imported.get_operation_by_name(r.create.name) for r in graph.get_collection("resources")]
        scaffold = v1.train.Scaffold(
            init_op=tf.group(*initialize, *resources),
            init_fn=_equal_on_all(worker_graph, later),
            # TensorFlow would build one that takes the local rows of a table for all of it.
            saver=v1.train.Saver([], allow_empty=True),
        )
        return v1.train.SingularMonitoredSession(
            hooks=hooks, scaffold=scaffold, config=config.sess_config or _default_options()
        )


def _imported(graph: Any, worker_graph: WorkerGraph) -> Any:
    """The worker's graph, with those of the user's collections that a session needs."""
    from tensorflow.python.framework import meta_graph  # the public import_meta_graph builds a Saver, see above

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


def _equal_on_all(worker_graph: WorkerGraph, later: list[list[str]]) -> Any:
    """Runs the later initializers, and gives variables that every worker holds worker 0's initial value.

    Seeds already make them equal where random ops give the values; this covers values that Python code gives.
    """
    from horovod.tensorflow import mpi_ops

    copies = []
    with tf.name_scope("parallax_start/"):
        for variable in v1.global_variables():
            if _op_name(variable) in worker_graph.tables or variable.dtype.base_dtype == tf.string:
                continue
            copies.append(variable.assign(_sent(mpi_ops, variable.read_value())).op)
        start = tf.group(*copies)

    def run(_: Any, session: Any) -> None:
        for phase in later:
            session.run(phase)
        session.run(start)

    return run


def _sent(mpi_ops: Any, value: Any) -> Any:
    """Worker 0's value; bfloat16, which Horovod does not know, travels as the integers of its bits."""
    if value.dtype.base_dtype == tf.bfloat16:
        return tf.bitcast(mpi_ops.broadcast(tf.bitcast(value, tf.int16), 0), tf.bfloat16)
    return mpi_ops.broadcast(value, 0)


def _op_name(variable: Any) -> str:
    handle = getattr(variable, "handle", None)
    return str(handle.op.name if handle is not None else variable.op.name)
