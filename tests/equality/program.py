"""Runs under mpirun: trains many graphs on all ranks and compares each with one process on the joined batch.

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


from parallax.analysis.reading import record  # noqa: E402

record.install()

from mpi4py import MPI  # noqa: E402  isort: skip
import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from parallax.analysis.planner import make_plan  # noqa: E402
from parallax.analysis.reading.capture import capture, initialization_phases  # noqa: E402
from parallax.analysis.stages import analyse, feasible, rewrites_of  # noqa: E402
from parallax.errors import PlanError  # noqa: E402
from parallax.plans.plan import PlanConstraints, one_host  # noqa: E402
from parallax.runtime.guard.guard import Guard  # noqa: E402
from parallax.runtime.verify import difference  # noqa: E402
from parallax.runtime.worker import hooks  # noqa: E402
from parallax.runtime.worker.accumulation import Accumulation  # noqa: E402
from parallax.runtime.worker.channels import open_channels  # noqa: E402
from parallax.runtime.worker.heartbeat import Heartbeat  # noqa: E402
from parallax.runtime.worker.names import Names  # noqa: E402
from parallax.runtime.worker.ranks import hold_port  # noqa: E402
from parallax.settings.environment import listening_on  # noqa: E402
from parallax.transform.building.editor import Worker  # noqa: E402
from parallax.transform.passes.seeds import set_seeds  # noqa: E402
from parallax.transform.pipeline import transform  # noqa: E402
from tests.equality import models  # noqa: E402
from tests.equality.cases import MOST_KEPT, cases  # noqa: E402

v1 = tf.compat.v1
STEPS, ROWS_PER_WORKER, SEED = 5, 6, 7


def build(builder, rows, resource):
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(3)
        with v1.variable_scope("", use_resource=resource):
            made = builder(rows)
        ops = made if isinstance(made, list) else [made if made is not None else v1.get_collection("train_op")[-1]]
    return graph, ops


def feeds(graph, batch):
    found = {}
    for op in graph.get_operations():
        if op.type == "Placeholder":
            kind = "bags" if op.name == "ids" and len(op.outputs[0].shape) == 2 else op.name
            found[f"{op.name}:0"] = np.float32(0.3) if op.name == "rate" else batch[kind]
    return found


def draw(rng, size):
    """A batch for each worker."""
    return [{k: f(rng, ROWS_PER_WORKER) for k, f in models.FEEDS.items()} for _ in range(size)]


def wait_for_all():
    """Waits until every rank has come here; unlike MPI's own barrier it leaves the core to those that work."""
    last = MPI.COMM_WORLD.Ibarrier()
    while not last.Test():
        time.sleep(0.002)


def updates_of(batches, kept):
    """For each update the draws that it takes: one, or as many as are kept."""
    return [batches[i : i + kept] for i in range(0, STEPS * kept, kept)]


def joined(draws):
    """What the one process is fed in place of some draws."""
    every = [batch for draw in draws for batch in draw]
    return {k: np.concatenate([batch[k] for batch in every]) for k in models.FEEDS}


def values_of(graph, session, whole=None):
    found = {}
    for variable in graph.get_collection("variables"):
        tensor = graph.as_graph_element(variable).name
        found[variable.name] = session.run((whole or {}).get(tensor, tensor))
    return found


def one_process(builder, resource, updates, size):
    graph, ops = build(builder, ROWS_PER_WORKER * size * len(updates[0]), resource)
    graph_def = graph.as_graph_def()
    set_seeds(graph_def, frozenset(), Worker(0, 1, SEED, equal_randomness=True))
    seeded = tf.Graph()
    with seeded.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    with v1.Session(graph=seeded) as session:
        for phase in initialization_phases(capture(graph)):
            session.run(phase)
        for step, draws in enumerate(updates):
            session.run(ops[step % len(ops)].name, feeds(graph, joined(draws)))
        return values_of(graph, session)


PATTERNS = {
    1: ((0,),),
    2: ((0, 1, 1), (1,)),
    3: ((2, 0, 0, 2, 2), (1, 0, 2, 1)),
    4: ((3, 0, 0, 2, 3, 0), (0, 1, 2, 3, 3)),
}
"""By number of workers, who owns rows in turns, for one table and the next; one has an owner of nothing."""


def with_patterns(plan, size):
    """The plan with unequal owners of every table."""
    variables = []
    for number, one in enumerate(plan.variables):
        pattern = PATTERNS[size][len(one.shape) > 1 and number % 2] if one.route == "alltoall" else ()
        variables.append(replace(one, owner_pattern=pattern))
    return replace(plan, variables=tuple(variables))


