"""Predicts the time of one step: the length of each phase by the chosen routes, and the sequence of phases.

    pull (ids merged within hosts, ids to owners, rows back) -> compute -> gradients merged within hosts -> gradients
    to owners and to all -> new values from servers

A phase begins when the preceding one has ended on all hosts: every exchange synchronizes all of them. Within a phase
the bytes of all exchanges share each link, so a link is busy for the sum, and the busiest end dominates; rounds wait
concurrently. With F the longest wait of a phase, B its busiest end, and F', B' the same of the remainders LEFT of
rounds and of time on links (route_seconds.py), it lasts

    max(F' + B, F + B')

which for one operation is its line, latency + byte_s * bytes + on_link - overlap * min(latency, on_link), and without
overlap F + B: an upper bound, as bytes of one exchange may flow while another waits. Where operations of several lines
share a phase, each is assumed to hide its part behind the longer of the totals. The seconds that compute hides
(`ModelProfile.overlap_s`) are subtracted from the exchange of gradients. The update is counted as compute, and drawn
there, before the exchange that it follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallax.analysis.timing.route_seconds import (
    AFTER,
    BEFORE,
    FULL,
    LEFT,
    MERGE_GRADIENTS,
    MERGE_IDS,
    NEW_VALUES,
    PHASES,
    Charge,
    Floats,
    Pricing,
    RouteOption,
)
from parallax.analysis.timing.topology import Topology
from parallax.cluster.plan_inputs import PlanInputs
from parallax.plans.plan import Layout
from parallax.plans.prediction import COMPUTE, SESSION, Phase


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The cost of a step that does not depend on the routes.

    Attributes:
        session_s: between steps.
        compute_s: of all workers concurrently.
        overlap_s: the part of it that overlaps with the exchange of gradients.
        has_compute: whether compute was measured.
    """

    session_s: float
    compute_s: float
    overlap_s: float
    has_compute: bool


def derive_step_load(measured: PlanInputs, layout: Layout, batches: int = 1) -> StepLoad:
    """The compute time from the profiles, for W workers on C shared cores (`ClusterProfile.shared_cores`).

    They compute as fast as one alone while the cores suffice, and then at the rate of the cores:

        max(compute_s, W one_core_s / C)         where the time on one core is known
        compute_s max(1, W / C) / max(1, n / C)  else, where n workers computed at once when they were measured

    The time on one core includes contention between threads there. Processor seconds would not do: idle threads use
    some up while a core is free. Simplified: a worker alone is assumed to use one core where its time on one core is
    unknown.
    """
    model, cluster = measured.model, measured.cluster
    if model is None or model.compute_s is None:
        session_s = 0.0 if model is None else model.session_s or 0.0
        return StepLoad(batches * session_s, 0.0, 0.0, False)
    crowded = 1.0
    if cluster is not None and cluster.shared_cores is not None:
        crowded = max(1.0, layout.num_workers / cluster.shared_cores) / max(1.0, model.computing / cluster.shared_cores)
        if model.one_core_s is not None and model.compute_s > 0:
            crowded = max(1.0, layout.num_workers * model.one_core_s / cluster.shared_cores / model.compute_s)
    overlap_s = min(model.overlap_s or 0.0, model.compute_s) * crowded
    return StepLoad(batches * (model.session_s or 0.0), batches * model.compute_s * crowded, overlap_s, True)


