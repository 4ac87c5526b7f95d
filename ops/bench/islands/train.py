"""The script of every worker: trains a task, and evaluates the held-out loss periodically, with the clock stopped.

    python -m parallax.entry.cli run -r FILE ops/bench/islands/train.py TASK ISLANDS STEPS EVALUATE_EVERY OUTPUT.json

ISLANDS are settings of `parallax.Islands`, or `none`. Worker 0 writes (step, seconds of training, loss).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import parallax
from ops.bench.islands.tasks import HELD_OUT_ROWS, TASKS


def main() -> None:
    """Trains, and writes the curve."""
    name, islands, steps, evaluate_every, output = sys.argv[1:]
    task = TASKS[name]()
    config = parallax.Config(seed=1, islands=None if islands == "none" else parallax.Islands.of_text(islands))
    session, _, worker, _ = parallax.parallel_run(task.build(), parallax_config=config)
    held_out = {name: [value] for name, value in task.batch([0], HELD_OUT_ROWS).items()}
    found, seconds, began_s = [], 0.0, time.monotonic()
    with session:
        for step in range(int(steps) + 1):
            if step % int(evaluate_every) == 0:
                session.workers.Barrier()
                seconds += 0.0 if step == 0 else time.monotonic() - began_s
                found.append((step, seconds, float(session.run("loss:0", held_out)[0])))
                session.workers.Barrier()
                began_s = time.monotonic()
            batch = task.batch([1, step, worker], task.rows)
            session.run("train", {name: [value] for name, value in batch.items()})
    if worker == 0:
        Path(output).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
