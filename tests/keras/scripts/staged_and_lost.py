"""A fit in two stages, a worker of which gets a signal within a step's micro-batches: FOLDER RANK RESTARTS SIGNAL."""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow.compat.v1 as tf

import parallax
import parallax.keras

MICRO_BATCHES = 4
layers = keras.layers


class LosesItsWorker(tf.train.SessionRunHook):
    """Kills or stops a worker once, as it begins a step's third micro-batch, and has sent the first."""

    def __init__(self, folder, rank, name):
        self.lost, self.rank, self.name, self.runs = str(folder / "lost"), rank, name, 0

    def before_run(self, run_context):
        self.runs += 1
        if self.runs == MICRO_BATCHES + 3 and os.environ["OMPI_COMM_WORLD_RANK"] == self.rank:
            if not Path(self.lost).exists():
                Path(self.lost).touch()
                os.kill(os.getpid(), signal.Signals[self.name])


def main():
    folder, rank, restarts = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    keras.utils.set_random_seed(3)
    draw = np.random.RandomState(0)
    x, y = draw.rand(24, 5).astype("f"), draw.rand(24, 1).astype("f")
    inputs = values = keras.Input((5,))
    for number in range(4):
        values = layers.Dense(6, "tanh", name=f"layer{number}")(values)
    model = keras.Model(inputs, layers.Dense(1)(values))
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse")
    if rank != "plain":
        hooks, restart = [LosesItsWorker(folder, rank, sys.argv[4])], parallax.RestartConfig(max_restarts=restarts)
        cut = dict(stages=["layer1"], micro_batches=MICRO_BATCHES)
        parallax.keras.use(parallax_config=parallax.Config(seed=1, hooks=hooks, restart=restart, **cut))
    model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    print("FOUND", *np.concatenate([np.ravel(one) for one in model.get_weights()]).tolist())


if __name__ == "__main__":
    main()
