"""The rule of each kind of op: which layouts its results have, and in which layout it takes its inputs."""

from functools import partial

import pytest
import tensorflow as tf

from parallax.analysis.layouts.find_layouts import find_layouts
from parallax.analysis.layouts.training_graph import TrainingGraph
from parallax.analysis.propagation import visit_node
from parallax.analysis.reading.capture import capture
from parallax.analysis.reading.lowering.function_bodies import functions_of
from parallax.base.errors import GraphError
from parallax.graph.batches import mark_batch
from parallax.graph.lengths import Length
from parallax.plans.layouts import UNEVEN, LengthValue, Partial, Replicated, Sharded, ShardedAxis

v1 = tf.compat.v1
BATCH = "x:0"
SAME, SUM, COUNTED, MIN, MAX, LENGTHS = (
    Replicated(),
    Partial(),
    Partial(is_counted=True),
    Partial("min"),
    Partial("max"),
    LengthValue(),
)


def rows(axis=0, factor=1, blocks=1):
    return Sharded(axis, ShardedAxis(BATCH, Length.of(factor), blocks))


def layouts_of(program, control_flow_v2=True):
    """The layouts of what a program computes of a batch x `[batch, 4]` and a replicated w `[4, 4]`."""
    toggle = v1.enable_control_flow_v2 if control_flow_v2 else v1.disable_control_flow_v2
    toggle()
    try:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [None, 4], name="x")
            mark_batch(x, "train")
            tf.identity(program(x, tf.ones([4, 4])), name="result")
    finally:
        v1.enable_control_flow_v2()
    captured = capture(graph)
    functions = functions_of(captured.view, lambda op: visit_node.differs(op, False))
    differs = partial(visit_node.differs, equal_randomness=False)
    draws = visit_node.is_random
    view, variables = captured.view, captured.variables
    return find_layouts(TrainingGraph(view, variables, (), frozenset(), functions, differs, draws))


def repeated(step, start):
    """A tensor after three rounds of a loop."""
    return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, step(a)), (0, start))[1]


def table_gradient(x, w):
    """The gradient of a regularized table that is looked up by a batch's distinct ids."""
    ids, at = tf.unique(tf.reshape(tf.cast(tf.abs(x), tf.int32) % 4, [-1]))
    rows = tf.gather(tf.tanh(tf.gather(w, ids)), at)
    return tf.gradients(tf.reduce_sum(tf.square(rows)) + tf.nn.l2_loss(w), w)[0]


def boxes_of(x):
    """Two boxes of each example."""
    return tf.reshape(tf.sort(tf.concat([x, x], 1)), [-1, 2, 4])


def drawn_seed():
    return tf.random.uniform([2], maxval=9, dtype=tf.int32)


def sum_by_ids(x, w):
    """Rows of a batch's targets and histories, added up by their ids."""
    rows = tf.concat([x[:, :1], tf.reshape(x, [-1, 1])], 0)
    ids = tf.cast(tf.concat([x[:, 0], tf.reshape(x, [-1])], 0), tf.int32)
    return tf.math.unsorted_segment_sum(rows, ids, 4)


