"""A loop whose updates take three batches: what each run gives and writes, against one process on the global batches.

Arguments: a run option, and a folder to write to.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from checks import refused, run_checks

import parallax

option, folder = sys.argv[1], Path(sys.argv[2])
BATCHES, UPDATES, ROWS = 3, 4, 5

graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int32, [None], name="ids")
    wanted = tf.placeholder(tf.float32, [None], name="wanted")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [40, 4])
    weights = tf.get_variable("weights", [4])
    seen = tf.get_variable("seen", [], initializer=tf.zeros_initializer(), trainable=False)
    updates = tf.get_variable("updates", [], tf.int32, initializer=tf.zeros_initializer(), trainable=False)
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ weights[:, None] - wanted[:, None]))
    optimizer = tf.train.AdamOptimizer(0.05)
    found = optimizer.compute_gradients(loss)
    clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in found], 0.3)
    pairs = [(gradient, variable) for gradient, (_, variable) in zip(clipped, found, strict=True)]
    apply = optimizer.apply_gradients(pairs, global_step=step)
    count_rows = tf.assign_add(seen, tf.reduce_sum(wanted))
    train = tf.group(apply, count_rows, tf.assign_add(updates, 1))
    after = tf.identity(loss, "not_after")
    with tf.control_dependencies([train]):
        waited = tf.identity(loss, "waited")
    other = tf.get_variable("other", [4])
    train_other = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(other * wanted[0]))
    both = tf.group(train_other, train)


class Watching(tf.train.SessionRunHook):
    """Asks for what comes exist only in a run that makes an update, and for what does not."""

    def begin(self):
        self.seen = []

    def before_run(self, run_context):
        trains = isinstance(run_context.original_args.fetches, list) and train in run_context.original_args.fetches
        return tf.train.SessionRunArgs([norm, loss, step]) if trains else None

    def after_run(self, run_context, run_values):
        if run_values.results is not None:
            self.seen.append(run_values.results)


watching = Watching()
config = parallax.Config(run_option=option, accumulate_steps=BATCHES, hooks=[watching], seed=3)
config.ckpt_config = parallax.CheckPointConfig(ckpt_dir=str(folder / "saved"), save_ckpt_steps=1, save_ckpt_secs=0.001)
session, num_workers, rank, _ = parallax.parallel_run(graph, parallax_config=config)
draws = np.random.RandomState(0)
numbers = draws.randint(0, 40, [UPDATES, BATCHES, num_workers, ROWS]).astype(np.int32)
targets = draws.randn(UPDATES, BATCHES, num_workers, ROWS).astype(np.float32)
state = [v for v in graph.get_collection("variables") if v.dtype.base_dtype == tf.float32 and v is not seen]


def fed(update, batch):
    return {ids: [numbers[update, batch, rank]], wanted: [targets[update, batch, rank]]}


def check_runs():
    """What every run gives; trained state and counters change with the update, what a batch gives with every batch."""
    before.extend(session.run(v)[0] for v in state)
    del watching.seen[:]
    for update in range(UPDATES):
        for batch in range(BATCHES):
            wants = [train, loss, norm, waited, after]
            (ran,), (cost,), (size,), (late,), (early,) = session.run(wants, fed(update, batch))
            last = batch == BATCHES - 1
            assert ran is None and cost == early == late, (cost, early, late)
            assert (size is not None) == last, (update, batch, size)
            hooked = watching.seen[-1]
            assert hooked[0] == size and hooked[1] == cost, (hooked, size, cost)
            assert session.run([step, updates]) == [[update + last], [update + last]], (update, batch)
            total = float(targets[: update + 1].sum() - targets[update, batch + 1 :].sum())
            np.testing.assert_allclose(session.run(seen)[0], total, rtol=1e-4, atol=1e-4)


def check_values():
    """As one process trains on the batches of all workers and of all runs until an update."""
    with tf.Session(graph=graph) as one:
        for variable, value in zip(state, before, strict=True):
            variable.load(value, one)
        one.run([step.initializer, updates.initializer, seen.initializer])
        for update in range(UPDATES):
            one.run(train, {ids: numbers[update].reshape(-1), wanted: targets[update].reshape(-1)})
        expected = one.run(state)
    for variable, value in zip(state, expected, strict=True):
        found = session.run(variable)[0]
        np.testing.assert_allclose(found, value, rtol=2e-5, atol=2e-6, err_msg=variable.name)


def check_refusals():
    """What cannot be: something of gradients alone; a train_op in the midst of another's batches."""
    refused(parallax.SessionError, "exist only in a run that makes an update", lambda: session.run(norm, fed(0, 0)))
    session.run(train_other, fed(0, 0))
    refused(
        parallax.SessionError, "are accumulated and only 0 of others in this run", lambda: session.run(both, fed(0, 0))
    )


def check_bytes():
    """Counted as predicted, and touched rows are those of a batch."""
    report = session.exchange_report()
    rows = dict(report.touched_rows)["emb"]
    each = np.mean([len(set(numbers[u, b, w])) for u in range(UPDATES) for b in range(BATCHES) for w in range(2)])
    assert abs(rows - each) < 0.01, (rows, each)
    assert report.steps == UPDATES, report.steps
    if option == "HYBRID":
        assert report.counted_bytes and abs(report.counted_bytes / report.predicted_bytes - 1) < 0.35, report
        union = sum(len(set(numbers[u, :, w].ravel())) for u in range(UPDATES) for w in range(2))
        pulled = sum(len(set(numbers[u, b, w])) for u in range(UPDATES) for b in range(BATCHES) for w in range(2))
        assert report.predicted_bytes == (pulled + union) * (4 + 4 * 4) // 2, (report, pulled, union)
    else:
        assert report.server_bytes, report


def check_end():
    """Checkpoints are of updates."""
    if rank == 0:
        names = [path.name for path in (folder / "saved").glob("*.index")]
        assert names and {name.rpartition("-")[2].split(".")[0] for name in names} <= set("01234"), names


before = []
with session:
    assert session.accumulate_steps == BATCHES
    checks = [check_runs, check_bytes, check_values, check_refusals]
    run_checks([*checks, session.close, check_end])
