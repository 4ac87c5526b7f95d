"""Injects faults into a script's fits: kills and stops of workers, supervisors and mpirun.

The script fits one model repeatedly. A fault comes in a fit, in a callback, or between two fits. The fit must then fail
with an exception whose cause was printed, or continue with the same results as plain Keras. When the script has ended,
no process of it may be left.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil

from ops.faults.job import launch_within
from ops.faults.running_job import RunningJob, Seen, wait
from parallax.runtime.supervisor.limits import Limits

LIMITS = Limits(beat_s=1.0, stopped_s=4.0, silent_s=10.0, word_s=1.0, unheard_s=12.0)
VICTIMS = ("worker 0", "worker 1", "supervisor", "mpirun")
MOMENTS = ("fit", "callback", "between")
_NAMED = {"worker 0": ("rank 0",), "worker 1": ("rank 1",), "supervisor": ("supervisor", "rank"), "mpirun": ("mpirun",)}
_EMPTY_S, _LONGEST_S = 5.0, 0.6
_EPOCHS, _SHOWN = 30, 2000
_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class FitFault:
    """A fault to inject.

    Attributes:
        victim: one of `VICTIMS`.
        number: of the signal sent to it.
        moment: one of `MOMENTS`.
        restarts: number of restarts that the job may make.
        after_s: delay of a fault in a fit, in seconds.
    """

    victim: str
    number: int
    moment: str
    restarts: int
    after_s: float

    @staticmethod
    def draw(seed: int) -> FitFault:
        """Draws the fault of a seed."""
        random = Random(seed)
        return FitFault(
            random.choice(VICTIMS),
            random.choice((signal.SIGKILL, signal.SIGSTOP)),
            random.choice(MOMENTS),
            random.randrange(2),
            random.uniform(0.0, _LONGEST_S),
        )

    def __str__(self) -> str:
        name = signal.Signals(self.number).name
        return f"{name} to {self.victim}, {self.moment}, {self.restarts} restarts"

    def is_named(self, text: str) -> bool:
        """Returns whether a message names the failed process."""
        return any(name in text for name in _NAMED[self.victim])


def run_all(number: int, first: int) -> int:
    """Injects faults with seeds from `first` on and prints the problems; returns 0 if there are none."""
    with tempfile.TemporaryDirectory(prefix="parallax-faults-") as folder:
        job = RunningJob(
            Path(folder), Path(folder).name, ["ops.faults.fits", str(first), str(number)], None, shows=True
        )
        try:
            status = job.process.wait()
            if status:
                print(job.said()[-_SHOWN:])
            is_empty = wait(lambda: not job.pids(), _EMPTY_S)
            print(f"left: {0 if is_empty else job.pids()}")
            return status or int(not is_empty)
        finally:
            job.kill()


def main() -> int:
    """Runs the script, which fits a model once for each fault."""
    import keras

    import parallax.entry.background_job
    import parallax.keras

    first, number = map(int, sys.argv[1:])
    parallax.entry.background_job.launch = partial(launch_within, LIMITS, parallax.entry.background_job.launch)  # type: ignore[attr-defined]
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(1)
    ids, labels = random.integers(0, 50, [70, 4]), random.random([70, 1]).astype("float32")
    layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    model.build((None, 4))
    weights = model.get_weights()

    def fit(callbacks: list[Any]) -> list[Any]:
        model.set_weights(weights)
        history = model.fit(ids, labels, batch_size=16, epochs=_EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
        return [*model.get_weights(), *history.history.values()]

    expected, wrong = fit([]), 0
    for seed in range(first, first + number):
        fault = FitFault.draw(seed)
        restart = parallax.RestartConfig(max_restarts=fault.restarts, no_spare=True)
        parallax.keras.use(None, parallax.Config(workers=2, restart=restart))
        began_s = time.monotonic()
        problem = _try(fault, fit, expected)
        print(f"seed {seed}, {fault}: {problem or f'{time.monotonic() - began_s:.1f} s'}", flush=True)
        wrong += bool(problem)
    print(f"failed: {wrong} of {number}", flush=True)
    return int(bool(wrong))


def _try(fault: FitFault, fit: Callable[[list[Any]], list[Any]], expected: list[Any]) -> str:
    """Injects a fault into a fit, and fits again; returns any problem, or empty."""
    import keras

    import parallax.keras

    came: list[str] = []
    in_fit = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: threading.Timer(fault.after_s, lambda: came.append(_hit(fault))).start()
    )
    in_callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: came.append(_hit(fault)) if epoch == _EPOCHS // 2 else None
    )
    slow = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(_LONGEST_S / _EPOCHS))
    callbacks = {"fit": [slow, in_fit], "callback": [in_callback], "between": []}[fault.moment]
    with _capture_stderr() as text:
        try:
            if fault.moment == "between":
                fit([])
                came.append(_hit(fault))
            found = fit(callbacks)
        except parallax.keras.JobFailed as failed:
            if fault.restarts and fault.moment != "between":
                return f"failed with status {failed.status}: {text()}"
            if not fault.is_named(text()):
                return f"printed {text()}"
            found = fit([])
        if not wait(lambda: bool(came), 2 * _LONGEST_S) or "nobody" in came:
            return f"start: no victim was found: {came}"
        parallax.keras.close()  # of workers that were stopped while idle
    return _differences(found, expected) or _differences(fit([]), expected)


def _differences(found: list[Any], expected: list[Any]) -> str:
    """Compares values with those of plain Keras; returns the difference, or empty."""
    most = max(float(np.max(np.abs(np.subtract(one, other)))) for one, other in zip(found, expected, strict=True))
    return "" if most <= _TOLERANCE else f"values differ by {most}"


def _hit(fault: FitFault) -> str:
    """Sends the signal to the first descendant of the victim's kind; returns the kind, or `nobody`."""
    for one in sorted(_processes_below(), key=lambda one: one.pid):
        kind = "mpirun" if one.is_mpirun else "supervisor" if one.is_agent else f"worker {one.rank}"
        if kind == fault.victim:
            os.kill(one.pid, fault.number)
            return kind
    return "nobody"


def _processes_below() -> Iterator[Seen]:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            yield Seen.of(process)


@contextmanager
def _capture_stderr() -> Iterator[Callable[[], str]]:
    """Collects stderr in a file inside the `with` block; yields a function that returns the end of the text."""
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")[-_SHOWN:]
        finally:
            os.dup2(before, 2)
            os.write(before, os.pread(file.fileno(), 1 << 20, 0))
            os.close(before)


if __name__ == "__main__":
    sys.exit(main())
