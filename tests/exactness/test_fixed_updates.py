"""Graphs for a fixed batch whose updates, labels or slices take its length from the script or from TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.plans.plan import one_host
from parallax.runtime.worker.session.names import Names
from parallax.settings.config import Config
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
F = tf.float64
FEEDS = {
    "x": lambda rng, rows: rng.randn(rows, 6),
    "y": lambda rng, rows: rng.randn(rows, 3),
    "words": lambda rng, rows: rng.randint(0, 9, [rows, 5]),
}


def measure(x: Any) -> Any:
    """The batch length, which TensorFlow makes a constant."""
    return tf.cast(tf.shape(x)[0], F)


def literal(x: Any) -> Any:
    """The batch length as a script writes it, where it knows it."""
    return tf.shape(x)[0] if x.shape[0] is None else int(x.shape[0])


def counter(name: str, dtype: Any = F) -> Any:
    return v1.get_variable(name, [], dtype, initializer=v1.zeros_initializer(), trainable=False)


def queue(name: str) -> Any:
    return v1.get_variable(name, [60, 3], F, trainable=False)


def train(out: Any, y: Any, rate: Any = 0.05) -> Any:
    return v1.train.GradientDescentOptimizer(rate).minimize(tf.reduce_mean(tf.square(out - y)))


def divided(x: Any, y: Any, out: Any) -> Any:
    weights = v1.trainable_variables()
    gradients = tf.gradients(tf.reduce_sum(tf.square(out - y)), weights)
    scaled = [(gradient / measure(x), variable) for gradient, variable in zip(gradients, weights, strict=True)]
    return v1.train.AdamOptimizer(0.05).apply_gradients(scaled)


def divided_by_entries(x: Any, y: Any, out: Any) -> Any:
    weights = v1.trainable_variables()
    gradients = tf.gradients(tf.reduce_sum(tf.square(out - y)), weights)
    scaled = [(gradient / tf.cast(tf.size(y), F), v) for gradient, v in zip(gradients, weights, strict=True)]
    return v1.train.GradientDescentOptimizer(0.5).apply_gradients(scaled)


def rate(x: Any, y: Any, out: Any) -> Any:
    return train(out, y, 0.5 / tf.sqrt(measure(x)))


def examples_seen(x: Any, y: Any, out: Any) -> Any:
    seen = counter("seen")
    with tf.control_dependencies([seen.assign_add(measure(x))]):
        return train(out, y, 0.5 / (1.0 + seen.read_value()))


def examples_counted(x: Any, y: Any, out: Any) -> Any:
    return tf.group(train(out, y), counter("seen").assign_add(tf.cast(literal(x), F)))


def examples_left(x: Any, y: Any, out: Any) -> Any:
    """Counts down from all examples, and adds up what it has seen, by numbers."""
    left, seen = counter("left"), counter("seen")
    update = train(out, y, 0.5 / (1.0 + seen))
    number = tf.cast(literal(x), F)
    with tf.control_dependencies([update]):
        return tf.group(left.assign_sub(number), seen.assign(seen + number))


def tokens_seen(x: Any, y: Any, out: Any) -> Any:
    """Of an input that no loss reads, and as a part of an epoch."""
    words = v1.placeholder(tf.int32, [x.shape[0], 5], name="words")
    parts = tf.cast(literal(x), F) / 1000.0
    tokens = counter("tokens", tf.int64).assign_add(tf.size(words, tf.int64))
    return tf.group(train(out, y), tokens, counter("passed").assign_add(parts))


def clipped_weights(x: Any, y: Any, out: Any) -> Any:
    """Measures a variable after the update, which is as wide as the batch is long."""
    wide = v1.get_variable("wide", [14, 3], F)
    update = train(out + tf.reduce_mean(wide, 0), y)
    with tf.control_dependencies([update]):
        return tf.group(v1.assign(wide, tf.clip_by_norm(wide.read_value(), 1.0, axes=[1])))


def decayed_by_examples(x: Any, y: Any, out: Any) -> Any:
    """As in TensorFlow's tutorial on MNIST, whose counter of steps is `batch`."""
    batch = counter("batch", tf.int32)
    rate = v1.train.exponential_decay(0.1, batch * literal(x), 60, 0.5, staircase=True)
    passed = tf.cast(batch, tf.float32) * literal(x) / 300.0
    loss = tf.reduce_mean(tf.square(out - y))
    return v1.train.GradientDescentOptimizer(rate / (1.0 + passed)).minimize(loss, batch)


