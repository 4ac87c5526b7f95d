"""Trains with overlap on or off: dropout, a schedule, clipping, a table, a fetch in between, a dataset that ends.

`overlapping.py on|off [FOLDER]`: with a folder, it has a hook and writes checkpoints there.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

STEPS, ROWS = 30, 6


def build():
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int64, [ROWS], name="ids")
        data = tf.data.Dataset.from_tensor_slices(np.arange(ROWS * 2 * STEPS, dtype=np.float32)).batch(ROWS)
        wanted = tf.data.make_one_shot_iterator(data.repeat()).get_next()[:, None]
        rows = tf.nn.embedding_lookup(tf.get_variable("emb", [40, 8]), ids)
        for number in range(3):
            rows = tf.nn.dropout(tf.tanh(rows @ tf.get_variable(f"w{number}", [8, 8])), rate=0.3)
        loss = tf.reduce_mean(tf.square(rows @ tf.get_variable("out", [8, 1]) - tf.sin(wanted)), name="loss")
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdamOptimizer(tf.train.exponential_decay(0.05, step, 5, 0.9))
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
        tf.identity(norm, name="norm")
        optimizer.apply_gradients(zip(clipped, variables, strict=True), step, name="train")
    return graph


class Norms(tf.train.SessionRunHook):
    """Fetches the gradients' norm in every fourth run."""

    def begin(self):
        self.run = 0

    def before_run(self, run_context):
        self.run += 1
        return tf.train.SessionRunArgs("norm:0") if self.run % 4 == 0 else None

    def after_run(self, run_context, run_values):
        if run_values.results is not None:
            print("norm", self.run, float(run_values.results).hex())


def main():
    hooks = {}
    if len(sys.argv) > 2:
        hooks = {"hooks": [Norms()], "ckpt_config": parallax.CheckPointConfig(sys.argv[2], save_ckpt_steps=7)}
    config = parallax.Config(seed=3, overlap=sys.argv[1] == "on", **hooks)
    session, workers, rank, _ = parallax.parallel_run(build(), parallax_config=config)
    draw = np.random.RandomState(5)
    ids = np.zeros(ROWS, np.int64)
    with session:
        for number in range(STEPS):
            ids[:] = draw.randint(0, 40, [workers, ROWS])[rank]  # the same array in every step
            fetches = ["loss:0", "train", "norm:0"] if number % 7 == 3 else ["loss:0", "train"]
            found = session.run(fetches, {"ids:0": [ids]})
            print("step", number, *[float(value[0]).hex() for value in (found[0], *found[2:])])
            if number % 10 == 5:
                print("after", *session.run(["global_step:0", "w1:0"])[1][0].ravel()[:4].tolist())
        overlapping = session._direct and session._direct._overlapping
        assert (overlapping is not None and overlapping._last > STEPS // 2) == (sys.argv[1] == "on")
        (table,), (counted,) = session.run(["emb:0", "global_step:0"])
    print("end", counted, table.tobytes().hex())


main()
