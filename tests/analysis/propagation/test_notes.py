"""Where each worker's loss is taken for a mean: what a plan says of state of its own batch, and what is refused."""

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, make_feasible_plan
from parallax.analysis.reading.construction import record
from parallax.base.errors import GraphError
from parallax.plans.plan import PlanConstraints, one_host
from tests.equality.models import ROWS, WIDTH, dense, ids, table

record.install()
v1 = tf.compat.v1
LAYOUT = one_host(2, 0)


def notes(build):
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=True):
        build()
    of_means, *others = make_feasible_plan(analyse(graph, layouts=False), LAYOUT, PlanConstraints()).notes
    assert of_means.startswith("each worker's loss is assumed to be a mean over its batch")
    return tuple(others)


def losses():
    h = dense(tf.nn.embedding_lookup(table(), ids(6)))
    return tf.square(h - v1.placeholder(tf.float32, [6, 1], name="y"))[:, 0]


def train(loss):
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def average_of(tensor, name):
    average = v1.get_variable(name, [], initializer=v1.zeros_initializer(), trainable=False)
    return average, v1.assign(average, 0.9 * average + 0.1 * tensor)


def centers(write, shape=(ROWS, WIDTH), length=None):
    """Trains towards state that `write` writes of the centers, and of labels and outputs of the batch."""

    def build():
        x, labels = v1.placeholder(tf.float32, [length, ROWS]), v1.placeholder(tf.int64, [length])
        h, state = tf.matmul(x, v1.get_variable("w", [ROWS, WIDTH])), table("centers", list(shape), trainable=False)
        read = tf.gather(state, labels) if shape == (ROWS, WIDTH) else state
        train(tf.reduce_mean(tf.square(h - tf.stop_gradient(read))))
        write(state, labels, h)

    return build


def scatter_each(state, labels, h):
    def body(number):
        state.scatter_sub(tf.IndexedSlices(h[number : number + 1], labels[number : number + 1]))
        return number + 1

    tf.while_loop(lambda number: number < tf.shape(h)[0], body, [tf.constant(0)])


REFUSED = {
    "rows by number": lambda c, labels, h: v1.scatter_sub(c, labels, 0.1 * (tf.gather(c, labels) - h)),
    "rows of more numbers": lambda c, labels, h: tf.raw_ops.ResourceScatterNdAdd(
        ref=c.handle, indices=labels[:, None], updates=h
    ),
    "a slice": lambda c, labels, h: c[:1].assign(h[:1]),
    "sums by label": lambda c, labels, h: c.assign(0.9 * c + tf.math.unsorted_segment_sum(h, labels, ROWS)),
    "a product along the batch": lambda c, labels, h: c.assign(
        0.9 * c + tf.matmul(tf.one_hot(labels, ROWS), h, transpose_a=True)
    ),
    "rows in a loop": scatter_each,
    "a condition of one example": lambda c, labels, h: tf.cond(
        labels[0] > 2, lambda: c.assign_add(tf.ones([ROWS, WIDTH])), lambda: tf.identity(c)
    ),
}


@pytest.mark.parametrize("write", REFUSED)
def test_what_training_reads_and_each_worker_writes_from_its_batch_is_refused(write):
    with pytest.raises(
        GraphError, match="depend on 'centers', but .* writes it (with|if) .*each worker computes.*the batch open"
    ):
        notes(centers(REFUSED[write]))


def test_one_example_of_the_batch_is_no_state_for_all():
    with pytest.raises(GraphError, match="depend on 'centers', but .* writes it with 'strided_slice:0'"):
        notes(centers(lambda c, labels, h: c.assign(h[0]), (WIDTH,)))


@pytest.mark.parametrize(
    "write",
    [
        lambda c, labels, h: c.assign(0.9 * c + 0.1 * tf.reduce_mean(h, 0)),
        lambda c, labels, h: c.assign(tf.reduce_max(h, 0)),
        lambda c, labels, h: c.assign_add(tf.reduce_sum(h, 0)),
    ],
    ids=["a moving mean", "a maximum", "a sum"],
)
def test_a_statistic_of_a_worker_s_own_batch_is_no_state_for_all(write):
    with pytest.raises(
        GraphError, match="depend on 'centers', but .* writes it with .*each worker computes from its own"
    ):
        notes(centers(write, (WIDTH,)))


def test_state_of_each_worker_s_own_examples_is_told():
    (note,) = notes(centers(lambda c, labels, h: c.assign(0.5 * c + h), (6, WIDTH), 6))
    assert note.startswith("training can read centers, which each worker writes from its own batch")


def test_state_that_is_fed_and_state_made_of_weights_are_not_told():
    assert notes(centers(lambda c, labels, h: c.assign(v1.placeholder(tf.float32, [ROWS, WIDTH])))) == ()
    assert notes(centers(lambda c, labels, h: c.assign(0.9 * c + 0.1))) == ()


def test_what_is_written_beside_training_or_comes_before_it_alone_is_not_told():
    def build():
        loss = tf.reduce_mean(losses())
        _, write = average_of(loss, "shown")
        with v1.control_dependencies([write]):
            train(loss)

    assert notes(build) == ()


def test_what_is_computed_of_a_value_that_no_step_takes_is_not_told():
    def build():
        train(tf.reduce_mean(losses()))
        kept = v1.get_variable("kept", [WIDTH, 6], trainable=False)
        v1.assign(kept, tf.transpose(v1.placeholder(tf.float32, [6, WIDTH])))

    assert notes(build) == ()
