"""Runs under mpirun: trains many graphs on all ranks and compares each with one process on the joined batch.

    python -m tests.equality.program RESULT.json SECTION [FILTER]

Rank 0 writes {case: {variable: relative difference}}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A short cycle where every rank has a core; ranks that share cores would only keep each other from working.
_SHARED_CORES = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) > (os.cpu_count() or 1)
os.environ.setdefault("HOROVOD_CYCLE_TIME", "1" if _SHARED_CORES else "0.1")


from parallax.analysis import record  # noqa: E402

record.install()

import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from parallax.analysis.capture import capture, initialization_phases  # noqa: E402
from parallax.analysis.planner import make_plan  # noqa: E402
from parallax.errors import PlanError  # noqa: E402
from parallax.runtime.planning import analyse, decide  # noqa: E402
from parallax.runtime.verify import difference  # noqa: E402
from parallax.transform.edit import Worker  # noqa: E402
from parallax.transform.pipeline import transform  # noqa: E402
from parallax.transform.seeds import set_seeds  # noqa: E402
from tests.equality import models  # noqa: E402
from tests.equality.cases import cases  # noqa: E402

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
    """One step's batches: the workers' and the joined one."""
    mine = [{k: f(rng, ROWS_PER_WORKER) for k, f in models.FEEDS.items()} for _ in range(size)]
    return mine, {k: np.concatenate([m[k] for m in mine]) for k in models.FEEDS}


def values_of(graph, session, whole=None):
    found = {}
    for variable in graph.get_collection("variables"):
        tensor = graph.as_graph_element(variable).name
        found[variable.name] = session.run((whole or {}).get(tensor, tensor))
    return found


def one_process(builder, resource, batches, size):
    graph, ops = build(builder, ROWS_PER_WORKER * size, resource)
    graph_def = graph.as_graph_def()
    set_seeds(graph_def, frozenset(), Worker(0, 1, SEED, equal_randomness=True))
    seeded = tf.Graph()
    with seeded.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    with v1.Session(graph=seeded) as session:
        for phase in initialization_phases(capture(graph)):
            session.run(phase)
        for step, (_, joined) in enumerate(batches):
            session.run(ops[step % len(ops)].name, feeds(graph, joined))
        return values_of(graph, session)


def workers(builder, resource, route, batches, rank, size):
    graph, ops = build(builder, ROWS_PER_WORKER, resource)
    analysed = analyse(graph)
    routes = {}
    for variable in analysed.spec.variables:
        try:
            make_plan(analysed.spec, size, {variable.name: route})
            routes[variable.name] = route
        except PlanError:
            continue  # impossible for this variable: it keeps its own route
    plan = make_plan(analysed.spec, size, routes)
    made = transform(
        analysed.captured.view,
        decide(analysed, plan, equal_randomness=True),
        Worker(rank, size, SEED, equal_randomness=True),
    )
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(made.graph_def, name="")
    with v1.Session(graph=imported) as session:
        for phase in initialization_phases(analysed.captured):
            session.run(phase)
        session.run(made.counter_initializers)
        for step, (mine, _) in enumerate(batches):
            session.run(ops[step % len(ops)].name, feeds(graph, mine[rank]))
        values = values_of(graph, session, made.whole)
    return values, {v.name: f"{v.cls.value} by {v.route}" for v in plan.variables}


def main():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    rng = np.random.RandomState(0)
    batches = [draw(rng, size) for _ in range(STEPS)]
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    results, expected = {}, {}
    for case in cases(sys.argv[2]):
        if wanted not in case.name:
            continue
        began = time.monotonic()
        try:
            if case.graph not in expected:
                expected = {case.graph: one_process(case.build, case.resource, batches, size)}
            found, routes = workers(case.build, case.resource, case.route, batches, rank, size)
            result = {n: difference(found[n], e) for n, e in expected[case.graph].items()}
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