@pytest.mark.parametrize(
    "program, layout",
    [
        (lambda x, w: tf.tanh(x) + 1.0, rows()),
        (lambda x, w: x @ w, rows()),
        (lambda x, w: tf.transpose(x), rows(1)),
        (lambda x, w: tf.transpose(x) @ x, SUM),
        (lambda x, w: tf.einsum("bi,bj->ij", x, x), SUM),
        (lambda x, w: tf.einsum("bi,ij->jb", x, w), rows(1)),
        (lambda x, w: tf.reduce_sum(x), SUM),
        (lambda x, w: tf.reduce_sum(x, 1), rows()),
        (lambda x, w: tf.reduce_mean(x, 0, keepdims=True), COUNTED),
        (lambda x, w: tf.reduce_max(x), MAX),
        (lambda x, w: tf.reduce_all(x > 0), MIN),
        (lambda x, w: tf.reduce_any(x > 0), MAX),
        (lambda x, w: 3.0 * tf.reduce_sum(x, 0) + tf.ones([4]), COUNTED),
        (lambda x, w: tf.reduce_sum(x, 0, True) @ w, SUM),
        (lambda x, w: tf.sqrt(tf.reduce_sum(x, 0)), SAME),
        (lambda x, w: x - tf.reduce_mean(x, 0), rows()),
        (lambda x, w: tf.reshape(x, [-1]), rows(0, 4)),
        (lambda x, w: tf.reshape(x, [-1, 2, 2]), rows()),
        (lambda x, w: tf.reshape(tf.reshape(x, [-1]), [tf.shape(x)[0], 4]), rows()),
        (lambda x, w: x[:, None], rows()),
        (lambda x, w: x[None], rows(1)),
        (lambda x, w: tf.concat([x, x], 1), rows()),
        (lambda x, w: tf.concat([x, x], 0), rows(0, 1, 2)),
        (lambda x, w: tf.split(tf.concat([x, x], 0), 2)[1], rows()),
        (lambda x, w: tf.concat([x, x], 0)[tf.shape(x)[0] :], rows()),
        (lambda x, w: tf.stack([x, x], 1), rows()),
        (lambda x, w: tf.pad(x, [[0, 0], [1, 1]]), rows()),
        (lambda x, w: tf.gather(w, tf.argmax(x, 1)), rows()),
        (lambda x, w: tf.one_hot(tf.argmax(x, 1), 4), rows()),
        (lambda x, w: tf.nn.softmax(x), rows()),
        (lambda x, w: tf.math.top_k(x, 2).values, rows()),
        (lambda x, w: tf.cumsum(x, 1), rows()),
        (lambda x, w: tf.math.unsorted_segment_sum(x, tf.argmax(x, 1), 4), SUM),
        (lambda x, w: tf.range(tf.shape(x)[0]), rows()),
        (lambda x, w: tf.zeros([tf.shape(x)[0], 3]), rows()),
        (lambda x, w: tf.broadcast_to(w[:1], tf.shape(x)), rows()),
        (lambda x, w: tf.tile(w[:1], [tf.shape(x)[0], 1]), rows()),
        (lambda x, w: tf.shape(x)[0], LENGTHS),
        (lambda x, w: tf.shape(x)[0] // 2 + 1, LENGTHS),
        (lambda x, w: tf.reshape(tf.slice(x, [0, 1], tf.stack([tf.shape(x)[0], 2])), [1, tf.shape(x)[0], 2]), rows(1)),
        (lambda x, w: tf.shape(x)[1], SAME),
        (lambda x, w: tf.maximum(tf.shape(x @ tf.transpose(x))[1], tf.shape(x)[0]), SAME),
        (lambda x, w: tf.broadcast_dynamic_shape(tf.shape(x @ tf.transpose(x))[1:], tf.shape(x)[:1]), SAME),
        (lambda x, w: tf.broadcast_to(x[:, :1], tf.broadcast_dynamic_shape(tf.shape(x), [4])), rows()),
        (lambda x, w: tf.reshape(x, tf.pad(tf.shape(x), [[1, 0]], constant_values=1)), rows(1)),
        (lambda x, w: tf.reshape(tf.boolean_mask(tf.transpose(x), w[0] > 0), [2, -1, tf.shape(x)[0]]), rows(2)),
        (lambda x, w: tf.reshape(x, [tf.where(tf.constant(1) < 2, tf.shape(x)[0], 7), 4]), rows()),
        (lambda x, w: tf.cast(tf.shape(x)[0], tf.float32) * tf.reduce_sum(x), SUM),
        (lambda x, w: tf.random.uniform(tf.shape(x)), rows()),
        (lambda x, w: tf.random.categorical(x, 2), rows()),
        (lambda x, w: tf.random.stateless_categorical(x, 2, drawn_seed()), rows()),
        (lambda x, w: tf.random.stateless_categorical(x, 2, [1, 2]), SAME),
        (lambda x, w: tf.random.gamma([2], tf.exp(x)), rows(1)),
        (lambda x, w: tf.random.poisson([], tf.exp(x)), rows()),
        (lambda x, w: tf.random.stateless_binomial(tf.shape(x), drawn_seed(), 3.0, tf.sigmoid(x)), rows()),
        (lambda x, w: tf.random.stateless_gamma(tf.shape(x), drawn_seed(), tf.exp(x[:, :1])), rows()),
        (lambda x, w: tf.gradients(tf.random.gamma([], tf.exp(x)), x)[0], rows()),
        (lambda x, w: tf.image.draw_bounding_boxes(tf.tile(x[..., None, None], [1, 1, 1, 3]), boxes_of(x), w), rows()),
        (lambda x, w: tf.image.combined_non_max_suppression(boxes_of(x)[:, :, None], x[:, :2, None], 2, 2)[3], rows()),
        (lambda x, w: tf.raw_ops.IsotonicRegression(input=x)[0], rows()),
        (lambda x, w: tf.math.real(tf.signal.fft3d(tf.cast(x[:, None, None], tf.complex64))), rows()),
        (lambda x, w: tf.fingerprint(tf.cast(x, tf.int32)), rows()),
        (lambda x, w: tf.eye(tf.shape(x)[0]), SAME),
        (lambda x, w: v1.Print(x, [tf.reduce_sum(x), tf.shape(x)[0]]), rows()),
        (lambda x, w: v1.Print(w, [x]), SAME),
        (lambda x, w: tf.where(x[:, 0] > 0), Sharded(0, ShardedAxis(BATCH, Length.of(f"true of Greater:0{UNEVEN}")))),
        (lambda x, w: tf.linalg.svd(x, compute_uv=False), SAME),
        (lambda x, w: tf.roll(x, 1, 1), rows()),
        (lambda x, w: tf.reverse_sequence(x, tf.argmax(x, 1), 1), rows()),
        (lambda x, w: tf.space_to_batch(x, [2], [[0, 0]]), rows(0, 1, 2)),
        (lambda x, w: tf.batch_to_space(tf.space_to_batch(x, [2], [[0, 0]]), [2], [[0, 0]]), rows()),
        (lambda x, w: tf.gradients(tf.square(tf.pad(x, [[0, 0], [1, 1]])), x)[0], rows()),
        (table_gradient, COUNTED),
        (sum_by_ids, SUM),
        (lambda x, w: tf.gradients(tf.square(tf.repeat(x, 2, 1)), x)[0], rows()),
        (lambda x, w: tf.gradients(tf.square(tf.concat([x, 2.0 * x], 1)), x)[0], rows()),
        (lambda x, w: tf.gradients(tf.concat([x, 2.0 * x], 0)[tf.shape(x)[0] :] ** 2, x)[0], rows()),
        (lambda x, w: tf.concat([x, 2.0 * x], 0)[-tf.shape(x)[0] :], rows()),
        (lambda x, w: tf.concat([x, 2.0 * x, -x], 0)[: -2 * tf.shape(x)[0]], rows()),
        (lambda x, w: repeated(lambda a: tf.tanh(a @ w), x), rows()),
        (lambda x, w: repeated(lambda a: a + tf.reduce_sum(x, 0), tf.zeros([4])), SUM),
        (lambda x, w: repeated(lambda a: tf.cumsum(a), x), SAME),
        (lambda x, w: tf.map_fn(lambda column: column * 2.0, tf.transpose(x)), rows(1)),
        (lambda x, w: tf.map_fn(tf.reduce_sum, tf.transpose(x)), SUM),
        (lambda x, w: tf.map_fn(lambda row: row * 2.0, x), rows()),
        (lambda x, w: tf.scan(lambda a, column: a + column, tf.transpose(x)), rows(1)),
        (lambda x, w: tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1.0, lambda: -x), rows()),
        (lambda x, w: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.shape(x)[0], lambda: 2 * tf.shape(x)[0]), SAME),
        (lambda x, w: tf.cond(tf.reduce_sum(x) > 0, lambda: w, lambda: tf.cumsum(x)), SAME),
        (lambda x, w: tf.gradients(tf.map_fn(lambda a: tf.tanh(a[:, None] * w[0]), tf.transpose(x)), w)[0], SUM),
    ],
)
def test_a_result_has_the_layout_that_follows_from_its_inputs(program, layout):
    assert layouts_of(program).facts["result:0"].layout == layout


