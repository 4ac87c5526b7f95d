"""A fit with a hook that each worker runs; with the argument "lock" the hook has a lock."""

import sys
import threading

import keras
import numpy as np
import tensorflow as tf

import parallax
import parallax.keras


class Counts(tf.compat.v1.train.SessionRunHook):
    """Looks at the graph when it begins, counts runs, and says both at the end."""

    def __init__(self, lock=None):
        self.lock, self.runs = lock, 0

    def begin(self):
        variables = tf.compat.v1.get_default_graph().get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        self.parameters = sum(np.prod(one.shape) for one in variables)

    def before_run(self, run_context):
        if any("train" in str(one) for one in tf.nest.flatten(run_context.original_args.fetches)):
            self.runs += 1

    def end(self, session):
        print(f"HOOK of the script: {self.runs} runs, {self.parameters} parameters", flush=True)


hook = Counts(threading.Lock() if "lock" in sys.argv else None)
parallax.keras.use(None, parallax.Config(hooks=[hook]))
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones([15, 5]), np.ones([15, 1]), batch_size=4, epochs=2, verbose=0)
