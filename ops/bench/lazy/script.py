"""The script that every job of the comparison runs: one table, one dense layer, Zipf ids, one of Keras's optimizers.

Some rows are looked up in the first step and again only 150 steps later, so lazy updates skip them in between.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PLAIN, DENSE, LAZY, WHOLE = "plain", "dense", "lazy", "whole"
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("SGD", {"learning_rate": 0.05, "momentum": 0.9}),
    "rmsprop": ("RMSprop", {"learning_rate": 0.002}),
    "adam": ("Adam", {"learning_rate": 0.002}),
    "adamw": ("AdamW", {"learning_rate": 0.002, "weight_decay": 0.01}),
    "nadam": ("Nadam", {"learning_rate": 0.002}),
    "adamax": ("Adamax", {"learning_rate": 0.002}),
    "adadelta": ("Adadelta", {"learning_rate": 0.5}),
    "ftrl": ("Ftrl", {"learning_rate": 0.05}),
    "lion": ("Lion", {"learning_rate": 0.0005}),
}
_IDS_OF_EXAMPLE = 20
_PAUSE = 150
_SEED = 7


@dataclass(frozen=True, slots=True)
class Job:
    """The settings of a job, which its script reads from a file.

    Attributes:
        how: PLAIN: Keras alone, in one process. DENSE: the same, but the table's gradient is made dense before the
            update; the reference of all values, as Keras does not merge equal rows of a gradient. LAZY: workers.
            WHOLE: workers, with `lazy_updates=False`.
        optimizer: one of OPTIMIZERS.
        folder: the job's own folder, for its figures and weights.
        workers: number of workers.
        steps: steps of an epoch.
        epochs: number of epochs.
        rows: rows of the table.
        width: elements of a row.
        ids: ids of a batch.
    """

    how: str
    optimizer: str
    folder: str
    workers: int
    steps: int
    epochs: int
    rows: int
    width: int
    ids: int


def batches(job: Job) -> tuple[Any, Any]:
    """Returns ids [steps * n, 20] and targets [steps * n, 1] of an epoch, the same for every epoch."""
    draw = np.random.default_rng(_SEED)
    examples = job.ids // _IDS_OF_EXAMPLE
    ids = draw.zipf(1.2, (job.steps * examples, _IDS_OF_EXAMPLE)) % job.rows
    paused = job.rows - 1 - np.arange(_IDS_OF_EXAMPLE)
    for step in range(0, job.steps, _PAUSE):
        ids[step * examples] = paused
    return ids.astype(np.int32), draw.normal(size=(len(ids), 1)).astype(np.float32)


def main() -> None:
    """Runs the job whose file is the first argument: in one process, or in the launcher and in every worker."""
    job = Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    import keras
    import tensorflow as tf

    if job.how in (PLAIN, DENSE):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
    else:
        import parallax
        import parallax.keras

        threads = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
        routes = {"sequential/table/embeddings": "alltoall"} if job.workers > 1 else {}
        lazy = job.how == LAZY
        config = parallax.Config(workers=job.workers, sess_config=threads, seed=1, lazy_updates=lazy, routes=routes)
        parallax.keras.use(None, config, merge_rows=True)
    keras.utils.set_random_seed(_SEED)
    model = _model(job)
    marks: list[float] = []

    class Timed(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            marks.append(time.monotonic())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            marks[-1] = time.monotonic() - marks[-1]
            if epoch == job.epochs - 1:
                Path(job.folder, "figures.json").write_text(json.dumps(marks), encoding="utf-8")

    ids, targets = batches(job)
    history = model.fit(
        ids,
        targets,
        batch_size=job.ids // _IDS_OF_EXAMPLE,
        epochs=job.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[Timed()],
    )
    values = {f"weight {number}": value for number, value in enumerate(model.get_weights())}
    np.savez(Path(job.folder, "weights.npz"), loss=history.history["loss"], **values)


def _model(job: Job) -> Any:
    import keras

    name, options = OPTIMIZERS[job.optimizer]
    made = keras.Sequential(
        [
            keras.Input((_IDS_OF_EXAMPLE,), dtype="int32"),
            keras.layers.Embedding(job.rows, job.width, name="table"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    optimizer = getattr(keras.optimizers, name)(**options)
    made.compile(_on_dense_gradients(optimizer) if job.how == DENSE else optimizer, "mse")
    return made


def _on_dense_gradients(optimizer: Any) -> Any:
    """Makes an optimizer convert sparse gradients to dense ones, and returns it."""
    import tensorflow as tf

    apply = optimizer.apply
    optimizer.apply = lambda gradients, variables=None: apply([tf.convert_to_tensor(g) for g in gradients], variables)
    return optimizer


if __name__ == "__main__":
    main()
