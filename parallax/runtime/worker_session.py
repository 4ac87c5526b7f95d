"""Opens a worker's session: agree with the other workers, transform the graph, give variables their initial values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from parallax.analysis.capture import node_digests
from parallax.config import Config
from parallax.decisions import Decisions
from parallax.errors import GraphError, PlanError
from parallax.plan import Plan, plan_from_json
from parallax.runtime.hooks import UserHook
from parallax.runtime.planning import Analysed, analyse, decide
from parallax.runtime.session import Session
from parallax.transform.edit import Worker
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
    """
    import horovod.tensorflow as hvd

    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    _agree_on_graph(graph, folder)
    analysed = analyse(graph)
    plan = plan_from_json((folder / PLAN_FILE).read_text(encoding="utf-8"))
    plan.check_belongs_to(analysed.spec, size)
    decisions = decide(analysed, plan)
    _agree("plan", plan.to_json())
    _agree("decisions", repr(decisions))
    seed = json.loads((folder / SEED_FILE).read_text(encoding="utf-8"))
    worker_graph = transform(analysed.captured.view, decisions, Worker(rank, size, seed, equal_randomness))
    monitored = _monitored(graph, analysed, decisions, worker_graph, config, hvd.local_rank())
    return Session(graph, analysed.captured.view, worker_graph, monitored, size), size, rank


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


def _monitored(
    graph: Any, analysed: Analysed, decisions: Decisions, worker_graph: WorkerGraph, config: Config, local_rank: int
) -> Any:
    """TensorFlow's monitored session on this worker's graph."""
    with graph.as_default():
        meta = v1.train.export_meta_graph(graph=graph)
    meta.graph_def.CopyFrom(worker_graph.graph_def)
    imported = tf.Graph()
    with imported.as_default():
        v1.train.import_meta_graph(meta)
        hooks = [UserHook(hook, graph, worker_graph.whole) for hook in config.hooks]
        initialize = [imported.get_operation_by_name(n) for n in worker_graph.counter_initializers]
        initialize += [v.initializer for v in v1.global_variables()]
        scaffold = v1.train.Scaffold(
            init_op=tf.group(*initialize, *v1.get_collection(v1.GraphKeys.RESOURCES)),
            init_fn=_equal_on_all(worker_graph),
        )
        return v1.train.SingularMonitoredSession(
            hooks=hooks, scaffold=scaffold, config=config.sess_config or _default_options(local_rank)
        )


def _default_options(local_rank: int) -> Any:
    """One GPU for each worker of a host, where there are any (this path is untested: no machine with a GPU)."""
    options = v1.ConfigProto(allow_soft_placement=True)
    if tf.config.list_physical_devices("GPU"):
        options.gpu_options.visible_device_list = str(local_rank)
        options.gpu_options.allow_growth = True
    return options


def _equal_on_all(worker_graph: WorkerGraph) -> Any:
    """Gives variables that every worker holds worker 0's initial value.

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