class Cell:
    state_size = output_size = 4

    def get_initial_state(self, inputs=None, batch_size=None, dtype=None):
        return tf.zeros([batch_size, 4], dtype)

    zero_state = get_initial_state

    def __call__(self, inputs, state, scope=None):
        return 2 * (tf.tanh(inputs + state @ tf.ones([4, 4])),)


def last_of_sequences(x):
    """The last state of a cell along sequences of as many steps as their first entries say."""
    sequences, lengths = tf.stack([x, 2.0 * x], 1), tf.cast(x[:, 0], tf.int32)
    return v1.nn.dynamic_rnn(Cell(), sequences, lengths, initial_state=tf.zeros_like(x))[1]


def noise_like(a):
    return tf.random.uniform(tf.shape(a))


@pytest.mark.parametrize(
    "program, layout",
    [
        (lambda x, w: repeated(lambda a: tf.tanh(a @ w), x), rows()),
        (lambda x, w: repeated(lambda a: a + noise_like(a), x), rows()),
        (lambda x, w: repeated(lambda a: a + tf.reduce_sum(x, 0), tf.zeros([4])), SUM),
        (lambda x, w: (lambda total: repeated(lambda a: tf.tanh(a - total), x))(tf.reduce_sum(x)), rows()),
        (lambda x, w: repeated(lambda a: repeated(lambda b: tf.tanh(a + b), a), x), rows()),
        (lambda x, w: repeated(lambda a: tf.cond(a[0, 0] > 0, lambda: a, lambda: -a), x), SAME),
        (lambda x, w: repeated(lambda a: tf.cond(w[0, 0] > 0, lambda: a, lambda: -a), x), rows()),
        (lambda x, w: tf.while_loop(lambda i: i < tf.shape(x)[0], lambda i: i + 1, [0]), LENGTHS),
        (lambda x, w: tf.map_fn(lambda column: column * 2.0, tf.transpose(x)), rows(1)),
        (lambda x, w: tf.map_fn(tf.reduce_sum, tf.transpose(x)), SUM),
        (lambda x, w: tf.map_fn(lambda row: row * 2.0, x), rows()),
        (lambda x, w: tf.scan(lambda a, column: a + column, tf.transpose(x)), rows(1)),
        (lambda x, w: tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1.0, lambda: -x), rows()),
        (lambda x, w: tf.cond(w[0, 0] > 0, lambda: tf.reduce_sum(x, 0), lambda: tf.zeros([4])), SUM),
        (lambda x, w: tf.gradients(tf.cond(w[0, 0] > 0, lambda: x @ w, lambda: x), w)[0], SUM),
        (lambda x, w: last_of_sequences(x), rows()),
        (lambda x, w: tf.gradients(last_of_sequences(x @ w), w)[0], SUM),
        (lambda x, w: tf.gradients(repeated(lambda a: tf.tanh(a @ w), x), w)[0], SUM),
        (lambda x, w: tf.gradients(repeated(lambda a: tf.tanh(a @ w), x), x)[0], rows()),
        (lambda x, w: tf.gradients(tf.map_fn(lambda a: tf.tanh(a[:, None] * w[0]), tf.transpose(x)), w)[0], SUM),
        (lambda x, w: tf.gradients(tf.scan(lambda a, b: tf.tanh(a + b), tf.transpose(x)), x)[0], rows()),
    ],
)
@pytest.mark.parametrize("control_flow_v2", [True, False])
def test_loops_of_both_styles_have_the_layouts_that_follow_from_their_inputs(program, layout, control_flow_v2):
    found = layouts_of(program, control_flow_v2)
    assert found.facts["result:0"].layout == layout
    assert layout == SAME or not found.mixing


