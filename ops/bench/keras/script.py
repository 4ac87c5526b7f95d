"""The scripts that are compared: the same model, sizes, batches and optimizer, as a TF1 graph and in Keras.

Every epoch runs over the same arrays. The TF1 loop cuts each worker's batches out of them before the clock starts, and
fetches the loss in each step, as `fit` does.
"""

from __future__ import annotations

import cProfile
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ops.bench.race.measure import cpu_s
from ops.bench.race.models.recsys import LEARNING_RATE, RecSys

SPELLINGS = ("graph", "merged", "apart")
"""The graph, whose optimizer merges equal rows of a gradient; `fit` with merged rows; `fit` with equal rows apart."""


@dataclass(frozen=True, slots=True)
class Job:
    """The settings of a job, which its scripts read from a file.

    Attributes:
        spelling: one of SPELLINGS.
        folder: the job's own folder, for its figures.
        workers: number of workers.
        steps: steps of an epoch.
        epochs: number of epochs.
        sizes: sizes of the model that differ from its defaults.
        profile: whether to profile worker 0, or the process of `fit`, from the second epoch on.
    """

    spelling: str
    folder: str
    workers: int
    steps: int
    epochs: int
    sizes: dict[str, Any] = field(default_factory=dict)
    profile: bool = False


class Clock:
    """Times the epochs of a job, and writes the figures."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._profile = cProfile.Profile() if job.profile else None
        self._marks: list[tuple[float, float]] = []

    def begin_epoch(self, epoch: int) -> None:
        """Starts the clock of an epoch; only steps may follow."""
        self._marks.append((time.monotonic(), cpu_s(_processes_of(self._job.folder))))
        if epoch == 1 and self._profile is not None:
            self._profile.enable()

    def end_epoch(self, epoch: int) -> None:
        """Stops the clock of an epoch; after the last epoch, writes the figures."""
        (wall, cpu), folder = self._marks[-1], Path(self._job.folder)
        self._marks[-1] = (time.monotonic() - wall, cpu_s(_processes_of(self._job.folder)) - cpu)
        if epoch == self._job.epochs - 1:
            if self._profile is not None:
                self._profile.disable()
                self._profile.dump_stats(folder / f"{self._job.spelling}.prof")
            (folder / "figures.json").write_text(json.dumps(list(zip(*self._marks, strict=True))))


def main() -> None:
    """Runs the job whose file is the first argument, in the launcher and in every worker."""
    job = Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    model = RecSys(**job.sizes)
    (_train_graph if job.spelling == "graph" else _train_by_fit)(job, model)


def keras_model(model: RecSys) -> Any:
    """Returns the model in Keras: from [n, numbers], and [n, ids] of each feature, to a logit [n, 1]."""
    import keras

    numbers = keras.Input((model.numbers,), name="numbers")
    inputs, pooled = {"numbers": numbers}, [numbers]
    shapes = {name: array.shape for name, array in model.batch(0, 0).items()}
    for table in model.tables:
        (name,) = table.ids
        inputs[name] = keras.Input(shapes[name][1:], dtype="int32", name=name)
        rows = keras.layers.Embedding(table.rows, table.width, name=table.name)(inputs[name])
        pooled.append(keras.ops.sum(rows, axis=1))
    hidden = keras.layers.Concatenate()(pooled)
    for units in (model.hidden, model.hidden // 2):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    made = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    made.compile(keras.optimizers.Adagrad(LEARNING_RATE), keras.losses.BinaryCrossentropy(from_logits=True))
    return made


def _train_by_fit(job: Job, model: RecSys) -> None:
    import keras

    import parallax.keras

    class Timed(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            clock.begin_epoch(epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            clock.end_epoch(epoch)

    parallax.keras.use(None, _config(job), merge_rows=job.spelling == "merged")
    clock = Clock(job)
    batches = [[model.batch(worker, step) for worker in range(job.workers)] for step in range(job.steps)]
    arrays = {name: np.concatenate([part[name] for parts in batches for part in parts]) for name in batches[0][0]}
    clicks = arrays.pop("clicks")
    keras_model(model).fit(
        arrays,
        clicks,
        batch_size=job.workers * model.batch_size,
        epochs=job.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[Timed()],
    )


def _train_graph(job: Job, model: RecSys) -> None:
    import tensorflow as tf

    import parallax

    graph = tf.Graph()
    with graph.as_default():
        built = model.build()
        train = built.optimizer.minimize(built.loss)
    sess, _, rank, _ = parallax.parallel_run(graph, parallax_config=_config(job))
    batches = [model.batch(rank, step) for step in range(job.steps)]
    feeds = [{built.feeds[name]: [value] for name, value in batch.items()} for batch in batches]
    clock = Clock(job)
    with sess:
        for epoch in range(job.epochs):
            if rank == 0:
                clock.begin_epoch(epoch)
            for fed in feeds:
                sess.run([train, built.loss], fed)
            if rank == 0:
                clock.end_epoch(epoch)


def _config(job: Job) -> Any:
    """Returns the settings of all spellings; threads are those of a race."""
    import tensorflow as tf

    import parallax

    threads = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    return parallax.Config(workers=job.workers, sess_config=threads, seed=1)


def _processes_of(folder: str) -> list[int]:
    """Returns the processes started with the job's file, and their descendants: `fit` starts workers without it."""
    named = [p for p in psutil.process_iter(["cmdline"]) if folder in " ".join(p.info["cmdline"] or ())]
    return list({one.pid for p in named for one in (p, *p.children(recursive=True))})


if __name__ == "__main__":
    main()
