"""Steps of two functions and two models in turn, and what is around them: python steps_in_turn.py KIND [FOLDER].

KIND is "plain" for TensorFlow alone, "job"; "killed" has a worker killed between two steps, which the script catches,
"killed last" after the last one; "restarts" is for workers that are replaced.
"""

import json
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import parallax
import parallax.keras
from tests.keras.scripts.worker_processes import find_worker

KIND = sys.argv[1]
wrap = tf.function if KIND == "plain" else parallax.function
if KIND != "plain":
    parallax.keras.use()

print("BEFORE", flush=True)
keras.utils.set_random_seed(7)
layers = keras.layers
table, head = layers.Embedding(30, 4, name="emb"), layers.Dense(1, name="head")
ids = keras.Input([3], dtype="int64")
net = keras.Model(ids, head(layers.Flatten()(table(ids))))
other = keras.Sequential([keras.Input([2]), layers.Dense(1)])
net.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=["mae"])
other.compile(keras.optimizers.SGD(0.1), "mse")
rule, metric = keras.optimizers.Adam(0.01), keras.metrics.Mean()


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    @wrap
    def step(self, x, y, power=2.0):
        with tf.GradientTape() as tape:
            loss = self.factor * tf.reduce_mean(tf.abs(net(x) - y) ** power)
        rule.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True))
        metric.update_state(loss)
        return loss


@wrap
def shrink(x):
    rows = tf.reduce_sum(net(x))
    table.embeddings.assign(0.9 * table.embeddings)
    return {"rows": rows, "none": None}


@wrap
def look(x):
    return tf.reduce_sum(net(x), 0), tf.shape(x)[0]


if hasattr(shrink, "graph_of"):
    shrink = parallax.function(shrink.python_function, returns={"rows": "sum", "none": None})


def found():
    values = [net.get_weights(), other.get_weights(), [v.numpy() for v in rule.variables]]
    return {"losses": losses, "metric": float(metric.result()), "values": [[v.tolist() for v in of] for of in values]}


random, losses, scaled = np.random.default_rng(1), [], [Scaled(1.0), Scaled(0.5)]
try:
    losses += [np.asarray(one).tolist() for one in look(np.arange(15).reshape(5, 3))]  # before anything is trained
    for number in range(2 if KIND == "killed last" else 8):
        x, y = random.integers(0, 30, [5, 3]), random.normal(size=[5, 1]).astype("float32")
        losses.append(float(scaled[number % 2].step(x, y)))
        if number == 3:
            losses.append(float(scaled[0].step(x, y, power=3.0)))
            losses.append(float(shrink(x)["rows"]))
            losses += net.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0).history["loss"]
        if (
            number == 6
        ):  # the fit takes the workers and fails; the next step goes on with the session that they have open
            try:
                net.fit(np.zeros([4, 7]), y[:4], verbose=0)
            except ValueError:
                print("REFUSED", flush=True)
        if number == 4 and KIND in ("killed", "restarts"):
            os.kill(find_worker(1), signal.SIGKILL)
        if number % 3 == 2:
            losses.append([float(one) for one in net.train_on_batch(x, y)])
            losses.append(float(other.train_on_batch(y * [[1.0, 2.0]], y)))
            losses.append([float(one) for one in net.test_on_batch(x, y)])
        if number == 5:
            metric.reset_state()
            net.compile(keras.optimizers.SGD(0.05), "mae", metrics=["mse"])
except parallax.keras.JobFailed as failed:
    print(f"FAILED {failed.status} after {len(losses)}, and {len(found()['values'][0])} weights are left", flush=True)
else:
    print("FOUND " + json.dumps(found()), flush=True)
    if KIND == "killed last":
        shrink(x)
        os.kill(find_worker(1), signal.SIGKILL)
    sys.exit(0)  # as sys.exit(main()) does
