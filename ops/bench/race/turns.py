"""The protocol of a race's turns: files in a folder that all hosts share.

The race writes `turn-K.json` with the number of steps. Each worker draws its batches and writes `ready-K-RANK.json`.
The race writes `go-K.json`. Each worker runs the steps and writes `done-K-RANK.json`. A turn of 0 steps ends the race.
Batches are drawn before the clock starts, as the speed of input is not compared.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ops.bench.race.models import Model, model_of

POLL_S = 0.005
IDLE_LIMIT_S = 3600.0
"""A worker that waits longer takes the race for dead, and exits. A stopped process does not poll."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one system's processes, stored as a file.

    Attributes:
        system: name of the system.
        model: name of the model.
        sizes: sizes that differ from the model's defaults.
        folder: the folder of the turns' files.
        workers: number of processes that compute gradients.
        intra_threads: threads of each process within an op.
        inter_threads: ops that each process runs in parallel.
        more: settings that only this system needs.
    """

    system: str
    model: str
    sizes: dict[str, Any]
    folder: str
    workers: int
    intra_threads: int
    inter_threads: int
    more: dict[str, Any]

    @property
    def file(self) -> Path:
        """The file of the task."""
        return Path(self.folder) / "task.json"

    def make_model(self) -> Model:
        """Returns the model, with its sizes."""
        return model_of(self.model, **self.sizes)

    def session_config(self) -> Any:
        """Returns a ConfigProto with the thread settings that all systems share."""
        import tensorflow as tf

        return tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=self.intra_threads, inter_op_parallelism_threads=self.inter_threads
        )


def task_of_this_process() -> Task:
    """Reads the task from the file that the first argument names."""
    return Task(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def write_task(task: Task) -> None:
    """Writes the task to its file, and creates the folder."""
    Path(task.folder).mkdir(parents=True, exist_ok=True)
    write_json(task.file, asdict(task))


def write_task_with(task: Task, **more: Any) -> None:
    """Writes the task with more settings that only this system needs."""
    write_task(replace(task, more={**task.more, **more}))


def write_json(path: Path, value: Any) -> None:
    """Writes a file atomically."""
    half = path.with_name(path.name + ".half")
    half.write_text(json.dumps(value), encoding="utf-8")
    half.rename(path)


def wait_for_file(path: Path) -> Any:
    """Waits for a file, and returns its value.

    Raises:
        TimeoutError: the file does not appear in time.
        FileNotFoundError: the race has ended and deleted its folder.
    """
    deadline_s = time.monotonic() + IDLE_LIMIT_S
    while not path.exists():
        if not path.parent.exists():
            raise FileNotFoundError(f"The race has ended: {path.parent} is gone.")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{path} did not appear within {IDLE_LIMIT_S:.0f} s.")
        time.sleep(POLL_S)
    return json.loads(path.read_text(encoding="utf-8"))


class Turns:
    """A worker's side of the turns: `for batch in turns: ...; turns.report(loss)`.

    Args:
        task: task of the system.
        rank: rank of the worker.
        model: the model whose batches it draws; None for the task's.
        drawn_as: the rank whose batches it draws; None for its own.
        runs: batches per step.
    """

    def __init__(
        self, task: Task, rank: int, model: Model | None = None, drawn_as: int | None = None, runs: int = 1
    ) -> None:
        self._folder = Path(task.folder)
        self._model = model or task.make_model()
        self._rank, self._runs = rank, runs
        self._drawn_as = rank if drawn_as is None else drawn_as
        self._losses: list[float] = []

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields this worker's batches until the race ends; waits between turns."""
        turn = first = 0
        while steps := wait_for_file(self._folder / f"turn-{turn}.json")["steps"]:
            runs = range(first * self._runs, (first + steps) * self._runs)
            batches = [self._model.batch(self._drawn_as, run) for run in runs]
            self._losses = []
            write_json(self._folder / f"ready-{turn}-{self._rank}.json", {})
            wait_for_file(self._folder / f"go-{turn}.json")
            times = [time.time()]
            for number, batch in enumerate(batches, 1):
                yield batch
                if number % self._runs == 0:
                    times.append(time.time())
            write_json(
                self._folder / f"done-{turn}-{self._rank}.json",
                {"start": times[0], "end": times[-1], "times": times, "losses": self._losses},
            )
            turn, first = turn + 1, first + steps

    def report(self, loss: Any) -> None:
        """Records the loss of the step that has just run."""
        self._losses.append(float(loss))