def counted_in_other_runs(x: Any, y: Any, out: Any) -> Any:
    return [train(out, y), tf.group(counter("seen", tf.int64).assign_add(tf.shape(out, tf.int64)[0]))]


def evaluated_in_other_runs(x: Any, y: Any, out: Any) -> Any:
    """A number alone says nothing of a batch that its runs do not read."""
    return [train(out, y), tf.group(counter("evaluated").assign_add(14.0))]


def accuracy(x: Any, y: Any, out: Any) -> Any:
    are_right = tf.equal(tf.argmax(out, 1), tf.argmax(y, 1))
    right = counter("right").assign_add(tf.reduce_sum(tf.cast(are_right, F)))
    return tf.group(train(out, y), right, counter("total", tf.int32).assign_add(tf.size(are_right)))


def running_mean(x: Any, y: Any, out: Any) -> Any:
    mean, seen = v1.get_variable("mean", [3], F, trainable=False), counter("seen")
    total = seen + measure(x)
    change = (tf.reduce_mean(out, 0) - mean) * measure(x) / total
    return tf.group(train(out, y), mean.assign_add(change), seen.assign(total))


def epochs(x: Any, y: Any, out: Any) -> Any:
    step = v1.train.get_or_create_global_step()
    passed = tf.cast(step * tf.shape(x, out_type=tf.int64)[0] // 100, F)
    loss = tf.reduce_mean(tf.square(out - y))
    return v1.train.GradientDescentOptimizer(0.1 * 0.5**passed).minimize(loss, global_step=step)


def counted_at_times(x: Any, y: Any, out: Any) -> Any:
    step, seen = v1.train.get_or_create_global_step(), counter("seen")
    loss = tf.reduce_mean(tf.square(out - y))
    update = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    none, some = (lambda: seen.assign_add(0.0)), (lambda: seen.assign_add(measure(x)))
    return tf.group(update, tf.cond(tf.equal(step % 2, 0), some, none))


def ring(x: Any, y: Any, out: Any) -> Any:
    """A queue of features with the position of its oldest."""
    features, position = queue("features"), counter("position", tf.int32)
    update = train(out + 0.1 * tf.tanh(out @ tf.transpose(features)) @ features, y)
    with tf.control_dependencies([update]):
        begin = position.read_value()
    written = v1.scatter_update(features, tf.range(begin, begin + literal(x)) % 60, out)
    with tf.control_dependencies([written]):
        return tf.group(position.assign((position + literal(x)) % 60))


def newest(x: Any, y: Any, out: Any) -> Any:
    features = queue("features")
    update = train(out + 0.1 * tf.tanh(out @ tf.transpose(features)) @ features, y)
    with tf.control_dependencies([update]):
        return tf.group(features.assign(tf.concat([out, features], 0)[:60]))


def squared_errors(x: Any, y: Any, out: Any) -> Any:
    return tf.group(train(out, y), v1.metrics.root_mean_squared_error(y, out)[1])


def averages_of_losses(x: Any, y: Any, out: Any) -> Any:
    """The moving averages of losses that gradients wait for, as in TensorFlow's tutorial on CIFAR-10."""
    loss = tf.reduce_mean(tf.square(out - y))
    average = v1.get_variable("average", [], F, trainable=False)
    with tf.control_dependencies([average.assign(0.9 * average + 0.1 * loss)]):
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        gradients = optimizer.compute_gradients(loss)
    return optimizer.apply_gradients(gradients)


def average_before_the_loss(x: Any, y: Any, out: Any) -> Any:
    """An update for which the loss waits and its gradient does not: the train op alone does not run it."""
    error, average = out - y, counter("average")
    with tf.control_dependencies([average.assign_add(tf.reduce_mean(error))]):
        loss = tf.reduce_mean(tf.square(error))
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def steps_before_lengths(x: Any, y: Any, out: Any) -> Any:
    steps, seen = counter("steps"), counter("seen")
    with tf.control_dependencies([steps.assign_add(1.0)]):
        count = seen.assign_add(measure(x))
    return tf.group(train(out, y), count)


def oldest_first(x: Any, y: Any, out: Any) -> Any:
    """A memory whose entries all age before the oldest ones are written, as many as there are examples."""
    memory = queue("memory")
    age = v1.get_variable("age", [60], F, trainable=False, initializer=v1.constant_initializer(list(range(60, 0, -1))))
    _, oldest = tf.math.top_k(age, tf.shape(x)[0])
    with tf.control_dependencies([age.assign_add(tf.ones([60], F))]):
        young = v1.scatter_update(age, oldest, tf.zeros([tf.shape(x)[0]], F))
    return tf.group(train(out, y), young, v1.scatter_update(memory, oldest, out))


def one_after_another(x: Any, y: Any, out: Any) -> Any:
    """Two players, the second of which is differentiated after the first has moved."""
    other = tf.tanh(x @ v1.get_variable("v", [6, 3], F))
    w, v = v1.trainable_variables()
    rule = v1.train.GradientDescentOptimizer(0.1)
    first = rule.minimize(tf.reduce_mean(tf.square(out - y)), var_list=[w])
    with tf.control_dependencies([first]):
        loss = tf.reduce_mean(tf.square(other - tf.tanh(x @ w.read_value())))
        return rule.minimize(loss, var_list=[v])


def statistics_of_gradients(x: Any, y: Any, out: Any) -> Any:
    """The second moment of an output's gradients, as in K-FAC."""
    (gradient,) = tf.gradients(tf.reduce_mean(tf.reduce_sum(tf.square(out - y), 1)), [out])
    moment = v1.get_variable("moment", [3, 3], F, trainable=False)
    with tf.control_dependencies([moment.assign(tf.matmul(gradient, gradient, transpose_a=True) / measure(gradient))]):
        return train(out, y)


CASES = [
    *(
        averages_of_losses,
        average_before_the_loss,
        oldest_first,
        steps_before_lengths,
        one_after_another,
        statistics_of_gradients,
    ),
    *(divided, divided_by_entries, rate, examples_seen, examples_counted, examples_left),
    *(tokens_seen, clipped_weights, counted_in_other_runs, accuracy, squared_errors),
    evaluated_in_other_runs,
    *(running_mean, epochs, ring, newest, counted_at_times),
]


def build_with(update: Any) -> Any:
    def build(rows: int | None) -> Any:
        v1.get_variable_scope().set_use_resource(True)
        x, y = v1.placeholder(F, [rows, 6], name="x"), v1.placeholder(F, [rows, 3], name="y")
        return update(x, y, tf.tanh(x @ v1.get_variable("w", [6, 3], F)))

    return build


@pytest.mark.parametrize("update", CASES)
def test_lengths_that_updates_read_are_those_of_the_global_batch(update: Any) -> None:
    outcome = tried(build_with(update), FEEDS, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


def counts_in_a_branch(x: Any, y: Any, out: Any) -> Any:
    steps, seen = counter("steps"), counter("seen")

    def count() -> Any:
        with tf.control_dependencies([steps.assign_add(1.0)]):
            return seen.assign_add(measure(x))

    return tf.group(train(out, y), tf.cond(seen < 100.0, count, lambda: tf.identity(seen)))


def counts_in_a_loop(x: Any, y: Any, out: Any) -> Any:
    steps, seen = counter("steps"), counter("seen")

    def turn(number: Any) -> Any:
        with tf.control_dependencies([steps.assign_add(1.0)]), tf.control_dependencies([seen.assign_add(measure(x))]):
            return number + 1

    return tf.group(train(out, y), tf.while_loop(lambda number: number < 3, turn, [0]))


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("update", [steps_before_lengths, counts_in_a_branch, counts_in_a_loop])
def test_lengths_of_an_open_batch_are_counted_in_the_order_of_the_script(update: Any, control_flow_v2: bool) -> None:
    outcome = tried(build_with(update), FEEDS, dtype="float64", rows=14, control_flow_v2=control_flow_v2)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


@pytest.mark.parametrize("of_variable", [True, False])
def test_a_length_of_what_updates_compute_of_gradients_is_known_or_noted(of_variable: bool) -> None:
    """The variable has as many rows as the batch."""

    def update(x: Any, y: Any, out: Any) -> Any:
        loss, average = tf.reduce_mean(tf.square(out - y)), v1.get_variable("average", [3], F, trainable=False)
        squares = tf.square(tf.gradients(loss, v1.trainable_variables() if of_variable else out)[0])
        return tf.group(train(out, y), average.assign(tf.reduce_sum(squares, 0) / measure(squares)))

    outcome = tried(build_with(update), FEEDS, is_open=False, dtype="float64", rows=6)
    assert outcome.kind == ("equal" if of_variable else "told") and bool(outcome.notes) != of_variable, outcome


def contrast(x: Any, y: Any, out: Any) -> Any:
    """SimCLR's loss: labels are numbers of examples among two views of each, and masks remove an example's own."""
    one, other = tf.math.l2_normalize(out, 1), tf.math.l2_normalize(tf.tanh(out + x[:, :3]), 1)
    count = literal(x)
    labels, own = (tf.one_hot(tf.range(count), times * count, dtype=F) for times in (2, 1))
    logits = [tf.matmul(one, other, transpose_b=True), tf.matmul(one, one, transpose_b=True) - 1e9 * own]
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=tf.concat(logits, 1))
    return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(losses))


