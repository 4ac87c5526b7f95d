"""Owners make their own rows of initial values, bit for bit those of the graph for one device, and never all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, make_feasible_plan, rewrites_of
from parallax.analysis.reading.construction import record
from parallax.graph.ownership import Ownership
from parallax.graph.view import GraphView
from parallax.plans.plan import PlanConstraints, one_host
from parallax.plans.rewrites import Rewrites
from parallax.runtime.measure.memory import resident_bytes
from parallax.runtime.worker.reports.graph_notes import log_full_values
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import WorkerGraph, transform
from tests.equality import models

v1 = tf.compat.v1
record.install()

ROWS = 101  # no other dimension is so long
UNEVEN = (0, 2, 2, 1, 2)


def stateless(shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
    return tf.cast(tf.random.stateless_truncated_normal(shape, (3, 5), dtype=tf.float64), dtype)


def of_columns(shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
    """Columns of other scales, and a reshape within the rows."""
    drawn = tf.reshape(v1.random_normal([shape[0], shape[1], 1], dtype=dtype), shape)
    return tf.abs(drawn) * tf.range(1.0, shape[1] + 1.0) - tf.broadcast_to(tf.constant([[0.5]]), shape)


def of_integers(shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
    return tf.cast(v1.random_uniform(shape, -5, 5, tf.int32), dtype) / 4 + tf.ones_like(tf.zeros(shape))


BY_ROW = {
    "uniform": v1.random_uniform_initializer(-0.3, 0.7),
    "normal": v1.random_normal_initializer(0.5, 2.0),
    "truncated_normal": v1.truncated_normal_initializer(0.5, 2.0),
    "glorot": None,
    "variance_scaling": v1.variance_scaling_initializer(distribution="truncated_normal"),
    "zeros": v1.zeros_initializer(),
    "ones": v1.ones_initializer(),
    "constant": v1.constant_initializer(0.25),
    "array": v1.constant_initializer(np.random.default_rng(1).normal(size=(ROWS, 5)).astype(np.float32)),
    "filled": lambda shape, dtype=tf.float32, **_: tf.fill(shape, tf.constant(0.25, dtype)),
    "filled with zeros": lambda shape, dtype=tf.float32, **_: tf.fill(shape, tf.constant(0.0, dtype)),
    "filled with negative zeros": lambda shape, dtype=tf.float32, **_: tf.fill(shape, tf.constant(-0.0, dtype)),
    "stateless": stateless,
    "of_columns": of_columns,
    "of_integers": of_integers,
}
WHOLE = {
    "orthogonal": v1.orthogonal_initializer(),
    "tanh": lambda shape, dtype=tf.float32, **_: tf.tanh(v1.random_normal(shape, dtype=dtype)),
}


def captured(
    initializer: Any, resource: bool, width: int, run_option: str, optimizer: str = "Adagrad", rows: int = ROWS
) -> Any:
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=resource):
        v1.set_random_seed(3)
        table = v1.get_variable("emb", [rows, width], initializer=initializer)
        h = tf.nn.embedding_lookup(table, models.ids(6))
        models.OPTIMIZERS[optimizer]().minimize(models.squared(models.dense(h), 6))
    analysed = analyse(graph)
    routes = {"emb": "alltoall"} if run_option != "PS" else {}
    constraints = PlanConstraints(
        run_option=run_option, routes=routes, partitions={"emb": 3} if run_option == "PS" else {}
    )
    plan = make_feasible_plan(analysed, one_host(3, 2), constraints)
    return graph, analysed.captured.view, rewrites_of(analysed, plan)


def values_of(graph_def: Any, variables: list[str]) -> list[np.ndarray]:
    """What the initializers of variables give them, run one after the other in one session."""
    with tf.Graph().as_default() as graph, v1.Session() as sess:
        tf.import_graph_def(graph_def, name="")
        found = []
        for name in variables:
            sess.run(graph.get_operation_by_name(f"{name}/Assign"))
        for name in variables:
            read = f"{name}/Read/ReadVariableOp:0" if f"{name}/Read/ReadVariableOp" in names(graph) else f"{name}:0"
            found.append(sess.run(read))
        return found


def names(graph: Any) -> set[str]:
    return {op.name for op in graph.get_operations()}


def shapes_before(graph_def: Any, variables: list[str]) -> list[Any]:
    """The static shapes of all that the initializers of variables need."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        waiting, seen = [graph.get_operation_by_name(f"{name}/Assign") for name in variables], set()
        while waiting:
            op = waiting.pop()
            if op not in seen:
                seen.add(op)
                waiting += [*(t.op for t in op.inputs), *op.control_inputs]
        return [t.shape.as_list() for op in seen for t in op.outputs if t.shape.rank]


