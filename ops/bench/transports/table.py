"""The table of transports: throughput, efficiency, bytes and share of communication of each.

The axes are those of Awan et al., "Scalable Distributed DNN Training using TensorFlow and CUDA-Aware MPI" (2019):
model, batch, workers and transport. With N workers and T(N) units per second, the efficiency is T(N) / (N T(1)); T(1)
is that of one worker on this machine without exchanges. Emulated hosts share the machine's cores, which lowers the
efficiency of every transport alike. The share of communication is the part of a step beyond the compute time, which is
that of all N workers at once without any exchange.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ops.bench.race.results import Race, Ran
from parallax.report.text import align, bytes_text

TRANSPORTS = {
    "tf-ps": "TensorFlow servers, gRPC",
    "parallax-ps": "Parallax, servers by gRPC",
    "parallax": "Parallax, MPI",
    "parallax-ucx": "Parallax, MPI over UCX",
    "horovod": "Horovod, MPI",
}
"""Names of transports, by system of a race."""
_COLUMNS = ("model", "batch", "hosts x workers", "transport", "units/s", "from-to", "efficiency", "bytes/step", "comm.")


@dataclass(frozen=True, slots=True)
class Row:
    """One transport with one model, batch and layout.

    Attributes:
        model: name of the model.
        batch: examples per worker and step.
        race: the race it took part in.
        run: its results there.
        alone_s: step time of one worker alone, in seconds.
    """

    model: str
    batch: int
    race: Race
    run: Ran
    alone_s: float

    @property
    def transport(self) -> str:
        """The system and its medium."""
        medium = {True: "shared memory", False: "TCP"}
        if self.run.system != "parallax" and self.run.system != "horovod":
            return TRANSPORTS[self.run.system]
        kinds = [medium[True]] * (self.race.workers > 1) + [medium[False]] * (self.race.hosts > 1)
        return f"{TRANSPORTS[self.run.system]} over {' and '.join(kinds)}"

    @property
    def efficiency(self) -> float:
        """T(N) / (N T(1))."""
        return self.alone_s / self.run.step_s

    @property
    def exchange_share(self) -> float:
        """The part of a step that is not compute; 0 if the step is no longer than the compute."""
        return max(0.0, 1 - self.race.compute_s / self.run.step_s)

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of the table's columns."""
        race, run = self.race, self.run
        head = self.model, str(self.batch), f"{race.hosts} x {race.workers}", self.transport
        if not run.turns:
            return (*head, "did not run", (run.problem.splitlines() or [""])[0][:60], "", "", "")
        rates = [race.units / turn.step_s for turn in run.turns]
        wire = bytes_text(round(run.wire_bytes)) if run.turns[0].sent_bytes else "not counted"
        measured = f"{statistics.median(rates):.4g} {race.unit}", f"{min(rates):.3g}-{max(rates):.3g}"
        return (*head, *measured, f"{self.efficiency:.2f}", wire, f"{100 * self.exchange_share:.0f} %")


def table_lines(rows: Sequence[Row]) -> list[str]:
    """Returns the table of all rows, and lines on transports that cannot be measured here."""
    return [*align(_COLUMNS, [row.cells() for row in rows]), *absent_lines(build_words())]


def build_words() -> str:
    """Returns the line on how Open MPI was configured; empty if `ompi_info` is missing."""
    try:
        done = subprocess.run(["ompi_info", "--all"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((line for line in done.stdout.splitlines() if "Configure command line" in line), "")


def absent_lines(configured: str) -> Iterator[str]:
    """Yields a line for each transport that cannot be measured here, with the reason.

    Args:
        configured: the line of `ompi_info` on the configuration.
    """
    no_cuda = "Open MPI without CUDA" if "--without-cuda" in configured else "not tried on a CUDA device"
    no_verbs = "Open MPI without verbs" if "--without-verbs" in configured else "not tried on an InfiniBand device"
    reasons = {
        "CUDA-aware MPI": f"{no_cuda}; untested on GPUs",
        "GPUDirect RDMA": "needs GPUs and InfiniBand; untested",
        "InfiniBand verbs": no_verbs,
    }
    for name, why in reasons.items():
        yield f"Not measured: {name} ({why})."