class Totals:
    """The sum of the chosen options, one for each variable; updated incrementally."""

    def __init__(self, pricing: Pricing) -> None:
        ends = len(pricing.topology.ends)
        self.pricing = pricing
        self.extra_s = np.zeros((len(PHASES), ends))
        self.link = np.zeros((2, len(PHASES), ends))
        self.waits = np.zeros((2, len(PHASES), pricing.who))
        self.charged = np.zeros((2, len(PHASES), pricing.who))
        self.users: dict[Charge, int] = {}

    def add(self, option: RouteOption) -> None:
        """Adds one variable."""
        self._count(option, 1)

    def remove(self, option: RouteOption) -> None:
        """Removes one variable."""
        self._count(option, -1)

    def _count(self, option: RouteOption, sign: int) -> None:
        change = np.add if sign > 0 else np.subtract
        change(self.extra_s, option.extra_s, out=self.extra_s)
        change(self.link, option.link, out=self.link)
        change(self.waits, option.waits, out=self.waits)
        for charge in option.charges:
            before = self.users.get(charge, 0)
            self.users[charge] = before + sign
            if (before > 0) != (before + sign > 0):
                self.charged += sign * self.pricing.charges[charge]

    def phase_seconds(self, slowness: float = 1.0) -> Floats:
        """Seconds of each phase; `slowness` divides the rates of all links."""
        return compute_phases(self.waits + self.charged, self.extra_s + slowness * self.link)

    def step_seconds(self, load: StepLoad, slowness: float = 1.0) -> float:
        """The predicted step."""
        return step_of(self.phase_seconds(slowness), load)


def compute_phases(waits: Floats, loads: Floats) -> Floats:
    """Seconds of each phase, `[..., phases]`.

    Args:
        waits: `[..., FULL and LEFT, phases, who]`, seconds of rounds.
        loads: `[..., FULL and LEFT, phases, ends]`, seconds of bytes.
    """
    longest, busiest = waits.max(axis=-1), loads.max(axis=-1, initial=0.0)
    phase_s: Floats = np.maximum(
        longest[..., LEFT, :] + busiest[..., FULL, :], longest[..., FULL, :] + busiest[..., LEFT, :]
    )
    return phase_s


def step_of(phases: Floats, load: StepLoad) -> float:
    """The length of a step from the seconds of its phases."""
    before = float(sum(phases[p] for p in BEFORE))
    after = max(0.0, float(sum(phases[p] for p in AFTER)) - load.overlap_s)
    return load.session_s + before + load.compute_s + after + float(phases[NEW_VALUES])


def steps_of(phases: Floats, load: StepLoad) -> Floats:
    """Like `step_of`, for many steps: `[n, phases]` to `[n]`."""
    before = phases[:, list(BEFORE)].sum(axis=1)
    after = np.maximum(0.0, phases[:, list(AFTER)].sum(axis=1) - load.overlap_s)
    step_s: Floats = load.session_s + before + load.compute_s + after + phases[:, NEW_VALUES]
    return step_s


def timeline(totals: Totals, load: StepLoad) -> tuple[Phase, ...]:
    """The phases of a step with non-zero time."""
    topology, seconds = totals.pricing.topology, totals.phase_seconds()
    phases, now = [], 0.0

    def then(name: str, lasts_s: float, host: int | None = None) -> None:
        nonlocal now
        if lasts_s > 0:
            phases.append(Phase(name, now, now + lasts_s, host))
        now += lasts_s

    then(SESSION, load.session_s)
    for phase in BEFORE:
        then(PHASES[phase], float(seconds[phase]), _binding(totals, topology, phase))
    then(COMPUTE, load.compute_s)
    computed, now = now, now - min(load.overlap_s, load.compute_s)
    for phase in AFTER:
        then(PHASES[phase], float(seconds[phase]), _binding(totals, topology, phase))
    now = max(now, computed)
    then(PHASES[NEW_VALUES], float(seconds[NEW_VALUES]), _binding(totals, topology, NEW_VALUES))
    return tuple(phases)


def _binding(totals: Totals, topology: Topology, phase: int) -> int | None:
    """The host whose link is busiest; None on one host, where no link is."""
    if len(topology.layout.hosts) < 2 or phase in (MERGE_IDS, MERGE_GRADIENTS) or not totals.link[FULL, phase].any():
        return None
    loads = totals.extra_s[phase] + totals.link[FULL, phase]
    return topology.ends[int(loads.argmax())][0].host
