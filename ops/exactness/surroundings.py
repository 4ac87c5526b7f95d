"""Grammar productions for the surroundings of a step: input from queues and datasets, Saver, summaries, GANs."""

from __future__ import annotations

from ops.exactness.draft import Draft
from ops.exactness.inputs import Production


def fed_before(d: Draft) -> None:
    """Takes the batch from a queue or a dataset, which a separate op fills, as a queue runner's thread would."""
    shapes = f"i0.set_shape([rows])\ns0.set_shape([rows, {d.bags[0][2]}])\ny.set_shape([rows])"
    through = d.pick(
        (
            f"""
queue = v1.PaddingFIFOQueue(
    8, [tf.int64, tf.int64, F], [[rows], [rows, {d.bags[0][2]}], [rows]])
feeding = queue.enqueue([i0, s0, y])
i0, s0, y = queue.dequeue()
"""
            if d.chance(0.5)
            else """
queue = v1.FIFOQueue(8, [tf.int64, tf.int64, F])
feeding = queue.enqueue([i0, s0, y])
i0, s0, y = queue.dequeue()
""",
            """
batches = tf.data.Dataset.from_tensors((i0, s0, y)).repeat()
iterator = v1.data.make_initializable_iterator(batches)
feeding = iterator.initializer
i0, s0, y = iterator.get_next()
""",
            """
batches = tf.data.Dataset.from_tensors((i0, s0, y)).map(lambda i, s, t: (i, s, t * 2.0)).repeat().prefetch(1)
iterator = v1.data.make_initializable_iterator(batches)
feeding = iterator.initializer
i0, s0, y = iterator.get_next()
""",
        )
    )
    d.add(f"{through.strip()}\n{shapes}", is_kept=True, plain="feeding = tf.no_op()")
    d.feeding = "feeding"


def _saver(d: Draft) -> None:
    d.add(d.pick(("v1.train.Saver()", "v1.train.Saver(v1.trainable_variables(), sharded=True, max_to_keep=2)")))


def _summaries(d: Draft) -> None:
    d.add(
        f"""
        v1.summary.scalar("loss", loss)
        v1.summary.histogram("rows", {d.row()})
        v1.summary.scalar("norm", tf.linalg.global_norm([g for g, _ in pairs]))
        train = tf.group(train, v1.summary.merge_all())
        """
    )


def _hook(d: Draft) -> None:
    d.add(
        d.pick(
            (
                "train = tf.group(train, tf.debugging.check_numerics(loss, 'loss'))",
                "train = tf.group(train, tf.debugging.assert_all_finite(loss, 'loss'))",
                "train = tf.group(train, v1.Assert(loss < 1e30, [loss]))",
                "with v1.control_dependencies([train]):\n    train = tf.group(tf.identity(loss), step.read_value())",
                "seen = v1.metrics.mean(per_row)\ntrain = tf.group(train, seen[1])",
                "streamed = v1.metrics.accuracy(i0 % 2, i0 % 3)\ntrain = tf.group(train, streamed[1])",
            )
        )
    )


def _adversarial(d: Draft) -> None:
    if "z" in d.feeds:
        return
    h, w_fake, w_real = d.row(), d.weight(4, 4), d.weight(4, 1)
    d.feeds["z"] = "rng.randn(rows, 4)"
    penalty = d.pick(
        (
            "",
            "slope_f = tf.gradients(tf.reduce_sum(tf.tanh(fake @ {w})), fake)[0]\n"
            "real_loss += 0.3 * tf.reduce_mean(tf.square(tf.norm(slope_f + 0.01, axis=1) - 1.0))",
        )
    ).format(w=w_real)
    made = f"""
z = v1.placeholder(F, [rows, 4], name="z")
fake = tf.tanh(z @ {w_fake})
real_loss = tf.reduce_mean(tf.nn.softplus(-{h} @ {w_real}) + tf.nn.softplus(fake @ {w_real}))
fake_loss = tf.reduce_mean(tf.nn.softplus(-fake @ {w_real}))
{penalty}
real_train = v1.train.{d.optimizer("0.2")}.minimize(real_loss, var_list=[{w_real}])
fake_train = v1.train.{d.optimizer("0.2")}.minimize(fake_loss, var_list=[{w_fake}])
"""
    d.add(made, is_kept=True)
    d.turns += ["real_train", "fake_train"]


SURROUNDINGS: tuple[tuple[float, Production], ...] = ((1, _saver), (1, _summaries), (2, _hook), (1, _adversarial))
