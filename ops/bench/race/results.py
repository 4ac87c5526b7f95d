"""What a race measured, as values that can be stored: one Race for each number of hosts, one Ran for each system."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one system: some steps in a row, while all other systems were stopped.

    Attributes:
        steps: how many.
        seconds: wall time of them, from the first worker's start to the last one's end.
        received_bytes: by host, as its interface counted; empty without a lab.
        sent_bytes: the same.
        cpu_s: processor time of all processes of the system.
        switches: how often their threads were taken off a core.
    """

    steps: int
    seconds: float
    received_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    cpu_s: float
    switches: int = 0

    @property
    def step_s(self) -> float:
        """Seconds a step."""
        return self.seconds / self.steps

    @property
    def wire_bytes(self) -> float:
        """Bytes a step through the busiest direction of the busiest host's link."""
        return max((*self.received_bytes, *self.sent_bytes), default=0) / self.steps


@dataclass(frozen=True, slots=True)
class Ran:
    """What one system did.

    Attributes:
        system: its name.
        synchronous: whether its losses must be those of the others.
        turns: the measured rounds; those that warm up are left out.
        losses: mean over the workers, by step, warm-up included.
        peak_bytes: the most memory that each process held, largest first.
        problem: why it did not run to the end; empty when it did.
    """

    system: str
    synchronous: bool
    turns: tuple[Turn, ...]
    losses: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    problem: str = ""

    @property
    def step_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(turn.step_s for turn in self.turns)

    @property
    def wire_bytes(self) -> float:
        """Median over the rounds."""
        return statistics.median(turn.wire_bytes for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Race:
    """All systems on one model and one number of hosts.

    Attributes:
        model: its name.
        settings: its sizes, as (name, value).
        hosts: number of them.
        workers: on each.
        rate_bytes_per_s: of each link, each way; 0 where nothing limits it.
        units: words, images or examples of one step, all workers together.
        unit: which of these.
        least_bytes: the fewest bytes that a host must send in a step, and receive.
        formula: of `least_bytes`, with its numbers.
        compute_s: seconds of a step of all workers at once, on this machine's cores, without any exchange.
        runs: the systems, in the order they were asked for.
        device_s: seconds of a step on the accelerator whose twin this is, dilated; 0 where cores compute.
        dilation: times that a second is longer than on the cluster whose twin this is.
        cores: of this machine, which all hosts share; 0 where it was not recorded.
        shortest_s: seconds that no schedule of Parallax's exchanges and the accelerator's layers is below, of a step
            alone; 0 where it is not known.
        overlapping_s: the same, from step to step of steps that overlap.
    """

    model: str
    settings: tuple[tuple[str, Any], ...]
    hosts: int
    workers: int
    rate_bytes_per_s: float
    units: int
    unit: str
    least_bytes: float
    formula: str
    compute_s: float
    runs: tuple[Ran, ...]
    device_s: float = 0.0
    dilation: float = 1.0
    cores: int = 0
    shortest_s: float = 0.0
    overlapping_s: float = 0.0

    @property
    def computing_s(self) -> float:
        """Seconds that nobody's step can be shorter than, of the accelerator or of the cores."""
        return self.device_s or self.compute_s

    @property
    def wire_s(self) -> float:
        """Seconds that the least bytes take on a link."""
        return self.least_bytes / self.rate_bytes_per_s if self.rate_bytes_per_s else 0.0

    def shortest_of(self, system: str) -> float:
        """Seconds that a system's step is compared with: those of steps that overlap for `parallax-overlap` alone."""
        return self.overlapping_s if system == "parallax-overlap" else self.shortest_s

    def run_of(self, system: str) -> Ran:
        """The run of one system; KeyError when it was not in the race."""
        for run in self.runs:
            if run.system == system:
                return run
        raise KeyError(system)


@dataclass(frozen=True, slots=True)
class Results:
    """Everything one command measured.

    Attributes:
        command: as it was typed.
        machine: what it ran on.
        date: of its start, in ISO form.
        shortfalls: what it could not show here, in words.
        races: in the order they were run.
    """

    command: str
    machine: str
    date: str
    shortfalls: tuple[str, ...]
    races: tuple[Race, ...]

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self), indent=1) + "\n"


def results_from_json(text: str) -> Results:
    """The inverse of `Results.to_json`."""
    data = json.loads(text)
    races = tuple(_race(race) for race in data.pop("races"))
    return Results(**{**data, "shortfalls": tuple(data["shortfalls"])}, races=races)


def _race(data: dict[str, Any]) -> Race:
    runs = tuple(_ran(run) for run in data.pop("runs"))
    return Race(**{**data, "settings": tuple((name, value) for name, value in data["settings"])}, runs=runs)


def _ran(data: dict[str, Any]) -> Ran:
    turns = tuple(
        Turn(**{**turn, "received_bytes": tuple(turn["received_bytes"]), "sent_bytes": tuple(turn["sent_bytes"])})
        for turn in data["turns"]
    )
    return Ran(**{**data, "turns": turns, "losses": tuple(data["losses"]), "peak_bytes": tuple(data["peak_bytes"])})
