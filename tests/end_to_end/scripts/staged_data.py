"""Trains in stages on a dataset until it ends, with a check that may fail: staged_data.py STAGES BATCHES BAD."""

import sys

import numpy as np
import tensorflow.compat.v1 as tf
from staged import CLASSES, WIDTH, dense, exact

import parallax


def build(batches, bad):
    graph = tf.Graph()
    draw = np.random.default_rng(1)
    values = draw.standard_normal([8 * batches, WIDTH]).astype(np.float32)
    if bad >= 0:
        values[8 * bad + 3, 5] = np.nan
    labels = draw.integers(0, CLASSES, 8 * batches).astype(np.int32)
    with graph.as_default(), tf.variable_scope("", use_resource=True):
        tf.set_random_seed(7)
        data = tf.data.Dataset.from_tensor_slices((values, labels)).batch(8)
        made, wanted = tf.data.make_one_shot_iterator(data).get_next()
        for number in range(4):
            made = made + dense(made, WIDTH, f"layer{number}")
        if bad >= 0:
            made = tf.debugging.check_numerics(made, "not finite")
        logits = dense(made, CLASSES, "logits", is_last=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=wanted, logits=logits), name="loss")
        tf.train.AdagradOptimizer(0.05).minimize(loss, tf.train.get_or_create_global_step(), name="train")
    return graph


def main():
    stages, batches, bad = map(int, sys.argv[1:])
    config = parallax.Config(seed=3, sess_config=exact(), stages=stages or None, stall_timeout_s=30)
    session, _, _, _ = parallax.parallel_run(build(batches, bad), parallax_config=config)
    losses = []
    with session:
        while True:
            try:
                losses.append(session.run(["loss:0", "train"])[0][0])
            except tf.errors.OutOfRangeError:
                print("the data has ended")
                break
            except tf.errors.InvalidArgumentError as error:
                print("not finite" if "not finite" in str(error) else error)
                break
        ((found,),) = session.run(["logits/kernel:0"])
    print("losses", *(float(one).hex() for one in losses))
    print("kernel", found.tobytes().hex()[:64])


main()