@pytest.mark.parametrize(
    "program, op",
    [
        (lambda x, w: x @ tf.transpose(x), "MatMul"),
        (lambda x, w: tf.sort(x, 0), "TopKV2"),
        (lambda x, w: tf.cumsum(x), "Cumsum"),
        (lambda x, w: tf.nn.softmax(tf.transpose(x)), "Softmax"),
        (lambda x, w: tf.gather(x, tf.argmax(x, 1)), "GatherV2"),
        (lambda x, w: tf.reverse(x, [0]), "ReverseV2"),
        (lambda x, w: repeated(tf.cumsum, x), "while"),
        (lambda x, w: tf.reshape(x, [4, -1]), "Reshape"),
        (lambda x, w: x[1:], "StridedSlice"),
        (lambda x, w: tf.unique_with_counts(tf.argmax(x, 1))[0], "UniqueWithCounts"),
        (lambda x, w: tf.sort(tf.unique(tf.argmax(x, 1))[0]), "Unique"),
    ],
)
def test_an_op_that_mixes_examples_is_named(program, op):
    found = layouts_of(program)
    assert [node for node in found.mixing if op in node or op == found_op(program, node)]


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: tf.gradients(tf.square(tf.linalg.set_diag(x[:, :, None] * x[:, None], x)), x)[0],
    ],
)
def test_nothing_is_gathered_where_examples_stay_apart(program):
    found = layouts_of(program)
    assert (found.facts["result:0"].layout, found.mixing) == (rows(), {})


