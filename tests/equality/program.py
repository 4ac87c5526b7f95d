"""Runs under mpirun: trains many graphs on all ranks and compares each with one process on the global batch.

    python -m tests.equality.program RESULT.json SERVERS PART...

A part is a section, or SECTION:FILTER, where the filter is what a case's name must have, one of several with `|`
between them.

Rank 0 writes {case: {variable: relative difference}}. TensorFlow servers, where there are any, run inside rank 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A short cycle where every rank has a core; ranks that share cores would only keep each other from working.
_SHARED_CORES = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) > (os.cpu_count() or 1)
os.environ.setdefault("HOROVOD_CYCLE_TIME", "1" if _SHARED_CORES else "0.1")


from parallax.analysis.reading.construction import record  # noqa: E402

record.install()

from mpi4py import MPI  # noqa: E402  isort: skip
import horovod.tensorflow as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402

from parallax.analysis.reading.capture import initialization_phases  # noqa: E402
from parallax.runtime.guard.guard import Guard  # noqa: E402
from parallax.runtime.supervisor.preload import authenticate_to, restrict_listening  # noqa: E402
from parallax.runtime.verify import difference  # noqa: E402
from parallax.runtime.worker.heartbeat import Heartbeat  # noqa: E402
from parallax.runtime.worker.ranks import hold_port  # noqa: E402
from parallax.runtime.worker.session import run_context  # noqa: E402
from parallax.runtime.worker.session.accumulation import Accumulation  # noqa: E402
from parallax.runtime.worker.session.channels import open_channels  # noqa: E402
from parallax.runtime.worker.session.names import Names  # noqa: E402
from parallax.runtime.worker.teams import Teams  # noqa: E402
from parallax.transform.pipeline import transform  # noqa: E402
from tests.equality.cases import cases  # noqa: E402
from tests.equality.training import (  # noqa: E402
    Analysed,
    all_batches,
    feeds,
    one_process,
    reads_of,
    routes_in,
    updates_of,
)

v1 = tf.compat.v1


def wait_for_all():
    """Waits until every rank has come here; unlike MPI's own barrier it leaves the core to those that work."""
    last = MPI.COMM_WORLD.Ibarrier()
    while not last.Test():
        time.sleep(0.002)


class Servers:
    """TensorFlow servers: one in every rank, and so many more in rank 0."""

    def __init__(self, rank, size, count):
        self.target, self.config, self.count = "", None, count
        if not count:
            return
        held = [hold_port("127.0.0.1", None) for _ in range(1 + (count if rank == 0 else 0))]
        names = [("worker", rank), *(("ps", number) for number in range(count))]
        ports = MPI.COMM_WORLD.allgather([one.getsockname()[1] for one in held])
        addresses = [[f"127.0.0.1:{port}" for port in of_rank] for of_rank in ports]
        cluster = {"ps": addresses[0][1:], "worker": [of_rank[0] for of_rank in addresses]}
        authenticate_to(("127.0.0.1", port) for of_rank in ports for port in of_rank)
        self.running = []
        for one, name in zip(held, names, strict=False):  # the first rank's alone are as many
            with restrict_listening(*one.getsockname()):
                self.running.append(tf.distribute.Server(cluster, *name))
        for one in held:
            one.close()
        self.target = self.running[0].target
        self.config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{rank}"])

    def forget(self, rank):
        """Removes all variables, for another graph to have the same names."""
        wait_for_all()
        if self.count:
            v1.Session.reset(self.target, config=self.config)
        wait_for_all()


def workers(made_of, route, updates, rank, size, servers):
    graph, ops, analysed = made_of.graph, made_of.ops, made_of.found
    plan, rewrites, worker = made_of.decided(route, rank, size, servers.count)
    routes = routes_in(plan)
    # All that the transform and the run after it are given of a plan.
    rewrite = (rewrites, replace(worker, rank=0), plan.accumulate_steps)
    if rewrite in made_of.trained:
        return made_of.trained[rewrite], routes
    made = transform(analysed.captured.view, rewrites, worker)
    wait_for_all()  # rank 0 has trained the one process meanwhile
    open_channels(made.graph_def, Teams(MPI.COMM_WORLD, worker.hosts[rank] if worker.hosts else 0))
    names, accumulation = Names(analysed.captured.view, made), Accumulation(made.accumulate_steps)
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(made.graph_def, name="")
        held = run_context.WorkerContext(graph, names, Heartbeat(), analysed)
        guard = Guard(held, MPI.COMM_WORLD, analysed.captured.view, frozenset())
        guard.follow(made)
    target, config = (servers.target, servers.config) if plan.servers else ("", None)
    with v1.Session(target, graph=imported, config=config) as session:
        for phase in initialization_phases(analysed.captured):
            session.run(phase)
        session.run(made.counter_initializers)
        for step, draws in enumerate(updates):
            for mine in draws:
                train(session, names, accumulation, ops[step % len(ops)], feeds(graph, mine[rank]))
        values = session.run({name: made.full_tensors.get(tensor, tensor) for name, tensor in reads_of(graph).items()})
        held.raw = session
        guard.finish()  # bit by bit: what is equal on all workers is so by every route
    if plan.servers:
        servers.forget(rank)
    made_of.trained[rewrite] = values
    return values, routes


def train(session, names, accumulation, op, fed):
    """One run, as a session of parallel_run makes it."""
    kept = names.accumulated_by((op.name,), fed)
    resolved = names.resolve((op.name,), fed, accumulation.next_run(kept))
    session.run(list(resolved.tensors), {**resolved.feeds(fed), **resolved.empty})
    accumulation.has_run(kept)


def selected(parts, servers, workers):
    """The cases of all parts, in one order on all ranks; one after the other those of a graph, which is built once."""
    by_graph = {}
    for part in parts:
        section, _, wanted = part.partition(":")
        for case in cases(section, servers, workers):
            if any(word in case.name for word in wanted.split("|")):
                by_graph.setdefault(case.graph, []).append(case)
    return [case for of_graph in by_graph.values() for case in of_graph]


def main():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    batches = all_batches(size)
    servers = Servers(rank, size, int(sys.argv[2]))
    results, expected, analysed = {}, {}, {}
    for case in selected(sys.argv[3:], servers.count, size):
        began = time.monotonic()
        try:
            updates = updates_of(batches, case.kept)
            if case.graph not in analysed:
                analysed, expected = {case.graph: Analysed(case)}, {}
            if rank == 0 and case.kept not in expected:
                expected[case.kept] = one_process(case, updates, size)
            found, routes = workers(analysed[case.graph], case.route, updates, rank, size, servers)
            if rank == 0:
                result = {n: difference(found[n], e) for n, e in expected[case.kept].items()}
                results[case.name] = {"differences": result, "routes": routes}
        except Exception as error:
            # A rank that fails alone would leave the others waiting: the job ends here.
            print(f"{case.name}: {type(error).__name__}: {str(error)[:600]}", file=sys.stderr, flush=True)
            os._exit(1)
        if rank == 0:
            print(f"{case.name}: {time.monotonic() - began:.2f} s", flush=True)
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
