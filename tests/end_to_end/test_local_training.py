"""Scripts that train without Parallax under its commands: noticed at the first step, ended where nothing may start."""

import pytest
import tensorflow.compat.v1 as tf

from parallax.runtime.worker.local_training import trains

pytestmark = pytest.mark.timeout(240)
CLI = ("-m", "parallax.entry.cli")

SESSION = """
import sys
import tensorflow.compat.v1 as tf
graph = tf.Graph()
with graph.as_default():
    w = tf.get_variable("w", [3, 1])
    loss = tf.reduce_mean(tf.square(w - 1.0))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    start = tf.global_variables_initializer()
make = tf.train.SingularMonitoredSession if "monitored" in sys.argv else tf.Session
with graph.as_default(), make() as sess:
    if "monitored" not in sys.argv:
        sess.run(start)
    print("begun", sess.run(loss), flush=True)
    step = sess.make_callable(train) if "callable" in sys.argv else lambda: sess.run([train, loss])
    for _ in range(3):
        step()
    print("trained", flush=True)
"""

EAGER = """
import keras
import tensorflow as tf
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

for one in (step, tf.function(step)):
    one(tf.ones([4, 2]))
print("trained", flush=True)
"""

OWN = """
import tensorflow.compat.v1 as tf
import parallax
graph = tf.Graph()
with graph.as_default():
    w = tf.get_variable("w", [3, 1])
    loss = tf.reduce_mean(tf.square(w - tf.placeholder(tf.float32, [3, 1], name="x")))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(tf.gradients(loss, [w]), {"x:0": [[0.0]] * 3})
        print("looked", flush=True)
parallax.parallel_run(graph)
"""
IN_A_BRANCH = OWN.replace(
    "train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)",
    """optimizer = tf.train.GradientDescentOptimizer(0.1)
    gradients = optimizer.compute_gradients(loss)
    train = tf.cond(tf.reduce_sum(w) < 99.0, lambda: optimizer.apply_gradients(gradients), tf.no_op)""",
)


def words_of_parallax(done):
    """What was said beside TensorFlow's own lines."""
    return [line for line in done.stderr.splitlines() if line.startswith("parallax: ")]


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        (SESSION, (), 15),
        (SESSION, ("monitored",), 15),
        (SESSION, ("callable",), 15),
        (EAGER, (), 10),
        (EAGER.replace("for one in (step, ", "for one in ("), (), 13),
    ],
)
def test_a_plan_ends_a_script_at_its_first_own_step(start, write, text, words, line):
    text = text.replace("(tf.function(step)):", "(tf.function(step),):")
    script = write("alone.py", text)
    done = start(*CLI, "plan", "--workers", 2, script, *words).finish()
    assert done.status == 1 and "trained" not in done.stdout, done
    (said,) = words_of_parallax(done)
    assert said.startswith("parallax: ") and f"alone.py:{line}: " in said, done
    assert "in this process alone" in said and "parallax.parallel_run" in said, done


def test_a_run_says_at_the_first_step_that_nothing_is_distributed(start, write):
    done = start(*CLI, "run", "--workers", 2, write("alone.py", SESSION)).finish()
    assert done.status == 1 and "trained" in done.stdout, done
    first, last = words_of_parallax(done)
    assert "alone.py:15: a run of a session that updates variables" in first and "nothing is distributed" in first
    assert "ended without calling parallax.parallel_run" in last, done


@pytest.mark.parametrize("text", [OWN, IN_A_BRANCH])
def test_a_script_that_looks_at_its_graph_and_then_calls_parallel_run_is_planned(start, write, text):
    done = start(*CLI, "plan", "--workers", 2, write("own.py", text)).finish()
    assert (
        done.status == 0 and words_of_parallax(done) == [] and "looked" in done.stdout and "Plan for 2" in done.stdout
    ), done


@pytest.mark.parametrize("is_applied", [True, False])
def test_runs_that_train_are_told_from_those_that_look(is_applied):
    graph = tf.Graph()
    with graph.as_default():
        w = tf.get_variable("w", [3], use_resource=is_applied)
        loss = tf.reduce_sum(w * w)
        if is_applied:
            train = tf.train.AdamOptimizer().minimize(loss)
        else:
            train = w.assign_sub(0.1 * tf.gradients(loss, w)[0]).op
        init, count = tf.global_variables_initializer(), tf.get_variable("n", []).assign_add(1.0).op
        group = tf.group(train, count)
    assert trains(graph, [group]) and trains(graph, [train])
    assert not any(trains(graph, [op]) for op in (init, count, loss.op))