def run_block(inputs, w):
    """The outputs of one LSTM over all times."""
    zeros, peepholes = tf.zeros([tf.shape(inputs)[1], 4]), {name: tf.zeros([4]) for name in ("wci", "wcf", "wco")}
    time, kernel = tf.shape(inputs, tf.int64)[0], tf.tile(w, [2, 4])
    made = dict(seq_len_max=time, x=inputs, cs_prev=zeros, h_prev=zeros, w=kernel, b=tf.zeros([16]), **peepholes)
    return tf.raw_ops.BlockLSTM(**made).h


def found_op(program, node):
    with tf.Graph().as_default() as graph:
        program(v1.placeholder(tf.float32, [None, 4], name="x"), tf.ones([4, 4]))
    return {one.name: one.type for one in graph.get_operations()}.get(node, "")


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: tf.reduce_mean(tf.square(x @ w)),
        lambda x, w: tf.nn.softmax(x) * tf.reduce_sum(tf.cast(x > 0, tf.float32)),
        lambda x, w: (x - tf.reduce_mean(x, 0)) * tf.math.rsqrt(tf.math.reduce_variance(x, 0)),
        lambda x, w: tf.gradients(run_block(x[None], w), x)[0],
        lambda x, w: tf.nn.dropout(x, 0.5) + tf.random.normal(tf.shape(x)),
    ],
)
def test_ops_that_leave_examples_apart_gather_nothing(program):
    found = layouts_of(program)
    assert not found.mixing
    assert not [one for one in found.rewrites.changes if isinstance(one.before, Sharded)]


def test_a_partial_tensor_that_several_ops_need_is_reduced_once():
    def program(x, w):
        mean = tf.reduce_mean(x, 0, name="mean")
        return tf.sqrt(mean) + tf.exp(mean) + 0.1 * mean

    [change] = layouts_of(program).rewrites.changes
    assert change.tensor == "mean:0" and (change.before, change.after) == (COUNTED, SAME) and len(change.edges) == 3


