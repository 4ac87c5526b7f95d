"""Formats the output of `parallax calibrate`: every host's link, every operation's fit, and the prediction errors."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from parallax.cluster.profiles import ClusterProfile, SumTimings
from parallax.plans.sum_methods import METHODS, method_for
from parallax.report.text import pluralize
from parallax.runtime.calibrate.least_squares import TimedPoint, errors_of
from parallax.runtime.calibrate.points import ACROSS, WITHIN

LARGE_ERROR = 0.25
"""A larger held-out error causes a warning: routes between which a plan chooses often differ by less."""

_WHERE = {ACROSS: "across hosts", WITHIN: "within a host"}


def profile_table(profile: ClusterProfile, held_out: Sequence[TimedPoint] = ()) -> str:
    """Formats the profile as lines of text.

    Args:
        profile: the fitted profile.
        held_out: measurements excluded from the fit; their errors are shown, with a warning if they are large.
    """
    lines = [*_hosts(profile), ""]
    errors = errors_of(profile, held_out)
    form = "{:<13} {:<10} {:>9} {:>12} {:>15} {:>8} {:>9} {:>9}"
    lines.append(
        form.format("where", "operation", "base ms", "per peer ms", "bandwidth MB/s", "overlap", "residual", "held out")
    )
    for where, fitted in ((ACROSS, profile.across), (WITHIN, profile.within)):
        for operation, line in fitted.items():
            own = errors.get((where, operation))
            lines.append(
                form.format(
                    _WHERE[where],
                    operation,
                    f"{line.base_s * 1e3:.3f}",
                    f"{line.per_peer_s * 1e3:.3f}",
                    f"{1e-6 / line.byte_s:,.1f}" if line.byte_s else "unlimited",
                    f"{line.overlap:.2f}",
                    f"{line.residual:.1%}",
                    f"{_typical(own):.1%}" if own else "",
                )
            )
    lines += [
        "",
        "Bandwidth: of copies and waits, without the link. Held out: the error for sizes that were not fitted.",
    ]
    if poor := [key for key, own in errors.items() if _typical(own) > LARGE_ERROR]:
        names = ", ".join(
            f"{operation} {_WHERE[where]} ({_typical(errors[where, operation]):.0%})" for where, operation in poor
        )
        lines.append(
            f"WARNING: predictions are off by more than {LARGE_ERROR:.0%} for {names}. Do not rely on seconds and "
            "routes of plans with this profile. Measure again while nothing else runs there, and without --quick."
        )
    if len(profile.hosts) == 2:
        lines.append("With two hosts the latency per peer is part of the base: the fit is valid for two hosts only.")
    lines += [line for sums in profile.sums for line in sum_lines(sums)]
    if profile.shared_cores is not None:
        lines.append(f"Hosts share processor cores: {profile.shared_cores:.2f} compute at once as fast as one alone.")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def sum_lines(sums: SumTimings) -> list[str]:
    """A team's sums: the milliseconds of each method, and which is taken."""
    methods = [method for method in METHODS if method in sums.seconds]
    who = " + ".join(map(str, sums.workers_by_host))
    lines = ["", f"Sums among {who} workers of {pluralize(len(sums.workers_by_host), 'host')}, ms by method:"]
    lines.append("".join(f"{word:>10}" for word in ("bytes", *methods)) + "  taken")
    for place, size in enumerate(sums.sizes_bytes):
        known = [sums.seconds[method][place : place + 1] for method in methods]
        cells = [f"{1e3 * one[0]:.3f}" if one else "-" for one in known]
        used_method = method_for(sums.rules.rules, size)
        lines.append("".join(f"{word:>10}" for word in (str(size), *cells)) + f"  {used_method}")
    return lines


def _typical(errors: Sequence[float]) -> float:
    """The typical error: the median of the absolute errors."""
    return statistics.median(map(abs, errors))


def _hosts(profile: ClusterProfile) -> list[str]:
    width = max(len("host"), *(len(host.name) for host in profile.hosts))
    lines = [f"{'host':<{width}} {'cores':>5} {'memory GB':>10} {'sends mbit/s':>13} {'receives mbit/s':>16}"]
    for host in profile.hosts:
        rates = [f"{8e-6 * rate:.1f}" if rate else "-" for rate in (host.out_bytes_per_s, host.in_bytes_per_s)]
        memory = f"{host.memory_bytes / 1e9:.1f}"
        lines.append(f"{host.name:<{width}} {host.cores:>5} {memory:>10} {rates[0]:>13} {rates[1]:>16}")
    if profile.between_bytes_per_s is not None:
        lines.append(f"Rates are within islands. Between them: {8e-6 * profile.between_bytes_per_s:.1f} mbit/s.")
    return lines
