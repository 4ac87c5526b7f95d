"""Horovod, as its documentation describes it for TensorFlow 1: `DistributedOptimizer`, one broadcast, and mpirun.

`horovod` gathers the rows of sparse gradients from all workers, which is its default. `horovod-dense` makes them dense
and all-reduces them (`sparse_as_dense=True`), as its documentation advises for models with many gathered rows.
With this TensorFlow, Horovod has no `BroadcastGlobalVariablesHook`, as it derives from `tf.estimator`, but it has
`broadcast_global_variables`, which the hook calls. Horovod's own settings are the defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ops.bench.race.place import Place, mpirun_options
from ops.bench.race.systems import Command, script_of_worker
from ops.bench.race.turns import Task, Turns, task_of_this_process
from parallax.runtime.launcher.mpirun import find_mpirun


def commands(place: Place, task: Task) -> Iterator[Command]:
    """Yields one mpirun on the first host."""
    mpirun = find_mpirun()
    own = Path(mpirun).parent == Path(sys.executable).parent
    prefix = str(Path(mpirun).parent.parent)
    options = [*mpirun_options(place), "--mca", "orte_tmpdir_base", task.folder]
    environment = {}
    if place.is_lab:
        options += ["--host", ",".join(f"{host}:{task.workers // len(place.hosts)}" for host in place.hosts)]
        for name in ("PATH", "PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL", *task.more["environment"]):
            options += ["-x", name]
        if own:
            options += ["--prefix", prefix]
            environment["OPAL_PREFIX"] = prefix
    worker = script_of_worker(place, task)
    yield Command(place.hosts[0], (mpirun, *options, "-np", str(task.workers), *worker), environment)


def main() -> None:
    """Runs one worker."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    v1 = tf.compat.v1
    hvd.init()
    task = task_of_this_process()
    turns = Turns(task, hvd.rank())
    with tf.Graph().as_default():
        built = task.make_model().build()
        optimizer = hvd.DistributedOptimizer(built.optimizer, sparse_as_dense=task.system == "horovod-dense")
        train = optimizer.minimize(built.loss)
        broadcast = hvd.broadcast_global_variables(0)
        with v1.Session(config=task.session_config()) as sess:
            sess.run(v1.global_variables_initializer())
            sess.run(broadcast)
            for batch in turns:
                _, loss = sess.run([train, built.loss], {built.feeds[name]: value for name, value in batch.items()})
                turns.report(loss)
    hvd.shutdown()


if __name__ == "__main__":
    main()
