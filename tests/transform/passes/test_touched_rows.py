"""Which rows are remembered as touched: those that an update writes in a run, all when a variable is written whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, rewrites_of
from parallax.analysis.planner import make_plan
from parallax.plans.plan import Layout, PlanConstraints, one_host
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import WorkerGraph, transform

v1 = tf.compat.v1
ROWS = 11


def lazy_adam(loss: Any, emb: Any) -> Any:
    """Adam of the touched rows alone, by hand."""
    gradient = tf.gradients(loss, emb)[0]
    ids = gradient.indices
    first = v1.get_variable("first", [ROWS, 4], initializer=v1.zeros_initializer(), trainable=False)
    now = tf.gather(first, ids) * 0.9 + gradient.values * 0.1
    return tf.group(v1.scatter_update(first, ids, now), v1.scatter_sub(emb, ids, now), name="train")


OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "sgd": lambda loss, _: v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train"),
    "adagrad": lambda loss, _: v1.train.AdagradOptimizer(0.1).minimize(loss, name="train"),
    "adam": lambda loss, _: v1.train.AdamOptimizer(0.1).minimize(loss, name="train"),
    "lazy adam": lazy_adam,
}


def graph_of(optimizer: str, use_resource: bool) -> Any:
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=use_resource):
        ids = v1.placeholder(tf.int64, [3], name="ids")
        emb = v1.get_variable("emb", [ROWS, 4])
        w = v1.get_variable("w", [4, 1], trainable=False)
        loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ w - 1.0))
        OPTIMIZERS[optimizer](loss, emb)
        v1.assign(emb, tf.zeros([ROWS, 4]), name="reset")
    return graph


def made_of(
    graph: Any, layout: Layout, worker: Worker, route: str | None = None, remembers: bool = True
) -> WorkerGraph:
    analysed = analyse(graph)
    plan = make_plan(analysed.spec, layout, PlanConstraints(routes={"emb": route} if route else {}))
    return transform(analysed.captured.view, rewrites_of(analysed, plan), worker, remembers)


class Run:
    """One worker's graph in a session."""

    def __init__(self, graph: Any) -> None:
        self.made = made_of(graph, one_host(1), Worker(0, 1, 7))
        imported = tf.Graph()
        with imported.as_default():
            tf.graph_util.import_graph_def(self.made.graph_def, name="")
            marks = [imported.get_tensor_by_name(f"{one.marks}:0") for one in self.made.touched.tables]
            self.marks = [tf.raw_ops.ReadVariableOp(resource=one, dtype=tf.bool) for one in marks]
        self.session = v1.Session(graph=imported)
        self.session.run([one.initializer.name for one in graph.get_collection("variables")])
        self.session.run(list(self.made.counter_initializers))

    def touched(self, *run: str, feeds: Any = None) -> list[list[int]]:
        """What is remembered after some runs, for each table; then it is forgotten."""
        for op in run:
            self.session.run(op, feeds)
        found = [np.flatnonzero(one).tolist() for one in self.session.run(self.marks)]
        self.session.run([one.clear for one in self.made.touched.tables])
        return found


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize(
    ("optimizer", "variables"),
    [("sgd", ("emb",)), ("adagrad", ("emb", "emb/Adagrad")), ("lazy adam", ("emb", "first"))],
)
def test_an_update_touches_its_rows_and_an_assignment_all(
    optimizer: str, variables: tuple[str, ...], use_resource: bool
) -> None:
    run = Run(graph_of(optimizer, use_resource))
    [table] = run.made.touched.tables
    assert table.variables == variables
    assert run.touched() == [[]]
    assert run.touched("train", feeds={"ids:0": [1, 9, 1]}) == [[1, 9]]
    assert run.touched() == [[]]
    assert run.touched("reset") == [list(range(ROWS))]


def test_rows_of_a_lazily_updated_table_are_not_remembered() -> None:
    touched = made_of(graph_of("adam", True), one_host(1), Worker(0, 1, 7)).touched
    assert touched.tables == ()
    assert [op for op, _ in touched.whole] == ["emb", "emb/Adam", "emb/Adam_1"]
    assert {why for _, why in touched.whole} == {"emb/update_rows changes rows that no gradient touches"}


@pytest.mark.parametrize(("route", "rows"), [("alltoall", 5), ("allgather", ROWS)])
def test_a_worker_remembers_the_rows_that_it_has(route: str, rows: int) -> None:
    made = made_of(graph_of("adagrad", True), one_host(2), Worker(1, 2, 7), route)
    [table] = made.touched.tables
    nodes = {node.name: node for node in made.graph_def.node}
    assert (table.marks, table.partitions) == ("parallax/touched/emb", ())
    assert [dim.size for dim in nodes[table.marks].attr["shape"].shape.dim] == [rows]
    [update] = [node for node in made.graph_def.node if node.op.startswith("ResourceSparseApply")]
    marking = nodes[f"parallax/touched/emb/rows/{update.name}"]
    assert f"^{marking.name}" in update.input and marking.input[1] in update.input


def test_servers_remember_the_rows_of_their_partitions() -> None:
    layout = Layout((2,), (0, 0))
    made = made_of(graph_of("adagrad", True), layout, Worker(0, 2, 7, servers=(0, 0)), "ps")
    [table] = made.touched.tables
    nodes = {node.name: node for node in made.graph_def.node}
    assert table.marks == "" and len(table.partitions) == len(table.clear_partitions) > 0
    for name in table.partitions:
        beside = nodes[name.removeprefix("parallax/touched/")]
        assert nodes[name].device == beside.device and "/job:" in beside.device
        assert nodes[name].attr["shape"].shape.dim[0].size == beside.attr["shape"].shape.dim[0].size


def test_without_increments_nothing_is_added() -> None:
    made = made_of(graph_of("adagrad", True), one_host(1), Worker(0, 1, 7), remembers=False)
    assert made.touched.tables == () and not any("touched" in node.name for node in made.graph_def.node)
