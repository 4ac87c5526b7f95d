"""Where a script sets seeds, workers start at the values of a plain TensorFlow session, and owners at their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession
from ops.exactness.transport import combine_workers
from parallax.analysis.graph_to_plan import analyse, make_feasible_plan, rewrites_of
from parallax.analysis.reading.capture import initialization_phases
from parallax.analysis.reading.construction import record
from parallax.plans.plan import PlanConstraints, one_host
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform

v1 = tf.compat.v1
record.install()
ROWS, WORKERS = 21, 3
INITIALIZERS = {
    "the default": None,
    "uniform": v1.random_uniform_initializer(-1, 1),
    "normal": v1.random_normal_initializer(stddev=0.1),
    "truncated normal": v1.truncated_normal_initializer(),
    "Glorot's normal": v1.glorot_normal_initializer(),
    "variance scaling": v1.variance_scaling_initializer(2.0),
    "orthogonal": v1.orthogonal_initializer(),
    "unit scaling": v1.uniform_unit_scaling_initializer(),
}
SEEDED = {
    "normal": v1.random_normal_initializer(seed=5),
    "Glorot's uniform": v1.glorot_uniform_initializer(seed=0),
    "orthogonal": v1.orthogonal_initializer(seed=3),
    "truncated normal": v1.truncated_normal_initializer(seed=7),
}


def variables_of(initializers: dict[str, Any]) -> list[Any]:
    """A table and a matrix of each."""
    made = []
    for number, initializer in enumerate(initializers.values()):
        made.append(v1.get_variable(f"table_{number}", [ROWS, 4], initializer=initializer))
        made.append(v1.get_variable(f"matrix_{number}", [4, 4], initializer=initializer))
    return made


def with_graph_seed() -> list[Any]:
    v1.set_random_seed(3)
    return variables_of(INITIALIZERS)


def with_op_seeds() -> list[Any]:
    return variables_of(SEEDED)


def of_old_variables() -> list[Any]:
    v1.set_random_seed(0)
    v1.get_variable_scope().set_use_resource(False)
    return variables_of(INITIALIZERS)


def values_of_ops() -> list[Any]:
    v1.set_random_seed(4)
    rest = tf.random.truncated_normal([ROWS - 1, 4])
    values = [
        tf.concat([tf.zeros([1, 4]), rest], 0),
        tf.random.gamma([ROWS, 4], 2.0),
        tf.nn.l2_normalize(tf.random.normal([ROWS, 4]), 1),
        tf.random.shuffle(tf.range(1.0 * ROWS))[:, None] * tf.random.uniform([1, 4]),
        tf.nn.dropout(tf.ones([ROWS, 4]), 0.5),
        tf.random.normal([ROWS], dtype=tf.float64),
        tf.random.stateless_normal([ROWS, 4], seed=tf.random.uniform([2], maxval=9, dtype=tf.int32)),
    ]
    return [v1.Variable(value, name=f"value_{number}") for number, value in enumerate(values)]


def in_functions() -> list[Any]:
    """As branches and loops of the new kind of control flow draw; TensorFlow defines no order of calls of one."""
    v1.set_random_seed(5)
    chosen = tf.cond(v1.placeholder_with_default(True, []), lambda: tf.random.normal([ROWS, 4]), rows)
    _, added = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x + rows()), [0, tf.zeros([ROWS, 4])])
    values = {"chosen": chosen, "added": added, "called": tf.function(rows)()}
    return [v1.Variable(value, name=name) for name, value in values.items()]


def rows() -> Any:
    return tf.random.uniform([ROWS, 4])


def partitioned() -> list[Any]:
    v1.set_random_seed(6)
    return [*v1.get_variable("parts", [2 * ROWS, 4], partitioner=v1.fixed_size_partitioner(2))]


def layers_of_keras() -> list[Any]:
    keras.utils.set_random_seed(1)
    embedding, dense = keras.layers.Embedding(ROWS, 4), keras.layers.Dense(4)
    embedding.build()
    dense.build([None, 4])
    return [one.value for one in (*embedding.weights, *dense.weights)]


def layers_of_tf_keras() -> list[Any]:
    v1.set_random_seed(7)
    embedding, lstm = tf_keras.layers.Embedding(ROWS, 4), tf_keras.layers.LSTM(3)
    embedding.build([None])
    lstm.build(tf.TensorShape([None, 5, 4]))
    return [*embedding.weights, *lstm.weights]


@pytest.mark.rotates
@pytest.mark.parametrize(
    "build",
    [
        *(with_graph_seed, with_op_seeds, of_old_variables, values_of_ops, in_functions, partitioned),
        *(layers_of_keras, layers_of_tf_keras),
    ],
)
def test_initial_values_are_those_of_a_plain_session(build: Callable[[], list[Any]]) -> None:
    was_new = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2()
    try:
        graph = trained(build)
    finally:
        (v1.enable_control_flow_v2 if was_new else v1.disable_control_flow_v2)()
    every = graph.get_collection("variables")
    with v1.Session(graph=graph) as session:
        session.run([one.initializer for one in every])
        plain = session.run(every)
    for found in of_workers(graph, [graph.as_graph_element(one).name for one in every]):
        differing = [
            one.name
            for one, value, expected in zip(every, found, plain, strict=True)
            if not np.array_equal(value, expected)
        ]
        assert differing == []


def trained(build: Callable[[], list[Any]]) -> Any:
    """The graph of variables of which each is trained, by rows those that have as many as tables."""
    graph = tf.Graph()
    with graph.as_default():
        variables = build()
        ids = v1.placeholder(tf.int64, [6], name="ids")
        taken = [tf.gather(one, ids) if one.shape[0] == ROWS else one.read_value() for one in variables]
        loss = tf.add_n([tf.reduce_mean(tf.cast(tf.square(one), tf.float64)) for one in taken])
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return graph


def of_workers(graph: Any, names: list[str]) -> list[list[Any]]:
    """By worker the initial values of tensors, all rows of tables that owners hold."""
    native_ops()
    analysed = analyse(graph)
    rewrites = rewrites_of(analysed, make_feasible_plan(analysed, one_host(WORKERS, 0), PlanConstraints()))
    assert rewrites.tables, "tables have owners"
    made = [transform(analysed.captured.view, rewrites, Worker(rank, WORKERS, seed=9)) for rank in range(WORKERS)]
    for one in made:
        for function in one.graph_def.library.function:
            function.attr.pop("_input_shapes", None)  # TensorFlow writes it without a value
    with NamedSession(combine_workers([one.graph_def for one in made], []), v1.ConfigProto()) as session:
        job = JobInMemory(session, analysed, made)
        for phase in initialization_phases(analysed.captured):
            job.run_ops([phase] * WORKERS)
        return job.run(names, [{}] * WORKERS)