def views(x: Any, y: Any, out: Any) -> Any:
    """Three views of the batch in one tensor, which slices separate by multiples of its length."""
    joined, count = tf.concat([out, tf.tanh(out), out * out], 0), literal(x)
    first, second, third = joined[:count], joined[count : 2 * count], joined[-count:]
    return train(first + tf.stop_gradient(second) * third, y)


def sorted_and_flattened(x: Any, y: Any, out: Any) -> Any:
    """Rows without a known rank: a loop of the old kind gives them, and a sort and its inverse gather them."""
    _, rows = tf.while_loop(lambda t, _: t < 2, lambda t, rows: (t + 1, tf.tanh(rows + out)), [tf.constant(0), out])
    order = tf.argsort(y[:, 0])
    rows = tf.gather(tf.gather(rows, order), tf.math.invert_permutation(order))
    return train(tf.reshape(tf.reshape(rows, [-1]) - tf.reduce_mean(rows), [literal(x), 3]), y)


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("update", [contrast, views, sorted_and_flattened])
def test_a_length_that_the_script_writes_is_that_of_the_global_batch(update: Any, control_flow_v2: bool) -> None:
    settings: dict[str, Any] = {"dtype": "float64", "rows": 14, "control_flow_v2": control_flow_v2}
    outcome = tried(build_with(update), FEEDS, is_open=False, **settings)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


