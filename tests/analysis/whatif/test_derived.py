"""Profiles of hosts that were not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallax.analysis.whatif.derive_profile import NewHost, derive_profile
from parallax.base.errors import PlanError
from parallax.cluster.profiles import AlphaBeta, ClusterProfile
from tests.analysis.measured import MB, equal_hosts, host

NAMES = ("a", "b", "c")


def calibrated(rate: float, base_s: float, overlap: float, shared: float | None = 2.0) -> ClusterProfile:
    lines = {"allreduce": AlphaBeta(base_s, base_s / 2, 0.0, 0.05, 8, overlap)}
    return ClusterProfile(1, (host(0, rate), host(1, rate)), lines, {}, shared)


def new(rate: float | None, number: int = 3) -> list[NewHost]:
    return [NewHost(name, rate) for name in NAMES[:number]]


def test_hosts_are_copies_with_names_and_rates_of_their_own() -> None:
    profile = derive_profile([calibrated(10 * MB, 1e-3, 0.5)], new(20 * MB), shares_cores=False)
    assert [h.name for h in profile.hosts] == list(NAMES)
    assert {(h.out_bytes_per_s, h.in_bytes_per_s) for h in profile.hosts} == {(20 * MB, 20 * MB)}
    assert profile.shared_cores is None
    assert (
        derive_profile([calibrated(10 * MB, 1e-3, 0.5)], new(None), shares_cores=True).hosts[2].out_bytes_per_s
        == 10 * MB
    )


def test_between_two_calibrations_lines_follow_the_seconds_of_a_byte() -> None:
    slow, fast = calibrated(10 * MB, 1e-3, 0.4, 1.8), calibrated(40 * MB, 2e-3, 1.0, 1.9)
    profile = derive_profile([fast, slow], new(20 * MB), shares_cores=True)
    # 100, 50 and 25 ns a byte: two thirds of the way to the fast links
    line = profile.across["allreduce"]
    assert line.base_s == pytest.approx(1e-3 + 2 / 3 * 1e-3) and line.overlap == pytest.approx(0.8)
    assert line.samples == 16
    assert profile.shared_cores == pytest.approx(1.8 + 2 / 3 * 0.1)


@pytest.mark.parametrize(("rate", "base_s"), [(1 * MB, 1e-3), (10 * MB, 1e-3), (40 * MB, 2e-3), (400 * MB, 2e-3)])
def test_beyond_what_was_calibrated_the_nearest_holds(rate: float, base_s: float) -> None:
    found = derive_profile(
        [calibrated(10 * MB, 1e-3, 0.4), calibrated(40 * MB, 2e-3, 1.0)], new(rate), shares_cores=True
    )
    assert found.across["allreduce"].base_s == pytest.approx(base_s)


def test_one_host_tells_nothing_of_links() -> None:
    alone = replace(equal_hosts(1), shared_cores=None)
    with pytest.raises(PlanError, match="host0 alone"):
        derive_profile([alone], new(20 * MB), shares_cores=False)
    with pytest.raises(PlanError, match="at least one"):
        derive_profile([], new(20 * MB), shares_cores=False)
