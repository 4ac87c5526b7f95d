"""Trains a model in stages, or resumes it: staged_checkpoints.py STAGES FOLDER UPDATES."""

import sys

import numpy as np
import tensorflow.compat.v1 as tf
from staged import batch, build, exact

import parallax

MICRO_BATCHES = 2


def main():
    stages, folder, updates = sys.argv[1:]
    graph = build("mlp", "adagrad")
    with graph.as_default():
        names = [variable.op.name for variable in tf.global_variables()]
    config = parallax.Config(
        seed=3,
        sess_config=exact(),
        stages=int(stages) or None,
        micro_batches=MICRO_BATCHES,
        ckpt_config=parallax.CheckPointConfig(ckpt_dir=folder, save_ckpt_steps=5),
    )
    session, _, _, _ = parallax.parallel_run(graph, parallax_config=config)
    with session:
        ((step,),) = session.run(["global_step:0"])
        print("began at", step)
        for number in range(step * MICRO_BATCHES, int(updates) * MICRO_BATCHES):
            session.run("train", {name: [values] for name, values in batch(number, 1).items()})
        found = session.run([f"{name}:0" for name in names])
    print("ended with", *(np.asarray(one).tobytes().hex()[:64] for (one,) in found))


main()
