"""A trial's job that resumes after faults: `python -m ops.faults.resumable_job MARK local|RESOURCE_FILE KIND FOLDER`.

It is a user's script that trains to a fixed step. The global step determines what it feeds. Worker 0 writes to FOLDER a
line for every step (job ID, step, the machine's clock), and all variables and slots at the end. The script pauses
between steps until the file `hurry` exists. Only the silence limits are shorter than a user's.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import parallax
from ops.faults.job import launch_within
from ops.faults.training import IDS, LIMITS, ROWS, build_graph
from parallax.entry import api
from parallax.runtime.launcher.launch import launch
from parallax.runtime.supervisor.processes import JOB_ID

LAST_STEP, CHECKPOINT_STEPS = 480, 10
MOST_RESTARTS = 20
STEPS, VALUES, HURRY = "steps", "values.npz", "hurry"
_PAUSE_S = 0.25


def main() -> None:
    """Trains to the last step."""
    _, where, kind, name = sys.argv[1:]
    folder = Path(name)
    config = parallax.Config(
        workers=2,
        run_option="PS" if kind == "servers" else "HYBRID",
        ckpt_config=parallax.CheckPointConfig(folder / "checkpoints", save_ckpt_steps=CHECKPOINT_STEPS, keep_last=2),
        restart=parallax.RestartConfig(MOST_RESTARTS),
        seed=1,
    )
    graph = build_graph()
    state = {variable.op.name: variable for variable in graph.get_collection("variables")}
    mock.patch.object(api, "launch", partial(launch_within, LIMITS, launch)).start()
    resource = None if where == "local" else where
    sess, size, worker, _ = parallax.parallel_run(graph, resource, parallax_config=config)
    with sess:
        values = _train(sess, size, worker, folder, state)
    if worker == 0:
        _write(folder, values)


def _train(sess: Any, size: int, worker: int, folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    while (step := int(sess.run(state["global_step"]))) < LAST_STEP:
        ids = np.random.RandomState(step * size + worker).randint(0, ROWS, IDS)
        sess.run("train", {"ids:0": [ids]})
        if worker == 0:
            with (folder / STEPS).open("a") as file:
                file.write(f"{os.environ[JOB_ID]} {step} {time.monotonic()}\n")
        if not (folder / HURRY).exists():
            time.sleep(_PAUSE_S)
    found = sess.run(state)
    return {name: value[0] for name, value in found.items()}


def _write(folder: Path, values: dict[str, Any]) -> None:
    import numpy as np

    unfinished = folder / f"unfinished-{VALUES}"
    np.savez(unfinished, **values)
    unfinished.rename(folder / VALUES)


if __name__ == "__main__":
    main()
