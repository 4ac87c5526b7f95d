"""Updates of whole tables are recognized and made updates by row, with the numbers of the graph as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from parallax.analysis.graph_to_plan import analyse
from parallax.analysis.reading.capture import capture
from parallax.analysis.reading.lazy.updates import lazy_updates
from parallax.graph.view import GraphView
from tests.analysis.reading.by_row import WIDTH, by_row, captured, differences, keras_step, row_ops, tf1_step

v1 = tf.compat.v1
KERAS, TF_KERAS = keras.optimizers, tf_keras.optimizers
STEPS = 40
# What is cut differs from the dense graph by the rounding of a missed update, 2^-24, for each of at most STEPS.
CLOSE = STEPS * 2.0**-24


def slow(name, make):
    return pytest.param(make, id=name, marks=pytest.mark.slow)


def legacy(optimizer):
    return lambda loss, table: v1.group(optimizer.get_updates(loss, [table]))


def hand_written(loss, table):
    """Momentum as a script may have it, without an optimizer; the gradient is made dense."""
    (slices,) = tf.gradients(loss, [table])
    gradient = tf.math.unsorted_segment_sum(slices.values, slices.indices, table.shape[0])
    speed = v1.get_variable("speed", initializer=tf.zeros_like(table), use_resource=True)
    with tf.control_dependencies([speed.assign(0.9 * speed + gradient)]):
        return table.assign_sub(0.1 * speed.read_value(), read_value=False)


def hand_written_adam(loss, table):
    """Adam with its powers in variables, which every update corrects the bias by; the rate is zero by turns."""
    gradient = tf.convert_to_tensor(tf.gradients(loss, [table])[0])
    m, v = (v1.get_variable(name, initializer=tf.zeros_like(table), use_resource=True) for name in "mv")
    one, two = (v1.get_variable(f"power{b}", initializer=b, use_resource=True) for b in (0.9, 0.999))
    count = v1.get_variable("count", initializer=0.0, use_resource=True)
    rate = tf.where(tf.floor(count / 5.0) % 2.0 > 0.0, 0.0, 0.1)
    mean = m.assign(0.9 * m + 0.1 * gradient) / (1.0 - one)
    square = v.assign(0.999 * v + 0.001 * tf.square(gradient)) / (1.0 - two)
    with tf.control_dependencies([table.assign_sub(rate * mean / (tf.sqrt(square) + 1e-8), read_value=False)]):
        return v1.group(one.assign(one * 0.9), two.assign(two * 0.999), count.assign_add(1.0))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: tf1_step(lambda loss, _: v1.train.AdamOptimizer(0.1).minimize(loss)), id="tf.train Adam"),
        pytest.param(lambda: tf1_step(hand_written_adam), id="hand-written Adam"),
        pytest.param(lambda: tf1_step(hand_written), id="hand-written momentum"),
        pytest.param(lambda: keras_step(KERAS.Adam(0.1)), id="Adam"),
        pytest.param(lambda: keras_step(KERAS.SGD(0.1, momentum=0.9)), id="momentum"),
        pytest.param(lambda: keras_step(TF_KERAS.legacy.Adam(0.1), tf_keras), id="legacy Adam of a model"),
        slow("nesterov", lambda: keras_step(KERAS.SGD(0.1, momentum=0.9, nesterov=True))),
        slow("Adam with clipped elements", lambda: keras_step(KERAS.Adam(0.1, clipvalue=0.01))),
        slow("scheduled Adam", lambda: keras_step(KERAS.Adam(KERAS.schedules.ExponentialDecay(0.1, 10, 0.9)))),
        slow("Adam with EMA", lambda: keras_step(KERAS.Adam(0.1, use_ema=True))),
        slow("AMSGrad", lambda: keras_step(KERAS.Adam(0.1, amsgrad=True))),
        slow("Adamax", lambda: keras_step(KERAS.Adamax(0.1))),
        slow("Nadam", lambda: keras_step(KERAS.Nadam(0.1))),
        slow("tf_keras Adam", lambda: keras_step(TF_KERAS.Adam(0.1), tf_keras)),
        slow("tf_keras nesterov", lambda: keras_step(TF_KERAS.SGD(0.1, momentum=0.9, nesterov=True), tf_keras)),
        slow("tf_keras Nadam", lambda: keras_step(TF_KERAS.Nadam(0.1), tf_keras)),
        slow("legacy Adam", lambda: tf1_step(legacy(TF_KERAS.legacy.Adam(0.1)))),
        slow("legacy AMSGrad", lambda: tf1_step(legacy(TF_KERAS.legacy.Adam(0.1, amsgrad=True)))),
        slow("Lion", lambda: keras_step(KERAS.Lion(0.1))),
        slow("momentum RMSprop", lambda: keras_step(KERAS.RMSprop(0.1, centered=True, momentum=0.9))),
    ],
)
def test_numbers_are_those_of_the_dense_graph_bit_for_bit(make):
    found, _, dense = differences(make(), STEPS)
    assert len(found) > 1 and all(np.isfinite(value).all() for value in dense.values())
    assert {name: difference for name, difference in found.items() if difference} == {}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: keras_step(KERAS.AdamW(0.1)), id="AdamW"),
        pytest.param(lambda: keras_step(KERAS.RMSprop(0.1)), id="RMSprop"),
        slow("clipped Adam", lambda: keras_step(KERAS.Adam(0.1, clipnorm=0.1))),
        slow("globally clipped Adam", lambda: keras_step(KERAS.Adam(0.1, global_clipnorm=0.1))),
        slow("SGD with decay", lambda: keras_step(KERAS.SGD(0.1, weight_decay=0.01))),
        slow("tf_keras RMSprop", lambda: keras_step(TF_KERAS.RMSprop(0.1), tf_keras)),
        slow("tf_keras AdamW", lambda: keras_step(TF_KERAS.AdamW(0.1), tf_keras)),
        slow("legacy RMSprop", lambda: tf1_step(legacy(TF_KERAS.legacy.RMSprop(0.1)))),
        slow("Adadelta", lambda: keras_step(KERAS.Adadelta(0.1))),
        slow("Ftrl", lambda: keras_step(KERAS.Ftrl(0.1, l1_regularization_strength=0.01))),
    ],
)
def test_numbers_are_those_of_the_dense_graph_but_for_the_rounding_of_what_is_cut(make):
    found, _, _ = differences(make(), STEPS)
    assert {name: difference for name, difference in found.items() if difference > CLOSE} == {}


def test_what_a_step_runs_reads_no_state_whole():
    for step in (tf1_step(lambda loss, _: v1.train.AdamOptimizer(0.1).minimize(loss)), keras_step(KERAS.Adam(0.1))):
        graph_def, table = by_row(step)
        view = GraphView(graph_def)
        needed = view.ancestors([step.run])
        assert table.node in needed and len(table.states) == 3
        states = {f"{state}:0" for state in table.states}
        assert [node for node in needed if view.op(node) == "ReadVariableOp" and view.inputs(node)[0] in states] == []


def test_the_norm_of_a_clipped_gradient_is_of_its_rows():
    for options in ({"clipnorm": 0.1}, {"global_clipnorm": 0.1}):
        step = keras_step(KERAS.Adam(0.1, **options))
        view = GraphView(by_row(step)[0])
        needed = view.ancestors([step.run])
        (rows,) = [node for node in needed if view.op(node) == "UnsortedSegmentSum"]
        assert view.shape(f"{rows}:0") == (None, WIDTH)


def test_what_was_written_is_what_waits_for_the_update():
    before, (after, table) = ((step := tf1_step(hand_written)), by_row(step))
    view = GraphView(after)
    assert {"mul", "mul_1"} & {*table.removed} and not {*table.removed} & view.nodes.keys()
    writes = [n.name for n in captured(before).node if n.op.startswith("Assign") and not n.name.endswith("/Assign")]
    assert len(writes) == 2
    assert [(view.op(name), view.controls(name)) for name in writes] == [("NoOp", (table.node,))] * 2
    (initial,) = [name for name in view.nodes if name == "table/Assign"]
    assert view.op(initial) == "AssignVariableOp"


def test_a_captured_graph_keeps_what_autodiff_delivered():
    row_ops()
    step = tf1_step(lambda loss, _: v1.train.AdamOptimizer(0.1).minimize(loss))
    dense, lazy = capture(step.graph), capture(step.graph, by_row=True)
    assert [one.reason for one in lazy.lazy] == [""] and lazy.lazy[0].node in lazy.view.nodes
    assert lazy.records == dense.records and lazy.fingerprint == dense.fingerprint
    assert not dense.lazy and dense.view.nodes.keys() - lazy.view.nodes.keys()


def test_a_program_says_what_missed_updates_of_adam_do():
    _, table = by_row(tf1_step(lambda loss, _: v1.train.AdamOptimizer(0.1, beta1=0.5, beta2=0.75).minimize(loss)))
    lines = table.program.splitlines()
    assert lines[:3] == ["states 3", "scalars 1", "r0 = mul s1 c:0x1.0000000000000p-1"]
    (move,) = [line.split() for line in lines if line.startswith("move")]
    assert move[:3] == ["move", "s0", "c:0x1.0000000000000p+0"] and move[4:] == ["h0:1:1", "s1:1:1", "s2:-0.5:0"]
    assert [line.split()[2] for line in lines if line.startswith("decay")] == [f"c:{b.hex()}" for b in (0.5, 0.75)]


@pytest.mark.parametrize(
    "train",
    [
        lambda loss, _: v1.train.GradientDescentOptimizer(0.1).minimize(loss),
        lambda loss, _: v1.train.AdagradOptimizer(0.1).minimize(loss),
        lambda loss, _: v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss),
    ],
    ids=["SGD", "Adagrad", "sparse momentum"],
)
def test_an_update_that_touches_no_other_rows_is_left_alone(train):
    graph_def = captured(tf1_step(train))
    found, tables = lazy_updates(graph_def)
    assert found is graph_def and tables == ()


def test_constants_are_cast_as_the_graph_casts_them():
    def train(loss, table):
        speed = _speed(table)
        whole = tf.cast(tf.cast(tf.constant(2.75), tf.int32), tf.float32)
        speed = speed.assign(speed / whole + _dense(loss, table))
        return table.assign_sub(tf.cast(tf.constant(0.1, tf.float64), tf.float32) * speed, read_value=False)

    _, table = by_row(tf1_step(train))
    constants = {word for word in table.program.split() if word.startswith("c:")}
    assert {f"c:{(2.0).hex()}", f"c:{float(np.float32(0.1)).hex()}"} <= constants


# Updates that stay as they are.


def _dense(loss, table):
    (slices,) = tf.gradients(loss, [table])
    return tf.math.unsorted_segment_sum(slices.values, slices.indices, table.shape[0])


def _speed(table):
    return v1.get_variable("speed", initializer=tf.zeros_like(table), use_resource=True)


def normed(loss, table):
    done = hand_written(loss, table)
    norm = v1.get_variable("norm", initializer=0.0, use_resource=True)
    with tf.control_dependencies([done]):
        return norm.assign(tf.norm(table.read_value()), read_value=False)


def scaled_by_norm(loss, table):
    speed = _speed(table)
    speed = speed.assign(0.9 * speed + _dense(loss, table))
    return table.assign_sub(speed * tf.norm(table), read_value=False)


def in_parts(loss, table):
    speed = _speed(table)
    first = speed.assign(0.9 * speed + _dense(loss, table), read_value=False)
    v1.group(first, name="half")
    with tf.control_dependencies([first]):
        return table.assign_sub(speed.read_value(), read_value=False)


def racing(loss, table):
    speed = _speed(table)
    first = speed.assign(0.9 * speed + _dense(loss, table), read_value=False)
    return v1.group(first, table.assign_sub(speed.read_value(), read_value=False))


def two_in_no_order(loss, table):
    gradient = _dense(loss, table)
    return v1.group(*[table.assign_sub(rate * (gradient + table), read_value=False) for rate in (0.1, 0.2)])


def between(loss, table):
    speed, rate = _speed(table), v1.get_variable("rate", initializer=0.1, use_resource=True)
    first = speed.assign(0.9 * speed + _dense(loss, table), read_value=False)
    with tf.control_dependencies([first]):
        slower = rate.assign(rate * 0.9)
        return table.assign_sub(slower * speed.read_value(), read_value=False)


def by_column(loss, table):
    speed = _speed(table)
    speed = speed.assign(0.9 * speed + _dense(loss, table))
    return table.assign_sub(speed * tf.constant([0.1, 0.2, 0.3]), read_value=False)


def repeated(loss, table):
    (slices,) = tf.gradients(loss, [table])
    with tf.control_dependencies([table.assign(0.9 * table, read_value=False)]):
        return tf.raw_ops.ResourceScatterSub(resource=table.handle, indices=slices.indices, updates=slices.values)


def trained_twice(loss, table):
    speed = _speed(table)
    for name in ("first", "second"):
        with tf.control_dependencies([speed.assign(0.9 * speed + _dense(loss, table))]):
            run = v1.group(table.assign_sub(speed.read_value(), read_value=False), name=name)
    return run


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (normed, "uses the whole value of ReadVariableOp"),
        (scaled_by_norm, "uses the whole value of ReadVariableOp"),
        (in_parts, "op NoOp 'half' can run without op AssignSubVariableOp"),
        (racing, "is not fixed"),
        (two_in_no_order, "which write the same variable, is not fixed"),
        (between, "runs between the writes of the update"),
        (by_column, "has the shape (3,)"),
        (repeated, "may write a row more than once"),
        (trained_twice, "op NoOp 'first' can run without op Assign"),
    ],
)
def test_an_update_stays_as_it_is_and_a_reason_names_the_op(train, reason):
    graph_def = captured(tf1_step(train))
    found, (table,) = lazy_updates(graph_def)
    assert reason in table.reason
    assert found is graph_def and (table.table, table.states, table.node, table.program) == ("table", (), "", "")


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda: KERAS.Adam(0.1, gradient_accumulation_steps=2), "is in a branch of a conditional or in a loop"),
        (lambda: KERAS.LossScaleOptimizer(KERAS.Adam(0.1)), "is in a branch of a conditional or in a loop"),
        (lambda: KERAS.Lamb(0.1), "uses the whole value of ReadVariableOp"),
    ],
    ids=["accumulation", "loss scaling", "Lamb"],
)
def test_what_keras_updates_in_conditionals_or_by_norms_stays_as_it_is(optimizer, reason):
    _, (table,) = lazy_updates(captured(keras_step(optimizer())))
    assert reason in table.reason


def test_a_table_that_is_a_reference_stays_as_it_is():
    graph = tf.Graph()
    with graph.as_default():
        table = v1.get_variable("table", [5, 2], use_resource=False)
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, v1.placeholder(tf.int64, [3])))
        v1.train.AdamOptimizer(0.1).minimize(loss)
    _, (found,) = lazy_updates(capture(graph).view.graph_def)
    assert found.table == "table" and found.reason.startswith("op VariableV2 'table' is a reference variable")


def _momentum(dense, resource=True):
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=resource):
        table = v1.get_variable("table", [5, 2])
        loss = tf.reduce_mean(tf.nn.embedding_lookup(table, v1.placeholder(tf.int64, [None])))
        (slices,) = tf.gradients(loss, [table])
        speed = v1.get_variable("speed", [5, 2], initializer=tf.zeros_initializer(), trainable=False)
        speed = v1.assign(speed, 0.9 * tf.convert_to_tensor(speed) + dense(slices))
        v1.assign_sub(table, 0.1 * speed)
    return graph


def _applied_whole():
    graph = tf.Graph()
    with graph.as_default():
        table = v1.get_variable("table", [5, 2], use_resource=True)
        loss = tf.reduce_mean(tf.nn.embedding_lookup(table, v1.placeholder(tf.int64, [None])))
        made = v1.train.MomentumOptimizer(0.1, 0.9)
        made.apply_gradients([(tf.convert_to_tensor(g), v) for g, v in made.compute_gradients(loss)])
    return graph


def _scattered(slices):
    return tf.scatter_nd(slices.indices[:, None], slices.values, tf.constant([5, 2], tf.int64))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: _momentum(_scattered),
            "writes a value that cannot be computed row by row: make the gradient dense with",
        ),
        (lambda: _momentum(tf.convert_to_tensor, False), "call tf.compat.v1.enable_resource_variables() first"),
        (_applied_whole, "takes a dense gradient: pass the tf.IndexedSlices"),
    ],
    ids=["no rule", "reference", "given a dense gradient"],
)
def test_of_every_table_that_is_written_whole_the_plan_says_why(build, said):
    graph = build()
    (note,) = [note for note in analyse(graph).spec.notes if "all rows of table" in note]
    assert said in note
    assert not any("all rows of" in note for note in analyse(graph, lazy_updates=False).spec.notes)


def test_the_remedies_that_plans_name_make_updates_by_row():
    notes = analyse(_momentum(tf.convert_to_tensor)).spec.notes
    assert any(note.startswith("rows are updated only when touched") for note in notes), notes
