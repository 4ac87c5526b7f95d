"""A graph to train: built for a worker and for one process on the global batch, with a plan by the route asked for.

The one process is trained here; the workers are in a job (program.py), or in memory (in_memory.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession, as_written
from ops.exactness.transport import combine_workers
from parallax.analysis.graph_to_plan import analyse, make_feasible_plan, rewrites_of
from parallax.analysis.planner import make_plan
from parallax.analysis.reading.capture import capture, initialization_phases
from parallax.base.errors import PlanError
from parallax.plans.plan import PlanConstraints, one_host
from parallax.transform.building.editor import Worker
from parallax.transform.passes.random_seeds import set_seeds
from parallax.transform.pipeline import transform
from tests.equality import models
from tests.equality.cases import MOST_KEPT, OF_EACH_BATCH

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


def all_batches(size):
    """As many as any case needs, each with a batch for each worker."""
    rng = np.random.RandomState(0)
    return [
        [{k: f(rng, ROWS_PER_WORKER) for k, f in models.FEEDS.items()} for _ in range(size)]
        for _ in range(STEPS * MOST_KEPT)
    ]


def updates_of(batches, kept):
    """For each update the draws that it takes: one, or as many as are kept."""
    return [batches[i : i + kept] for i in range(0, STEPS * kept, kept)]


def joined(draws):
    """What the one process is fed in place of some draws."""
    every = [batch for draw in draws for batch in draw]
    return {k: np.concatenate([batch[k] for batch in every]) for k in models.FEEDS}


def one_process(case, updates, size):
    """The one process's variables: trained on all batches of an update as one, or, where each counts alone, on each."""
    if case.kept > 1 and case.name.startswith(OF_EACH_BATCH):
        return _one_worker(case, updates, size)
    builder, resource = case.build, case.resource
    graph, ops = build(builder, ROWS_PER_WORKER * size * len(updates[0]), resource)
    graph_def = graph.as_graph_def()
    set_seeds(graph_def, frozenset(), Worker(0, 1, SEED, equal_randomness=True))
    with NamedSession(graph_def, as_written()) as session:
        for phase in initialization_phases(capture(graph)):
            session.run(phase)
        for step, draws in enumerate(updates):
            session.run([ops[step % len(ops)].name], feeds(graph, joined(draws)))
        reads = reads_of(graph)
        return dict(zip(reads, session.run(list(reads.values())), strict=True))


def _one_worker(case, updates, size):
    """As `train_one_process`, by a single worker that keeps the gradients of global batches."""
    graph, ops = build(case.build, ROWS_PER_WORKER * size, case.resource)
    analysed = analyse(graph)
    plan = plan_of(analysed, f"allgather over {case.kept}", 1, 0)
    made = transform(
        analysed.captured.view,
        rewrites_of(analysed, plan, equal_randomness=True),
        Worker(0, 1, SEED, equal_randomness=True),
    )
    with NamedSession(combine_workers([made.graph_def], [op.name for op in ops]), as_written()) as session:
        job = JobInMemory(session, analysed, [made])
        for phase in [*initialization_phases(analysed.captured), list(made.counter_initializers)]:
            job.run_ops([phase])
        for step, draws in enumerate(updates):
            for draw in draws:
                job.run([ops[step % len(ops)].name], [feeds(graph, joined([draw]))])
        reads = reads_of(graph)
        (found,) = job.run(list(reads.values()), [{}])
    return dict(zip(reads, found, strict=True))


def reads_of(graph):
    """Variable -> the tensor that reads it."""
    return {v.name: graph.as_graph_element(v).name for v in graph.get_collection("variables")}


PATTERNS = {
    1: ((0,), (0,)),
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
                return make_feasible_plan(analysed, layout, PlanConstraints("PS", partitions=several))
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
        return make_feasible_plan(analysed, layout, PlanConstraints(routes=routes))
    except PlanError:  # propagation refused one of them
        return make_plan(analysed.spec, layout)


class Analysed:
    """A worker's graph, which is the same for all routes; each distinct rewrite of it is trained once."""

    def __init__(self, case, layouts=None):
        self.graph, self.ops = build(case.build, ROWS_PER_WORKER, case.resource)
        self.found = analyse(self.graph, layouts=layouts)
        self.trained = {}

    def decided(self, route, rank, size, servers):
        """The plan by a route, its rewrites and which worker a rank is."""
        plan = plan_of(self.found, route.replace(" by fronts", ""), size, servers if "ps" in route else 0)
        worker = Worker(rank, size, SEED, equal_randomness=True, servers=plan.servers)
        if " by host" in route:
            worker = replace(worker, hosts=tuple(number // 2 for number in range(size)), merges_in_host=True)
        if " by fronts" in route:
            at = tuple(number % size for number in range(len(plan.servers)))
            worker = replace(worker, hosts=tuple(range(size)), servers=at)
        return plan, rewrites_of(self.found, plan, equal_randomness=True), worker


def routes_in(plan):
    """Variable -> its class and route."""
    return {v.name: f"{v.cls.value} by {v.route}" for v in plan.variables}
