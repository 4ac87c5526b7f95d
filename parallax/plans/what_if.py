"""A job on clusters of other sizes, as predicted: what was asked, and what came out.

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
    """What is to be different from what was measured.

    Attributes:
        hosts: the numbers of hosts to look at, rising.
        workers_per_host: None for as many as the resource file says, or one.
        link_bytes_per_s: the rate of every link, both ways; None for the measured rates.
        links: all rates times this.
        batch: examples of a worker in a step, times this.
        vocabulary: rows of every variable that is looked up by row, times this.
        width: elements of each of these rows, times this.

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
    """Reads what `WhatIf.to_text` wrote.

    Raises:
        ConfigError: when it is something else.
    """
    try:
        raw = json.loads(text)
        return WhatIf(**{**raw, "hosts": tuple(raw["hosts"])})
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ConfigError(f"A what-if must be as `parallax simulate` writes it: {shown(repr(error))}.") from error


@dataclass(frozen=True, slots=True)
class Size:
    """One number of hosts.

    Attributes:
        hosts: how many.
        workers: of all of them.
        step_s: predicted step; None when it is unknown.
        throughput: batches a second of all workers, a batch being what one worker had in a step when it was measured;
            None when compute was not measured.
        efficiency: throughput of a worker here, divided by that of a worker at the smallest size; None likewise, and
            beyond the smallest size where no links were measured.
        memory_bytes: of the processes of the fullest host.
        sent_bytes: that a worker sends in a step.
        routes: (route, how many variables), of those with one.
        changes: what is planned otherwise than at the size before, one sentence each.
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
    """From how many workers on the exchange of a layer's gradients takes longer than its compute.

    Attributes:
        name: of the variable.
        value_bytes: of it.
        compute_s: its share of a worker's compute.
        exchange_s: seconds of an all-reduce of its gradient alone, at the largest size.
        workers: the balance point: as many workers or more; None when no number of workers reaches it.
    """

    name: str
    value_bytes: int
    compute_s: float
    exchange_s: float
    workers: int | None


@dataclass(frozen=True, slots=True)
class Simulation:
    """What is predicted of a graph on clusters of several sizes.

    Attributes:
        graph: fingerprint.
        what_if: what was asked.
        sizes: in the order of the hosts.
        balances: of the dense layers, the largest first; empty when compute was not measured.
        assumptions: what the figures rest on, one sentence each.
        profiles: that were used.
    """

    graph: str
    what_if: WhatIf
    sizes: tuple[Size, ...]
    balances: tuple[Balance, ...]
    assumptions: tuple[str, ...]
    profiles: tuple[ProfileUsed, ...]
