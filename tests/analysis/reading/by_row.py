"""Runs a graph as it is and with updates by row, side by side in one process."""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from parallax.analysis.reading.capture import capture
from parallax.analysis.reading.lazy.updates import lazy_updates
from parallax.functions.tracing.arguments import arguments_of
from parallax.functions.tracing.step_graph import StepGraph
from parallax.functions.tracing.trace_step import trace_step
from parallax.graph.batches import mark_batch
from parallax.graph.view import GraphView, node_of

v1 = tf.compat.v1
ROWS, WIDTH = 40, 3
TABLE = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
WEIGHTS = np.random.default_rng(2).normal(size=(6, WIDTH)).astype(np.float32)


def batches(steps, seed=5):
    """Ids of each step, with repeats; some rows come early and not again, some never."""
    random = np.random.default_rng(seed)
    return [
        np.minimum(random.zipf(1.6, 6), ROWS // 2) % ROWS if n else np.array([30, 31, 1, 1, 2, 30])
        for n in range(steps)
    ]


def loss_of(rows):
    return tf.reduce_sum(tf.square(rows - WEIGHTS) * 0.1)


class Step:
    """A graph that trains a table of ROWS x WIDTH from one batch of ids.

    Attributes:
        graph: the tf.Graph.
        ids: the placeholder.
        run: what carries a step out.
        values: initial values of variables that do not have them from their initializers.
    """

    def __init__(self, graph, ids, run, values):
        self.graph, self.ids, self.run, self.values = graph, ids, run, values


def tf1_step(train, lookup=tf.nn.embedding_lookup, dtype=tf.float32):
    """`train` makes the update of (loss, table) and gives the op that runs it."""
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int64, [6], name="ids")
        table = v1.get_variable("table", initializer=tf.constant(TABLE, dtype), use_resource=True)
        loss = loss_of(tf.cast(lookup(table, ids), tf.float32))
        run = train(loss, table)
    return Step(graph, ids.name, run.name, {})


def keras_step(optimizer, library=keras):
    layer = library.layers.Embedding(ROWS, WIDTH, name="table")
    layer.build((None,))
    layer.set_weights([TABLE])
    if hasattr(optimizer, "build"):  # a legacy one of tf_keras makes its slots itself
        optimizer.build(layer.trainable_variables)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = loss_of(layer(ids))
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    traced = trace_step(step, arguments_of((np.zeros(6, np.int64),), {}), merges_rows=True)
    graph = StepGraph(traced.variables)
    made = graph.add("step", traced.concrete)
    mark_batch(made.feeds[0], "step")
    values = {one.name: one.variable.numpy() for one in graph.list_variables()}
    return Step(graph.graph, made.feeds[0].name, made.run.name, values)


def captured(step):
    """The graph of a step as capture has it."""
    return capture(step.graph).view.graph_def


def by_row(step):
    """(graph, what is known of its one table), the graph with updates by row."""
    graph_def, tables = lazy_updates(captured(step))
    (table,) = tables
    return graph_def, table


def up_to_date(graph_def, tables):
    """A graph whose lookups and reads of lazy tables see rows that are up to date."""
    out = tf.compat.v1.GraphDef()
    out.CopyFrom(graph_def)
    states = {state: table for table in tables for state in table.states}
    dtype = {node.name: node.attr["dtype"].type for node in out.node if node.op == "VarHandleOp"}
    for node in list(out.node):
        state = node.input[0].split(":")[0] if node.input else ""
        if state not in states or node.op not in ("ResourceGather", "ReadVariableOp"):
            continue
        members = states[state].states
        controls = [name for name in node.input if name.startswith("^")]
        if node.op == "ReadVariableOp":
            brought = out.node.add(
                name=f"{node.name}/up_to_date", op="ParallaxBringUpToDate", input=[*members, *controls]
            )
            brought.attr["N"].i = len(members)
            brought.attr["T"].type = dtype[state]
            node.input.append(f"^{brought.name}")
            continue
        assert state == states[state].table
        node.op = "ParallaxGatherRows"
        inputs = [node.input[1], *members, *controls]
        del node.input[:]
        node.input.extend(inputs)
        for attribute in ("batch_dims", "validate_indices", "dtype"):
            node.attr.pop(attribute)
        node.attr["T"].type = dtype[state]
        node.attr["N"].i = len(members)
    return out


def row_ops():
    tf.load_op_library(str(Path(sys.executable).parent.parent / "lib" / "libparallax_rows.so"))


def _as_written():
    """Arithmetic stays as the graph has it, so that two graphs can be compared bit for bit."""
    config = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return config


def trained(graph_def, step, steps, container=""):
    """The values of all variables after some steps."""
    view = GraphView(graph_def)
    variables = [name for name in view.nodes if view.op(name) == "VarHandleOp"]
    assigns = {name: f"{name}/Assign" for name in variables}
    with tf.Graph().as_default(), v1.Session(config=_as_written()) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        for name, assign in assigns.items():
            feeds = {view.inputs(assign)[1]: step.values[name]} if name in step.values else {}
            session.run(assign, feeds)
        for ids in batches(steps):
            session.run(step.run, {step.ids: ids})
        reads = {name: f"{name}/Read/ReadVariableOp:0" for name in variables}
        return {name: session.run(read) for name, read in reads.items() if node_of(read) in view.nodes}


def differences(step, steps):
    """The largest relative difference of each variable, dense and by row; and what is known of the table."""
    row_ops()
    dense = trained(captured(step), step, steps)
    graph_def, table = by_row(step)
    assert not table.reason, table.reason
    lazy = trained(up_to_date(graph_def, [table]), step, steps)
    assert dense.keys() == lazy.keys()
    found = {
        name: float(np.max(np.abs(dense[name] - lazy[name]), initial=0) / (np.max(np.abs(dense[name])) + 1e-30))
        for name in dense
    }
    return found, table, dense
