"""A loop with session hooks: those of TensorFlow and one of the user's, all on names of the user's graph.

Arguments: `reference` or `resource` (the kind of variables, and TensorFlow 2's behavior) and a folder to write to.
"""

import logging
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from checks import run_checks

import parallax

kind, folder = sys.argv[1], Path(sys.argv[2]) / os.environ.get("OMPI_COMM_WORLD_RANK", "launcher")
if kind == "reference":
    tf.disable_v2_behavior()

STEPS = 6

graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    numbers = tf.data.make_initializable_iterator(tf.data.Dataset.range(100).batch(2))
    ids = tf.cast(numbers.get_next(), tf.int32) % 11
    rate = tf.placeholder_with_default(0.1, [], name="rate")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [11, 4])
    weights = tf.get_variable("weights", [4, 1])
    rows = tf.nn.embedding_lookup(emb, ids)
    loss = tf.reduce_mean(tf.square(rows @ weights - 1.0), name="loss")
    train = tf.train.AdagradOptimizer(rate).minimize(loss, global_step=step)
    summary = tf.summary.scalar("shown", loss)
    saver = tf.train.Saver()


class Mine(tf.train.SessionRunHook):
    """What a user may write: ops of its own, fetches and feeds in each run, runs of its own around them."""

    def begin(self):
        self.doubled = 2 * tf.train.get_global_step()
        self.seen, self.own, self.calls = [], [], []

    def after_create_session(self, session, coord):
        self.calls.append("created")
        session.run(numbers.initializer)
        self.first = session.run(emb)

    def before_run(self, run_context):
        self.asked = run_context.original_args.fetches
        return tf.train.SessionRunArgs({"loss": loss, "emb": emb, "doubled": self.doubled}, {rate: 0.2})

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)
        self.own.append(run_context.session.run(step))

    def end(self, session):
        self.calls.append("ended")
        self.last = session.run([emb, self.doubled])


class Only(tf.train.SessionRunHook):
    """A hook that does nothing in a run."""


mine = Mine()
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("tensorflow").addHandler(handler)
tf.logging.set_verbosity(tf.logging.INFO)
final = tf.train.FinalOpsHook({"emb": emb})
hooks = [
    tf.train.StopAtStepHook(last_step=STEPS),
    tf.train.NanTensorHook(loss),
    tf.train.LoggingTensorHook({"loss": loss, "weights": weights}, every_n_iter=2),
    tf.train.StepCounterHook(every_n_steps=2, output_dir=str(folder / "counted")),
    tf.train.SummarySaverHook(save_steps=2, output_dir=str(folder / "summaries"), summary_op=summary),
    tf.train.CheckpointSaverHook(str(folder / "checkpoints"), save_steps=3, saver=saver),
    tf.train.FeedFnHook(lambda: {}),
    mine,
    final,
    Only(),
]
sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=parallax.Config(seed=11, hooks=hooks))

runs = []
with sess:
    while not sess.should_stop():
        runs.append(sess.run([train, loss, step]))


def the_loop_ended_at_the_last_step():
    assert len(runs) == STEPS, len(runs)
    assert sess.should_stop()


def a_hook_gets_what_it_fetches():
    assert [seen["loss"] for seen in mine.seen] == [run[1][0] for run in runs]
    assert all(seen["emb"].shape == (11, 4) for seen in mine.seen)
    assert mine.own == list(range(1, STEPS + 1))
    assert mine.asked == [train, loss, step]
    assert mine.calls == ["created", "ended"]
    assert mine.first.shape == (11, 4) and not np.array_equal(mine.first, mine.last[0])
    assert mine.last[1] == 2 * STEPS
    np.testing.assert_array_equal(final.final_ops_values["emb"], mine.last[0])


def log_lines_hold_the_users_values():
    text = "\n".join(lines)
    assert f"loss = {runs[0][1][0]!s}," in text, text
    assert "global_step/sec" in text, text


def summaries_and_checkpoints_are_written():
    events = [e for f in sorted((folder / "summaries").iterdir()) for e in tf.train.summary_iterator(str(f))]
    found = {e.step: v.simple_value for e in events for v in e.summary.value if v.tag == "shown"}
    assert found[min(found)] == runs[0][1][0], (found, runs[0])
    path = tf.train.latest_checkpoint(str(folder / "checkpoints"))
    assert path.endswith(f"-{STEPS}"), path
    with tf.Session(graph=graph) as single:
        saver.restore(single, path)
        np.testing.assert_array_equal(single.run(emb), mine.last[0])


run_checks(
    [
        the_loop_ended_at_the_last_step,
        a_hook_gets_what_it_fetches,
        log_lines_hold_the_users_values,
        summaries_and_checkpoints_are_written,
    ]
)
