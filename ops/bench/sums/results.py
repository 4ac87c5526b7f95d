"""The results of the benchmark of all-reduces: seconds by method and size, the choice, and the model's error.

Every other size is held out: methods are chosen, and the model is fitted, by the remaining sizes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parallax.cluster.profiles import HostProfile, SumTimings
from parallax.plans.sum_methods import HALVING, RING, method_for, rules_text, sent_out_of_host, stated_rules
from parallax.report.text import pluralize
from parallax.runtime.calibrate.least_squares import TimedSum, sums_of

SIZES = tuple(1 << power for power in range(6, 23))
"""64 B to 4 MB."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one layout.

    Attributes:
        workers_by_host: number of workers of each host.
        rate_bytes_per_s: rate of each host's link; None on one host.
        rounds: method -> size -> for each round, the seconds of an all-reduce and the busiest host's sent bytes.
    """

    workers_by_host: tuple[int, ...]
    rate_bytes_per_s: int | None
    rounds: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the messages in bytes, ascending."""
        return tuple(sorted(next(iter(self.rounds.values()))))

    def seconds(self, method: str, size: int) -> float:
        """Returns the median seconds over the rounds."""
        return statistics.median(seconds for seconds, _ in self.rounds[method][size])

    def fastest(self, size: int) -> str:
        """Returns the fastest method."""
        return min(self.rounds, key=lambda method: self.seconds(method, size))

    def sent(self, method: str, size: int) -> float:
        """Returns the busiest host's sent bytes, headers included, over those of the message."""
        return statistics.median(sent for _, sent in self.rounds[method][size]) / size

    @property
    def table(self) -> SumTimings:
        """The timings that a calibration would have, from the sizes that are not held out."""
        kept = self.sizes[::2]
        samples = [
            TimedSum(self.workers_by_host, method, size, self.seconds(method, size))
            for size in kept
            for method in self.rounds
        ]
        rate = float(self.rate_bytes_per_s or 0)
        return sums_of(samples, [HostProfile(f"host{n}", 1, 1, rate, rate) for n, _ in enumerate(self.workers_by_host)])


def lines_of(measured: Measured) -> list[str]:
    """Returns a layout's table, its crossovers, and the errors at held-out sizes."""
    methods, table = list(measured.rounds), measured.table
    rules = table.rules.rules
    lines = [f"### {_name(measured)}", ""]
    heads = ["bytes", *(f"{method} ms" for method in methods), "choice", "MB/s", "sent", "x ring", "x halving"]
    lines += [_row([*heads, "regret", "model error"]), _row(["---:"] * (len(heads) + 2))]
    regrets, errors = [], []
    for place, size in enumerate(measured.sizes):
        taken = method_for(rules, size)
        took_s = measured.seconds(taken, size)
        cells = [str(size), *(f"{1e3 * measured.seconds(method, size):.3f}" for method in methods), taken]
        cells += [f"{1e-6 * _bus_bytes(measured, size) / took_s:.1f}", f"{measured.sent(taken, size):.3f}"]
        cells += [f"{took_s / measured.seconds(method, size):.2f}" for method in (RING, HALVING)]
        if place % 2:
            regrets.append(took_s / measured.seconds(measured.fastest(size), size) - 1)
            errors.append(_predict(measured, table, taken, size) / took_s - 1)
            cells += [f"{regrets[-1]:.1%}", f"{errors[-1]:+.1%}"]
        lines.append(_row([*cells, *[""] * (len(heads) + 2 - len(cells))]))
    lines += ["", f"Choice: {rules_text(rules)}. Without a profile: {rules_text(stated_rules(table.workers_by_host))}."]
    if regrets:
        sizes = [abs(error) for error in errors]
        lines.append(
            f"At {pluralize(len(regrets), 'held-out size')} the choice takes {statistics.mean(regrets):.1%} longer "
            f"than the fastest (mean; at most {max(regrets):.1%}), and the model's error is "
            f"{statistics.median(sizes):.1%} (median; at most {max(sizes):.1%})."
        )
    return lines


def _predict(measured: Measured, table: SumTimings, method: str, size: int) -> float:
    counts = measured.workers_by_host
    members = len(counts) if len(counts) > 1 else counts[0]
    part = sent_out_of_host(counts, method) if len(counts) > 1 else 2 * (members - 1) / members
    return table.line.seconds(members, part * size, measured.rate_bytes_per_s)


def _bus_bytes(measured: Measured, size: int) -> float:
    """Returns the bytes that each worker would send around a ring; over the seconds, NCCL's tests' bus bandwidth."""
    workers = sum(measured.workers_by_host)
    return 2 * (workers - 1) / workers * size


def _name(measured: Measured) -> str:
    counts, rate = measured.workers_by_host, measured.rate_bytes_per_s
    workers = f"{counts[0]} workers each" if len(set(counts)) == 1 else f"{', '.join(map(str, counts))} workers"
    links = "" if rate is None else f", {8e-6 * rate:g} Mbit/s"
    return f"{pluralize(len(counts), 'host')}, {workers}{links}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
