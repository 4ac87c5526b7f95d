"""TensorFlow's parameter servers, as its documentation describes them for TensorFlow 1.

There is a server on each host in addition to the workers. The script uses `replica_device_setter`, partitioned
variables, `SyncReplicasOptimizer` and a monitored session, with the settings of a careful user:
- Variables are partitioned over all servers (`min_max_variable_partitioner`, as TensorFlow's own estimators do), and
  partitions are placed by their bytes (`GreedyLoadBalancingStrategy`).
- A variable that is read whole is fetched once a step, however often it is used (`caching_device`).
- Rows of a table go to partitions by `mod`, the default of TensorFlow 1's lookups, which balances a vocabulary that is
  sorted by frequency. The models call TensorFlow 2's lookups, which support `div` only, by which the first server would
  store all frequent words. `_rows_by_mod` changes that while the graph is built, for lookups and initial values.

`tf-ps` must compute the mean over the global batch, as the others do. TensorFlow's accumulators divide a row by the
number of workers that touched it, not by all. So they are set to sum (`reduction_type="SUM"`, for which
SyncReplicasOptimizer has no argument), and each worker's loss is divided by the number of workers. There are no initial
tokens, as these would let workers run a step ahead on old variables. `tf-ps-async` is the same without
SyncReplicasOptimizer: gradients are applied as they arrive.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ops.bench.race.models import Table
from ops.bench.race.place import Place
from ops.bench.race.systems import Command, script_of_worker
from ops.bench.race.turns import Task, Turns, task_of_this_process, wait_for_file, write_json, write_task_with
from parallax.runtime.supervisor.preload import LIBRARY

_FIRST_PORT_BY_SYSTEM = {"tf-ps": 21000, "tf-ps-async": 21500}
_CHIEF_IS_READY = "chief.json"


def commands(place: Place, task: Task) -> Iterator[Command]:
    """Yields a server on each host, and the workers."""
    by_rank = [place.hosts[rank * len(place.hosts) // task.workers] for rank in range(task.workers)]
    count = len(place.hosts) + task.workers
    first = _FIRST_PORT_BY_SYSTEM[task.system]
    ports = list(range(first, first + count)) if place.is_lab else _free_ports(count)
    at = [f"{place.address(host)}:{port}" for host, port in zip([*place.hosts, *by_rank], ports, strict=True)]
    write_task_with(task, ps=at[: len(place.hosts)], worker=at[len(place.hosts) :])
    for number, host in enumerate(place.hosts):
        yield Command(host, script_of_worker(place, task, "ps", str(number)), _environment(place, host), is_server=True)
    for rank, host in enumerate(by_rank):
        yield Command(host, script_of_worker(place, task, "worker", str(rank)), _environment(place, host))


def main() -> None:
    """Runs a server or worker; job and number are the second and third argument."""
    import tensorflow as tf

    job, number = sys.argv[2], int(sys.argv[3])
    task = task_of_this_process()
    cluster = tf.train.ClusterSpec({name: task.more[name] for name in ("ps", "worker")})
    server = tf.distribute.Server(cluster, job_name=job, task_index=number, config=task.session_config())
    if job == "ps":
        server.join()
    else:
        _work(task, server, cluster, number)


def _work(task: Task, server: Any, cluster: Any, rank: int) -> None:
    """Runs one worker."""
    import tensorflow as tf

    v1 = tf.compat.v1
    model = task.make_model()
    servers, is_chief = cluster.num_tasks("ps"), rank == 0
    worker = f"/job:worker/task:{rank}"
    strategy = _greedy_strategy(servers)
    with tf.Graph().as_default():
        devices = v1.train.replica_device_setter(cluster=cluster, worker_device=worker, ps_strategy=strategy)
        with v1.device(devices):
            step = v1.train.get_or_create_global_step()
            with _rows_by_mod(model.tables, servers, worker):
                built = model.build()
            if task.system == "tf-ps":
                with _accumulators_that_add_up():
                    optimizer = v1.train.SyncReplicasOptimizer(built.optimizer, replicas_to_aggregate=task.workers)
                    train = optimizer.minimize(built.loss / task.workers, global_step=step)
                hooks = [optimizer.make_session_run_hook(is_chief, num_tokens=0)]
            else:
                train, hooks = built.optimizer.minimize(built.loss, global_step=step), []
        if not is_chief:  # else it would poll for the chief's initial values only every 30 s
            wait_for_file(Path(task.folder) / _CHIEF_IS_READY)
        config = task.session_config()
        config.device_filters.extend(["/job:ps", worker])
        with v1.train.MonitoredTrainingSession(
            server.target,
            is_chief,
            hooks=hooks,
            config=config,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            stop_grace_period_secs=1,  # the chief's thread that waits for gradients ends with the process
        ) as sess:
            if is_chief:
                write_json(Path(task.folder) / _CHIEF_IS_READY, {})
            turns = Turns(task, rank)
            for batch in turns:
                _, loss = sess.run([train, built.loss], {built.feeds[name]: value for name, value in batch.items()})
                turns.report(loss)


def _greedy_strategy(servers: int) -> Any:
    """Places each variable on the server with the fewest bytes, as a strategy of the former tf.contrib did."""
    loads = [0] * servers

    def place(op: Any) -> int:
        import tensorflow as tf

        least = loads.index(min(loads))
        shape = tf.TensorShape(op.get_attr("shape"))
        loads[least] += (shape.num_elements() or 1) * tf.as_dtype(op.get_attr("dtype")).size
        return least

    return place


@contextlib.contextmanager
def _rows_by_mod(tables: Sequence[Table], servers: int, worker: str) -> Iterator[None]:
    """Partitions variables inside a `with` block: row r of a table is row r // P of partition r % P of P partitions."""
    import tensorflow as tf
    from tensorflow.python.ops import embedding_ops

    names = [table.name for table in tables]
    lookup = embedding_ops._embedding_lookup_and_transform
    partitioner = tf.compat.v1.min_max_variable_partitioner(max_partitions=servers)

    def get(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name in names:
            partitions = partitioner(tf.TensorShape(kwargs["shape"]), kwargs["dtype"] or tf.float32)[0]
            kwargs["initializer"] = _every_nth_row(kwargs["initializer"], partitions)
        return getter(name, *args, **kwargs)

    def by_mod(params: Any, ids: Any, partition_strategy: str = "mod", **kwargs: Any) -> Any:
        return lookup(params, ids, partition_strategy="mod", **kwargs)

    v1 = tf.compat.v1
    scope = v1.get_variable_scope()
    embedding_ops._embedding_lookup_and_transform = by_mod
    try:
        with v1.variable_scope(
            scope, partitioner=partitioner, custom_getter=get, caching_device=worker, auxiliary_name_scope=False
        ):
            yield
    finally:
        embedding_ops._embedding_lookup_and_transform = lookup


def _every_nth_row(initializer: Any, partitions: int) -> Any:
    """Returns an initializer whose partition k has rows k, k + partitions, ... of `initializer`'s whole table."""

    def initial(shape: Sequence[int], dtype: Any = None, partition_info: Any = None) -> Any:
        if partition_info is None or partitions == 1:
            return initializer(shape, dtype=dtype)
        rows = partition_info.full_shape[0]
        # Left-over rows go to the first partitions, one each, as in lookups by mod.
        starts = [k * (rows // partitions) + min(k, rows % partitions) for k in range(partitions)]
        whole = initializer(list(partition_info.full_shape), dtype=dtype)
        return whole[starts.index(partition_info.var_offset[0]) :: partitions]

    return initial


@contextlib.contextmanager
def _accumulators_that_add_up() -> Iterator[None]:
    """Makes SyncReplicasOptimizer's accumulators return sums instead of means, inside a `with` block."""
    from tensorflow.python.training import sync_replicas_optimizer as of_optimizer

    ops = of_optimizer.data_flow_ops
    of_optimizer.data_flow_ops = types.SimpleNamespace(
        ConditionalAccumulator=functools.partial(ops.ConditionalAccumulator, reduction_type="SUM"),
        SparseConditionalAccumulator=functools.partial(ops.SparseConditionalAccumulator, reduction_type="SUM"),
        FIFOQueue=ops.FIFOQueue,
    )
    try:
        yield
    finally:
        of_optimizer.data_flow_ops = ops


def _environment(place: Place, host: str) -> dict[str, str]:
    """Returns variables: gRPC connects without a proxy, and on this machine servers listen on loopback only."""
    variables = {"no_grpc_proxy": ",".join(place.address(host) for host in place.hosts)}
    library = Path(sys.prefix) / "lib" / LIBRARY
    if not place.is_lab and library.is_file():
        variables |= {"LD_PRELOAD": str(library), "PARALLAX_LISTEN_ADDRESS": place.address(host)}
    return variables


def _free_ports(count: int) -> list[int]:
    """Returns ports of this machine that are free now."""
    with contextlib.ExitStack() as ends:
        sockets = [ends.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    main()
