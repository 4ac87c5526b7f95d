"""Runs simulated jobs of many seeds, and checks the invariants of each.

The job ends in time. Its message names the dead or silent process. Its status is that of the first cause. No process is
left.
"""

from __future__ import annotations

from dataclasses import dataclass

from ops.faults.fault_cases import Expected, world_of
from ops.faults.model import World

_FAULT_S = (0.3, 7.0)  # range of the fault's time, when all ranks that can have reported their start


@dataclass(frozen=True, slots=True)
class Broken:
    """A schedule that violates an invariant.

    Attributes:
        seed: replays it.
        fault: its name.
        what: the violation.
    """

    seed: int
    fault: str
    what: str

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.fault}: {self.what}"


def simulate(seed: int, watching: bool = False) -> tuple[Broken | None, World]:
    """Runs the schedule of a seed; returns the violation, if any, and the world at its end."""
    world, fault = world_of(seed, watching)
    at_s = world.random.uniform(*_FAULT_S)
    found: list[Expected] = []
    world.at(at_s, lambda: found.append(fault(world)))
    world.run()
    what = _find_breach(world, found[0], at_s) if found else "the job ended before its fault was injected"
    return (Broken(seed, fault.__name__, what) if what else None), world


def _find_breach(world: World, expected: Expected, at_s: float) -> str:
    """Returns the violation; empty if there is none."""
    if world.left():
        return f"left after {world.now_s - at_s:.1f} s: {', '.join(world.left())}; {world.ending}"
    if expected.status is None:
        return "" if world.now_s - at_s <= expected.empty_s else f"empty after {world.now_s - at_s:.1f} s"
    if world.ending is None:
        return "the job has not ended"
    if world.ending.status != expected.status:
        return f"status {world.ending.status}, expected {expected.status}: {world.ending.message}"
    message = world.ending.message
    if not message.startswith(expected.words) or (message and not expected.words) or expected.has not in message:
        return f"message {message!r}, expected {expected.words!r}, {expected.has!r}"
    if world.ended_s - at_s > expected.within_s:
        return f"ended after {world.ended_s - at_s:.1f} s, limit {expected.within_s:.1f} s"
    if world.now_s - at_s > expected.empty_s:
        return f"empty after {world.now_s - at_s:.1f} s, limit {expected.empty_s:.1f} s"
    return ""


def simulate_all(seeds: range) -> list[Broken]:
    """Returns the schedules that violate an invariant."""
    return [broken for seed in seeds if (broken := simulate(seed)[0]) is not None]
