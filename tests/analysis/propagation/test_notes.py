"""What a plan says of what it takes for granted about each worker's own batch."""

import tensorflow as tf

from parallax.analysis.reading import record
from parallax.analysis.stages import analyse, feasible
from parallax.plans.plan import PlanConstraints, one_host
from tests.equality.models import ROWS, WIDTH, dense, ids, table

record.install()
v1 = tf.compat.v1
LAYOUT = one_host(2, 0)


def notes(build):
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=True):
        build()
    return feasible(analyse(graph), LAYOUT, PlanConstraints()).notes


def losses():
    h = dense(tf.nn.embedding_lookup(table(), ids(6)))
    return tf.square(h - v1.placeholder(tf.float32, [6, 1], name="y"))[:, 0]


def train(loss):
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def average_of(tensor, name):
    average = v1.get_variable(name, [], initializer=v1.zeros_initializer(), trainable=False)
    return average, v1.assign(average, 0.9 * average + 0.1 * tensor)


def centers_of_classes():
    x = v1.placeholder(tf.float32, [6, ROWS], name="x")
    h, labels = tf.matmul(x, v1.get_variable("w", [ROWS, WIDTH])), ids(6)
    centers = table("centers", trainable=False)
    train(tf.reduce_mean(tf.square(h - tf.stop_gradient(tf.gather(centers, labels)))))
    v1.scatter_sub(centers, labels, 0.1 * (tf.gather(centers, labels) - h))


def test_what_training_reads_and_each_worker_writes_is_told():
    (note,) = notes(centers_of_classes)
    assert note.startswith("training can read centers, which each worker writes from its own batch")


def test_what_is_written_beside_training_or_comes_before_it_alone_is_not_told():
    def build():
        loss = tf.reduce_mean(losses())
        _, write = average_of(loss, "shown")
        with v1.control_dependencies([write]):
            train(loss)

    assert notes(build) == ()


def test_a_mean_that_may_be_over_what_a_batch_chooses_is_told():
    def build():
        per_row = losses()
        train(tf.reduce_mean(tf.cumsum(tf.boolean_mask(per_row, ids(6, "others") > 3))))

    note, others = notes(build)
    assert note.startswith("Mean may be a mean over what each worker's batch chooses")
    assert others.startswith("examples of a batch meet at Cumsum")


def test_what_worker_0_computes_of_its_batch_for_all_is_told_and_what_is_fed_is_not():
    def build(fed):
        each = losses()
        train(tf.reduce_mean(each))
        last = v1.get_variable("last", [6], trainable=False)
        v1.assign(last, v1.placeholder(tf.float32, [6]) if fed else tf.square(each))

    (note,) = notes(lambda: build(False))
    assert note.startswith("last take on all workers what worker 0 computes of its own batch")
    assert notes(lambda: build(True)) == ()


def test_what_is_computed_of_a_value_that_no_step_takes_is_not_told():
    def build():
        train(tf.reduce_mean(losses()))
        kept = v1.get_variable("kept", [WIDTH, 6], trainable=False)
        v1.assign(kept, tf.transpose(v1.placeholder(tf.float32, [6, WIDTH])))

    assert notes(build) == ()