def test_a_counter_is_run_alone_without_a_batch() -> None:
    """Each worker adds as many examples as its batches have."""
    graph = tf.Graph()
    with graph.as_default():
        _, count = build_with(counted_in_other_runs)(6)
    analysed = analyse(graph)
    rewrites = rewrites_of(analysed, plan_for(analysed, one_host(2), Config()))
    captured = analysed.captured
    names = Names(captured.view, transform(captured.view, rewrites, Worker(0, 2, 7)), fixed=captured.fixed)
    found = names.resolve((count.name,), ())
    assert [len(value) for value in found.empty.values()] == [6]


def test_a_constant_measured_of_a_tensor_that_nothing_reads_is_opened_with_it() -> None:
    """`zeros_like` needs the shape of the tiled rows alone, whose own op is dead code."""

    def look_up(x: Any, y: Any, out: Any) -> Any:
        tiled = tf.tile(tf.range(3)[None], [literal(x), 1])
        ids = tf.zeros_like(tiled) + tf.range(3)
        return train(out + tf.reduce_sum(tf.gather(v1.get_variable("table", [11, 3], F), ids), 1), y)

    outcome = tried(build_with(look_up), FEEDS, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


@pytest.mark.parametrize("times", [2, 5])
def test_a_counter_of_several_entries_of_each_example_leaves_the_batch_fixed(times: int) -> None:
    """The number may be a multiple of the batch length, or be unrelated."""

    def add(x: Any, y: Any, out: Any) -> Any:
        number = literal(x) * times
        return tf.group(train(out, y), counter("tokens", tf.int32).assign_add(number))

    outcome = tried(build_with(add), FEEDS, is_open=False, dtype="float64", rows=14)
    assert outcome.kind == "told" and outcome.notes, outcome


def test_a_counter_of_the_examples_of_two_batches_counts_them() -> None:
    """As where running means are of generated and real examples."""

    def add(x: Any, y: Any, out: Any) -> Any:
        both = tf.concat([x, x], 0)
        return tf.group(train(out, y), counter("examples", tf.int32).assign_add(tf.shape(both)[0]))

    outcome = tried(build_with(add), FEEDS, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


def test_a_gradient_of_a_mean_times_the_batch_size_leaves_the_batch_fixed() -> None:
    def scale(x: Any, y: Any, out: Any) -> Any:
        weights = v1.trainable_variables()
        gradients = tf.gradients(tf.reduce_mean(tf.square(out - y)), weights)
        scaled = [(g * tf.cast(literal(x), F), w) for g, w in zip(gradients, weights, strict=True)]
        return v1.train.GradientDescentOptimizer(0.01).apply_gradients(scaled)

    outcome = tried(build_with(scale), FEEDS, is_open=False, dtype="float64", rows=14)
    assert outcome.kind == "told" and outcome.notes, outcome


def test_gradients_of_examples_times_the_batch_size_leave_the_batch_fixed() -> None:
    """K-FAC's covariances of what activations receive."""

    def scale(x: Any, y: Any, out: Any) -> Any:
        (of_outputs,) = tf.gradients(tf.reduce_mean(tf.square(out - y)), [out])
        of_examples = of_outputs * tf.cast(literal(x), F)
        seen = v1.get_variable("seen", [3, 3], F, initializer=v1.zeros_initializer(), trainable=False)
        return tf.group(train(out, y), seen.assign_add(tf.matmul(of_examples, of_examples, transpose_a=True)))

    outcome = tried(build_with(scale), FEEDS, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, len(outcome.notes)) == ("equal", 1), outcome  # `seen` is local then


def test_a_counter_in_a_conditional_of_the_old_kind_counts_the_global_batch() -> None:
    outcome = tried(build_with(counted_at_times), FEEDS, is_open=False, dtype="float64", rows=14, control_flow_v2=False)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


def test_an_average_of_what_a_loop_computes_is_counted_outside_of_the_loop() -> None:
    """The count's size and its cast are both replaced; the cast waits for what the constant waited for alone."""

    def add(x: Any, y: Any, out: Any) -> Any:
        steps = tf.transpose(tf.reshape(x, [-1, 2, 3]), [1, 0, 2])
        errors = tf.square(out + tf.scan(lambda state, step: tf.tanh(state + step), steps)[-1] - y)
        update = v1.train.GradientDescentOptimizer(0.05).minimize(tf.reduce_mean(errors))
        return tf.group(update, v1.metrics.mean(errors[:, 0])[1])

    outcome = tried(build_with(add), FEEDS, is_open=False, dtype="float64", rows=14, control_flow_v2=False)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


def test_a_queue_cut_by_the_batch_size_is_refused() -> None:
    """All workers' features are as many as the queue has only where one worker's are cut off."""

    def cut(x: Any, y: Any, out: Any) -> Any:
        features = queue("features")
        update = train(out + 0.1 * tf.tanh(out @ tf.transpose(features)) @ features, y)
        with tf.control_dependencies([update]):
            return tf.group(features.assign(tf.concat([features[literal(x) :], out], 0)))

    outcome = tried(build_with(cut), FEEDS, is_open=False, dtype="float64", rows=14)
    assert outcome.kind == "refused" and "Leave the first dimension of the batch open" in outcome.message, outcome
    assert tried(build_with(cut), FEEDS, is_open=True, dtype="float64", rows=14).kind == "equal"


def test_a_variable_for_one_batch_leaves_the_batch_fixed() -> None:
    def store(x: Any, y: Any, out: Any) -> Any:
        last = v1.get_variable("last", [x.shape[0], 3], F, trainable=False)
        update = train(out + 0.1 * last, y)
        with tf.control_dependencies([update]):
            return tf.group(last.assign(out))

    outcome = tried(build_with(store), FEEDS, is_open=False, dtype="float64", rows=14)
    assert outcome.kind != "foreign" and outcome.notes, outcome