def plan_of(analysed, route, size, servers):
    """A plan with this route for all variables that it is possible for; the others keep their own.

    A route may end in `as bfloat16` or `as float16`: half precision on the wire; and in `over K`: gradients are kept.
    """
    if " over " in route:
        route, _, kept = route.partition(" over ")
        return replace(plan_of(analysed, route, size, servers), accumulate_steps=int(kept))
    if " as " in route:
        route, _, wire = route.partition(" as ")
        return replace(plan_of(analysed, route, size, servers), wire_dtype=wire)
    if route.startswith("unequal"):
        return with_patterns(plan_of(analysed, "alltoall", size, servers), size)
    layout = one_host(size, servers)
    if route == "ps":
        # Three partitions, so that rows are spread, and unevenly, however small a variable is.
        several = {v.name: 3 for v in analysed.spec.variables if v.cls.value == "sparse" and v.rows >= 3}
        several.update({v.name: 2 for v in analysed.spec.variables if v.cls.value == "dense" and v.rows >= 2})
        while True:
            try:
                return feasible(analysed, layout, PlanConstraints("PS", partitions=several))
            except PlanError:  # one of them is not on servers
                several.popitem()
    routes = {}
    for variable in analysed.spec.variables:
        if route == "hybrid ps" and variable.cls.value != "sparse":
            continue
        try:
            wanted = {variable.name: route.removeprefix("hybrid ")}
            make_plan(analysed.spec, layout, PlanConstraints(routes=wanted))
            routes.update(wanted)
        except PlanError:
            continue
    try:
        return feasible(analysed, layout, PlanConstraints(routes=routes))
    except PlanError:  # propagation refused one of them
        return make_plan(analysed.spec, layout)


class Servers:
    """TensorFlow servers: one in every rank, and so many more in rank 0."""

    def __init__(self, rank, size, count):
        self.target, self.config, self.count = "", None, count
        if not count:
            return
        held = [hold_port("127.0.0.1", None) for _ in range(1 + (count if rank == 0 else 0))]
        ports = MPI.COMM_WORLD.allgather([one.getsockname()[1] for one in held])
        addresses = [[f"127.0.0.1:{port}" for port in of_rank] for of_rank in ports]
        cluster = {"ps": addresses[0][1:], "worker": [of_rank[0] for of_rank in addresses]}
        with listening_on("127.0.0.1"):
            self.running = [tf.distribute.Server(cluster, "worker", rank)]
            if rank == 0:
                self.running += [tf.distribute.Server(cluster, "ps", number) for number in range(count)]
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


class Analysed:
    """A worker's graph, which is the same for all routes; each distinct rewrite of it is trained once."""

    def __init__(self, case):
        self.graph, self.ops = build(case.build, ROWS_PER_WORKER, case.resource)
        self.found = analyse(self.graph)
        self.trained = {}


def workers(made_of, route, updates, rank, size, servers):
    graph, ops, analysed = made_of.graph, made_of.ops, made_of.found
    plan = plan_of(analysed, route.replace(" by fronts", ""), size, servers.count if "ps" in route else 0)
    worker = Worker(rank, size, SEED, equal_randomness=True, servers=plan.servers)
    if " by host" in route:
        worker = replace(worker, hosts=tuple(number // 2 for number in range(size)), merges_in_host=True)
    if " by fronts" in route:
        at = tuple(number % size for number in range(len(plan.servers)))
        worker = replace(worker, hosts=tuple(range(size)), servers=at)
    routes = {v.name: f"{v.cls.value} by {v.route}" for v in plan.variables}
    rewrites = rewrites_of(analysed, plan, equal_randomness=True)
    # All that the transform and the run after it are given of a plan.
    rewrite = (rewrites, replace(worker, rank=0), plan.accumulate_steps)
    if rewrite in made_of.trained:
        return made_of.trained[rewrite], routes
    made = transform(analysed.captured.view, rewrites, worker)
    wait_for_all()  # rank 0 has trained the one process meanwhile
    neighbours = MPI.COMM_WORLD.Split(worker.hosts[rank], rank) if worker.merges_in_host else None
    open_channels(made.graph_def, MPI.COMM_WORLD, neighbours)
    names, accumulation = Names(analysed.captured.view, made), Accumulation(made.accumulate_steps)
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(made.graph_def, name="")
        held = hooks.WorkerContext(graph, names, Heartbeat(), analysed)
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
        values = values_of(graph, session, made.whole)
        held.raw = session
        guard.finish()  # bit by bit: what is equal on all workers is so by every route
    if plan.servers:
        servers.forget(rank)
    made_of.trained[rewrite] = values
    return values, routes


def train(session, names, accumulation, op, fed):
    """One run, as a session of parallel_run makes it."""
    kept = names.kept_by((op.name,), fed)
    resolved = names.resolve((op.name,), fed, accumulation.next_run(kept))
    session.run(list(resolved.tensors), {**resolved.feeds(fed), **resolved.empty})
    accumulation.has_run(kept)


def selected(parts, servers, workers):
    """The cases of all parts, in one order on all ranks."""
    for part in parts:
        section, _, wanted = part.partition(":")
        yield from (c for c in cases(section, servers, workers) if any(word in c.name for word in wanted.split("|")))


def main():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    rng = np.random.RandomState(0)
    batches = [draw(rng, size) for _ in range(STEPS * MOST_KEPT)]
    servers = Servers(rank, size, int(sys.argv[2]))
    results, expected, analysed = {}, {}, {}
    for case in selected(sys.argv[3:], servers.count, size):
        began = time.monotonic()
        try:
            updates = updates_of(batches, case.kept)
            if case.graph not in analysed:
                analysed, expected = {case.graph: Analysed(case)}, {}
            if rank == 0 and case.kept not in expected:
                expected[case.kept] = one_process(case.build, case.resource, updates, size)
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
