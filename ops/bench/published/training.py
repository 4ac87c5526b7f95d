"""Trains the language model at its published size on emulated hosts, and measures what the plan predicts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ops.bench.published.plans import ROOT
from ops.bench.published.watching import Marks, MemoryWatch, ProcessPeak
from ops.bench.race.models.draws import generator, zipf
from ops.lab.lab import Lab
from parallax.plans.plan import Plan, plan_from_json

_SCRIPT = "examples/nlp/language_model.py"
_WORDS_PER_SENTENCE, _SKEW = 25, 1.05
_STEP_LINE = r"step (\d+) of \d+: loss ([\d.]+)"
_LAST_LINES = 60
_UNTIMED = 2
"""Steps left out between the profiled ones, which are slower, and the timed ones: TensorFlow prepares the run again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a training run.

    Attributes:
        hosts: number of emulated hosts, with a worker on each.
        rate_bytes_per_s: rate of each host's link; None for no limit.
        rows: rows of each of the two tables.
        width: elements of a row.
        state: cells of the LSTM.
        samples: negatives of the sampled softmax.
        unroll: words per row of text and step.
        batch: rows of text per worker; the published 128 are too many for 20 GiB and two cores.
        steps: a multiple of 10, so that the example prints a line after the first half; the second half is timed.
    """

    hosts: int = 4
    rate_bytes_per_s: int | None = None
    rows: int = 793_470
    width: int = 512
    state: int = 2048
    samples: int = 8192
    unroll: int = 20
    batch: int = 64
    steps: int = 20

    def flags(self, folder: Path) -> list[str]:
        """Returns the options of the example."""
        sizes = {"vocab-size": self.rows, "width": self.width, "state": self.state, "samples": self.samples}
        sizes |= {"unroll": self.unroll, "batch": self.batch, "steps": self.steps}
        named = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        return [*named, "--data", str(folder / "text"), "--vocab", str(folder / "vocabulary")]


@dataclass(frozen=True, slots=True)
class Trained:
    """The results of a training run.

    Attributes:
        plan: the plan by the profiles of the cluster and the model.
        step_s: step time of the second half, seconds.
        sent_bytes: bytes per step sent by the host that sent most, headers included.
        received_bytes: bytes per step received by the host that received most, headers included.
        losses: (step, loss) as the example printed them.
        processes: peak memory of each process.
        most_bytes: peak memory of all processes together.
        start_s: seconds from the start of the job to the end of its first steps.
    """

    plan: Plan
    step_s: float
    sent_bytes: int
    received_bytes: int
    losses: tuple[tuple[int, float], ...]
    processes: tuple[ProcessPeak, ...]
    most_bytes: int
    start_s: float


def train(lab: Lab, wanted: Wanted, tell: Callable[[str], None]) -> Trained:
    """Calibrates the lab, trains, and plans with both profiles.

    Raises:
        RuntimeError: a command fails.
    """
    folder = lab.folder
    write_text(folder, wanted)
    resource = ["-r", str(lab.resource_file(1))]
    cluster, model, planned = folder / "cluster.json", folder / "model.json", folder / "plan.json"
    script = [_SCRIPT, *wanted.flags(folder)]
    tell("calibrating the emulated hosts")
    _run(lab, ["calibrate", *resource, "--quick", "-o", str(cluster)])
    tell("training")
    half = wanted.steps // 2
    measure = ["--cluster", str(cluster), "--measure", str(model), "--measure-steps", str(half - _UNTIMED)]
    marks = Marks(_STEP_LINE, time.monotonic, lab.counters)
    began_s = time.monotonic()
    with MemoryWatch(lab) as watch:
        lines = _run(lab, ["run", *resource, *measure, *script], marks.read, tell)
    step_s, sent, received = marks.between(half, wanted.steps)
    tell("planning with both profiles")
    _run(lab, ["plan", *resource, "--cluster", str(cluster), "--profile", str(model), "--json", str(planned), *script])
    losses = re.findall(_STEP_LINE, "\n".join(lines))
    return Trained(
        plan_from_json(planned.read_text(encoding="utf-8")),
        step_s,
        sent,
        received,
        tuple((int(step), float(loss)) for step, loss in losses),
        watch.processes,
        watch.most_bytes,
        marks.seen[min(marks.seen)][0] - began_s,
    )


def write_text(folder: Path, wanted: Wanted) -> None:
    """Writes a vocabulary with a word per row, and a text of Zipf-distributed words."""
    words = ["<S>", "<UNK>", *(f"w{number}" for number in range(2, wanted.rows))]
    (folder / "vocabulary").write_text("\n".join(words) + "\n", encoding="utf-8")
    needed = wanted.hosts * wanted.batch * (wanted.unroll * wanted.steps + 1)
    draw = generator(1)
    ids = zipf(draw, _SKEW, wanted.rows - 2, [needed // _WORDS_PER_SENTENCE + wanted.hosts, _WORDS_PER_SENTENCE])
    text = "\n".join(" ".join(words[number + 2] for number in line) for line in np.asarray(ids).tolist())
    (folder / "text").write_text(text + "\n", encoding="utf-8")


def _run(
    lab: Lab,
    words: list[str],
    read: Callable[[str], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Runs `parallax` on the first host, and returns its output lines; `read` receives each as it is printed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = lab.start_on(
        "host0",
        [sys.executable, "-m", "parallax.entry.cli", *words],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": path},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines: list[str] = []
    with process:
        for raw in process.stdout or ():
            lines.append(raw.decode(errors="replace").rstrip())
            read(lines[-1])
            if re.search(_STEP_LINE, lines[-1]):
                tell(lines[-1])
    if process.returncode:
        last = "\n".join(lines[-_LAST_LINES:])
        raise RuntimeError(f"`parallax {words[0]}` ended with status {process.returncode}:\n{last}")
    return lines