def test_an_op_takes_a_tensor_in_one_layout_whatever_its_rule_asks_for_on_the_way():
    changes = layouts_of(
        lambda x, w: tf.matmul(x, tf.nn.softmax(x @ tf.transpose(x), axis=0), transpose_a=True)
    ).rewrites
    edges = [edge for change in changes.changes if not change.is_whole for edge in change.edges]
    assert len(edges) == len(set(edges))


@pytest.mark.parametrize(
    "cut, ends",
    [
        (lambda x: x[:2], 2),
        (lambda x: x[1], 2),
        (lambda x: x[0:3:2, 1:], 3),
        (lambda x: x[-1], -1),
        (lambda x: x[-3:-1], -3),
        (lambda x: tf.slice(x, [1, 0], [2, -1]), 3),
        (lambda x: tf.transpose(x)[:, None, -2:], -2),
        (lambda x: x[1:], 0),
        (lambda x: x[:-1], 0),
        (lambda x: x[-2:3], 0),
        (lambda x: x[::2], 0),
    ],
)
def test_a_slice_at_an_end_of_the_batch_gathers_no_more_entries_than_it_reads(cut, ends):
    [change] = layouts_of(lambda x, w: cut(x)).rewrites.changes
    assert change.after == SAME and change.ends == ends


def test_what_all_workers_have_is_cut_by_lengths_of_the_global_batch():
    found = layouts_of(lambda x, w: tf.slice(tf.reverse(x, [0]), [0, 0], [tf.shape(x)[0], 2]))
    assert found.facts["Slice:0"].layout == SAME
    assert any(isinstance(change.before, LengthValue) for change in found.rewrites.changes)


def test_gathered_examples_take_lengths_of_the_global_batch():
    """Else all that follows would be computed once more, from these lengths."""
    gathered = layouts_of(lambda x, w: tf.reverse(x, [0]) * tf.sqrt(tf.cast(tf.shape(x)[0], tf.float32)))
    assert gathered.facts["result:0"].layout == SAME
    assert layouts_of(lambda x, w: w * tf.cast(tf.shape(x)[0], tf.float32)).facts["result:0"].layout == LENGTHS


def test_numbers_along_the_batch_begin_where_a_worker_has_its_examples():
    [one] = layouts_of(lambda x, w: tf.range(tf.shape(x)[0])).rewrites.ranges
    assert one.part == ShardedAxis(BATCH)


def test_a_shape_with_two_axes_of_the_batch_is_the_workers_along_one_of_them():
    [one] = layouts_of(lambda x, w: tf.zeros([tf.shape(x)[0], tf.shape(x)[0]])).rewrites.shapes
    assert one.axis == 0


def test_random_numbers_of_no_example_are_the_same_on_all_workers():
    assert layouts_of(lambda x, w: x * tf.random.uniform([4])).equal_draws == ("random_uniform/RandomUniform",)
    assert layouts_of(lambda x, w: x * tf.random.gamma([4], 1.0)).equal_draws == ("random_gamma/RandomGamma",)
    assert layouts_of(lambda x, w: x * tf.random.uniform(tf.shape(x))).equal_draws == ()


def test_what_may_differ_between_workers_and_has_no_rule_is_refused():
    with pytest.raises(GraphError, match="may give a different result on each worker.*out of the training step"):
        layouts_of(lambda x, w: x * tf.numpy_function(lambda: 1.0, [], tf.float32))


def test_what_an_op_draws_though_it_is_not_declared_random_is_worker_0_s():
    found = layouts_of(lambda x, w: tf.image.extract_glimpse(x[..., None, None], [2, 1], tf.zeros([tf.shape(x)[0], 2])))
    assert found.rewrites.from_worker_0 == ("ExtractGlimpseV2:0",)