def made_for(view: GraphView, rewrites: Rewrites, rank: int, size: int = 3) -> WorkerGraph:
    servers = (0, 0) if any(table.servers for table in rewrites.tables) else ()
    return transform(view, rewrites, Worker(rank, size, 7, servers=servers))


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("kind", "resource"),
    [*((kind, True) for kind in (*BY_ROW, *WHOLE)), *((kind, False) for kind in ("glorot", "constant", "array"))],
)
def test_each_worker_has_its_rows_of_what_one_process_has(kind: str, resource: bool) -> None:
    graph, view, rewrites = captured((BY_ROW | WHOLE)[kind], resource, 5, "HYBRID")
    (table,) = rewrites.tables
    members = list(table.members)
    assert members == ["emb", "emb/Adagrad"]
    wanted = values_of(graph.as_graph_def(), members)
    for pattern in ((), UNEVEN):
        spread = replace(rewrites, tables=(replace(table, pattern=pattern),))
        ownership = Ownership(pattern, 3) if pattern else Ownership.even(3)
        for rank in range(3):
            made = made_for(view, spread, rank)
            mine = [row for row in range(ROWS) if ownership.holder(row) == rank]
            for whole, rows in zip(wanted, values_of(made.graph_def, members), strict=True):
                assert rows.tobytes() == whole[mine].tobytes()
            assert [cut.variable for cut in made.sliced_values] == (["emb"] if kind in WHOLE else [])
            if kind in BY_ROW:
                assert not [shape for shape in shapes_before(made.graph_def, members) if ROWS in shape]


@pytest.mark.parametrize("optimizer", ["Adam", "Ftrl", "CenteredRMSProp"])
def test_slots_are_made_by_row(optimizer: str) -> None:
    graph, view, rewrites = captured(None, True, 5, "HYBRID", optimizer)
    members = list(rewrites.tables[0].members)
    assert len(members) >= 3
    made = made_for(view, rewrites, 1)
    for whole, rows in zip(values_of(graph.as_graph_def(), members), values_of(made.graph_def, members), strict=True):
        assert rows.tobytes() == whole[1::3].tobytes()
    assert not made.sliced_values and not [s for s in shapes_before(made.graph_def, members) if ROWS in s]


def test_a_variable_whose_rows_begin_alike_is_in_memory_once() -> None:
    graph, view, rewrites = captured(BY_ROW["zeros"], True, 8, "HYBRID", "Adam", rows=3 * 2**20)
    members = list(rewrites.tables[0].members)
    assert len(members) == 3
    made = made_for(view, rewrites, 0)
    with tf.Graph().as_default() as mine, v1.Session() as sess:
        tf.import_graph_def(made.graph_def, name="")
        first = [
            tf.raw_ops.ResourceScatterUpdate(resource=mine.get_tensor_by_name(f"{name}:0"), indices=[0], updates=one)
            for name, one in ((name, tf.fill([1, 8], 2.0)) for name in members)
        ]
        before = resident_bytes()
        sess.run([mine.get_operation_by_name(f"{name}/Assign") for name in members])
        sess.run(first)
        share = 2**20 * 8 * 4
        assert resident_bytes() - before < 3.5 * share


