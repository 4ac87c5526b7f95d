"""Trains a model in stages, or resumes it: staged_checkpoints.py MODEL OPTIMIZER STAGES FOLDER UPDATES BATCHES FILE."""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from staged import ROWS, batch, build, exact

import parallax

MICRO_BATCHES = 2


def main():
    model, optimizer, stages, folder, updates, batches, file = sys.argv[1:]
    graph, batches = build(model, optimizer), int(batches)
    with graph.as_default():
        names = [variable.op.name for variable in tf.global_variables()]
    config = parallax.Config(
        seed=3,
        sess_config=exact(),
        stages=int(stages) or None,
        micro_batches=MICRO_BATCHES,
        routes={"table": "alltoall"} if model == "spread" else {},
        ckpt_config=parallax.CheckPointConfig(ckpt_dir=folder, save_ckpt_steps=5),
    )
    session, workers, worker, _ = parallax.parallel_run(graph, parallax_config=config)
    rows = slice(worker * ROWS * batches, (worker + 1) * ROWS * batches)
    with session:
        ((step,),) = session.run(["global_step:0"])
        print("began at", step)
        for number in range(step * MICRO_BATCHES, int(updates) * MICRO_BATCHES):
            whole = batch(number, workers * batches)
            session.run("train", {name: [values[rows]] for name, values in whole.items()})
        found = session.run([f"{name}:0" for name in names])
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        np.savez(file, **dict(zip(names, (one for (one,) in found), strict=True)))


main()
