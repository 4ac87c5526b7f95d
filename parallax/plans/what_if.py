"""Predictions for a job on clusters of other sizes: the requested sizes, and the results.

Frozen values; parallax/analysis/whatif/simulate.py computes them.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

from parallax.base.errors import ConfigError
from parallax.base.strict import shown
from parallax.plans.prediction import Phase, ProfileUsed


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The differences of a hypothetical job from the measured one.

    Attributes:
        hosts: the numbers of hosts to predict, ascending.
        workers_per_host: None for the number in the resource file, or one.
        link_bytes_per_s: the rate of every link, in both directions; None for the measured rates.
        links: factor of all rates.
        batch: factor of a worker's examples in a step.
        vocabulary: factor of the rows of every variable that is looked up by row.
        width: factor of the elements of each of these rows.

    Raises:
        ConfigError: when a value breaks a rule.
    """

    hosts: tuple[int, ...]
    workers_per_host: int | None = None
    link_bytes_per_s: float | None = None
    links: float = 1.0
    batch: float = 1.0
    vocabulary: float = 1.0
    width: float = 1.0

    def __post_init__(self) -> None:
        if not self.hosts or list(self.hosts) != sorted(set(self.hosts)) or self.hosts[0] < 1:
            given = ",".join(map(str, self.hosts))
            raise ConfigError(
                "--hosts must be increasing numbers of hosts of at least 1, such as 8,64,512, got "
                f"{given or 'nothing'}."
            )
        factors = {"--scale-links": self.links, "--batch": self.batch, "--vocabulary": self.vocabulary}
        for name, value in {**factors, "--width": self.width}.items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a factor above 0, such as 2 or 0.5, got {value:g}.")
        if self.link_bytes_per_s is not None and not self.link_bytes_per_s > 0:
            raise ConfigError("--link-rate must be above 0, for example 10gbit.")
        if self.link_bytes_per_s is not None and self.links != 1:
            raise ConfigError("--link-rate and --scale-links cannot be combined. Give one of them.")

    def to_text(self) -> str:
        """One line, for an environment variable."""
        return json.dumps(asdict(self))


def what_if_from(text: str) -> WhatIf:
    """Parses the output of `WhatIf.to_text`.

    Raises:
        ConfigError: when the text has another format.
    """
    try:
        raw = json.loads(text)
        return WhatIf(**{**raw, "hosts": tuple(raw["hosts"])})
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ConfigError(f"A what-if must be as `parallax simulate` writes it: {shown(repr(error))}.") from error


@dataclass(frozen=True, slots=True)
class Size:
    """The prediction for one number of hosts.

    Attributes:
        hosts: the number of hosts.
        workers: the number of workers on all of them.
        step_s: predicted step; None when it is unknown.
        throughput: batches a second of all workers, a batch being what one worker had in a step when it was measured;
            None when compute was not measured.
        efficiency: throughput of a worker at this size, divided by that of a worker at the smallest size; None
            when compute was not measured, and beyond the smallest size where no links were measured.
        memory_bytes: of the processes of the host with the largest use.
        sent_bytes: that a worker sends in a step.
        routes: (route, number of variables), of those with one.
        changes: differences of the plan from that of the preceding size, one sentence each.
        phases: of the step.
        gap: as in `Prediction`.
        unknown: why the step is unknown; empty when it is not.
    """

    hosts: int
    workers: int
    step_s: float | None
    throughput: float | None
    efficiency: float | None
    memory_bytes: int
    sent_bytes: int
    routes: tuple[tuple[str, int], ...]
    changes: tuple[str, ...]
    phases: tuple[Phase, ...]
    gap: float | None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """The number of workers from which the exchange of a layer's gradients takes longer than its compute.

    Attributes:
        name: of the variable.
        value_bytes: of it.
        compute_s: its share of a worker's compute.
        exchange_s: seconds of an all-reduce of its gradient alone, at the largest size.
        workers: the balance point: at this number of workers or more; None when no number of workers reaches it.
    """

    name: str
    value_bytes: int
    compute_s: float
    exchange_s: float
    workers: int | None


@dataclass(frozen=True, slots=True)
class Simulation:
    """The predictions for a graph on clusters of several sizes.

    Attributes:
        graph: fingerprint.
        what_if: the request.
        sizes: in the order of the hosts.
        balances: of the dense layers, the largest first; empty when compute was not measured.
        assumptions: the assumptions behind the figures, one sentence each.
        profiles: that were used.
    """

    graph: str
    what_if: WhatIf
    sizes: tuple[Size, ...]
    balances: tuple[Balance, ...]
    assumptions: tuple[str, ...]
    profiles: tuple[ProfileUsed, ...]
