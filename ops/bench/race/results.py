"""The results of races, as values that can be stored: one Race per number of hosts, one Ran per system."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one system: consecutive steps, with all other systems stopped.

    Attributes:
        steps: number of steps.
        seconds: their wall time, from the first worker's start to the last one's end.
        received_bytes: bytes by host, as its interface counted them; empty without a lab.
        sent_bytes: the same.
        cpu_s: processor time of all processes of the system.
        switches: context switches of their threads.
    """

    steps: int
    seconds: float
    received_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    cpu_s: float
    switches: int = 0

    @property
    def step_s(self) -> float:
        """Step time."""
        return self.seconds / self.steps

    @property
    def wire_bytes(self) -> float:
        """Bytes per step in the busiest direction of the busiest host's link."""
        return max((*self.received_bytes, *self.sent_bytes), default=0) / self.steps


@dataclass(frozen=True, slots=True)
class Ran:
    """The results of one system.

    Attributes:
        system: name of the system.
        synchronous: whether its losses must equal those of the others.
        turns: the measured rounds, without warm-up.
        losses: mean over the workers, by step, warm-up included.
        peak_bytes: peak RSS of each process, largest first.
        problem: why it did not run to the end; empty if it did.
    """

    system: str
    synchronous: bool
    turns: tuple[Turn, ...]
    losses: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    problem: str = ""

    @property
    def step_s(self) -> float:
        """Median step time over the rounds."""
        return statistics.median(turn.step_s for turn in self.turns)

    @property
    def wire_bytes(self) -> float:
        """Median wire bytes per step over the rounds."""
        return statistics.median(turn.wire_bytes for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Race:
    """All systems on one model and one number of hosts.

    Attributes:
        model: name of the model.
        settings: its sizes, as (name, value).
        hosts: number of hosts.
        workers: workers per host.
        rate_bytes_per_s: rate of each link, each way; 0 without a limit.
        units: words, images or examples of one step, of all workers together.
        unit: which of these.
        least_bytes: the fewest bytes that a host must send in a step, and receive.
        formula: the formula of `least_bytes`, with its numbers.
        compute_s: step time of all workers at once, on this machine's cores, without any exchange.
        runs: the results of the systems, in the order of the command line.
        device_s: dilated seconds of a step on the emulated accelerator; 0 if cores compute.
        dilation: factor by which time is dilated relative to the emulated cluster.
        cores: cores of this machine, which all hosts share; 0 if not recorded.
        shortest_s: lower bound in seconds of a step alone, over all schedules of Parallax's exchanges and the
            accelerator's layers; 0 if unknown.
        overlapping_s: the same for the period of steps that overlap.
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
        """Lower bound of every system's step, by the accelerator or by the cores."""
        return self.device_s or self.compute_s

    @property
    def wire_s(self) -> float:
        """Seconds that the least bytes take on a link."""
        return self.least_bytes / self.rate_bytes_per_s if self.rate_bytes_per_s else 0.0

    def shortest_of(self, system: str) -> float:
        """Returns the lower bound of a system's step: for `parallax-overlap` only, that of overlapping steps."""
        return self.overlapping_s if system == "parallax-overlap" else self.shortest_s

    def run_of(self, system: str) -> Ran:
        """Returns the run of one system; raises KeyError if it was not in the race."""
        for run in self.runs:
            if run.system == system:
                return run
        raise KeyError(system)


@dataclass(frozen=True, slots=True)
class Results:
    """All results of one command.

    Attributes:
        command: the command as typed.
        machine: the machine it ran on.
        date: date and time of its start, in ISO format.
        shortfalls: sentences about what could not be measured here.
        races: in the order they were run.
    """

    command: str
    machine: str
    date: str
    shortfalls: tuple[str, ...]
    races: tuple[Race, ...]

    def to_json(self) -> str:
        """Returns the results as JSON text."""
        return json.dumps(asdict(self), indent=1) + "\n"


def results_from_json(text: str) -> Results:
    """Parses the text of `Results.to_json`."""
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