def test_unseeded_values_are_the_same_however_many_workers_there_are() -> None:
    graph = tf.Graph()
    with graph.as_default():
        h = tf.nn.embedding_lookup(v1.get_variable("emb", [ROWS, 3]), models.ids(6))
        v1.train.AdagradOptimizer(0.1).minimize(models.squared(models.dense(h), 6))
    analysed = analyse(graph)
    rewrites = rewrites_of(
        analysed, make_feasible_plan(analysed, one_host(2), PlanConstraints(routes={"emb": "alltoall"}))
    )
    view = analysed.captured.view
    (whole,) = values_of(made_for(view, rewrites, 0, 1).graph_def, ["emb"])
    assert len(whole) == ROWS
    for rank in range(4):
        (rows,) = values_of(made_for(view, rewrites, rank, 4).graph_def, ["emb"])
        assert rows.tobytes() == whole[rank::4].tobytes()


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["glorot", "constant", "stateless", "array"])
def test_partitions_on_servers_are_made_there(kind: str) -> None:
    graph, view, rewrites = captured((BY_ROW | WHOLE)[kind], True, 5, "PS")
    members = [m for table in rewrites.tables if table.op == "emb" for m in table.members]
    made = made_for(view, rewrites, 0)
    nodes = {node.name: node for node in made.graph_def.node}
    parts = {m: list(made.partitions[m]) for m in members}
    if kind in BY_ROW:
        assert not [c for c in made.sliced_values if c.variable == "emb"]
        for number, (variable, table) in enumerate((m, p) for m in members for p in range(3)):
            value = nodes[f"parallax/server/{variable}/Assign/part_{table}"].input[1]
            assert nodes[value.split(":")[0]].device == nodes[parts[variable][table]].device != "", number
    for node in made.graph_def.node:
        node.device = ""
    with tf.Graph().as_default() as imported, v1.Session() as sess:
        tf.import_graph_def(made.graph_def, name="")
        for member, whole in zip(members, values_of(graph.as_graph_def(), members), strict=True):
            for number, part in enumerate(parts[member]):
                sess.run(imported.get_operation_by_name(f"parallax/server/{member}/Assign/part_{number}"))
                handle = imported.get_tensor_by_name(f"{part}:0")
                rows = sess.run(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32))
                assert rows.tobytes() == whole[number::3].tobytes()


@pytest.mark.parametrize(("rows", "told"), [(2**18, True), (2**17, False)])
def test_large_values_that_are_made_whole_are_told_of(rows: int, told: bool, capsys: Any) -> None:
    _, view, rewrites = captured(WHOLE["tanh"], True, 64, "HYBRID", rows=rows)
    (cut,) = made_for(view, rewrites, 0).sliced_values
    assert (cut.variable, cut.op, cut.size_bytes) == ("emb", "Tanh", rows * 64 * 4)
    log_full_values((cut,))
    said = capsys.readouterr().err
    assert ("Tanh" in said and "67.1 MB" in said) if told else not said


@pytest.mark.parametrize("resource", [True, False])
def test_a_worker_has_its_rows_alone_of_a_large_array_of_the_script(resource: bool) -> None:
    array = np.random.default_rng(2).normal(size=(2**12, 64)).astype(np.float32)
    _, view, rewrites = captured(v1.constant_initializer(array), resource, 64, "HYBRID", rows=len(array))
    assert view.graph_def.ByteSize() > array.nbytes
    for rank in range(3):
        made = made_for(view, rewrites, rank)
        (rows,) = values_of(made.graph_def, ["emb"])
        assert rows.tobytes() == array[rank::3].tobytes()
        assert made.graph_def.ByteSize() < 0.4 * array.nbytes
        assert "emb/Initializer/Const:0" in made.sharded_tensors
