"""Calibrations of emulated hosts."""

import pytest

from ops.lab import Lab
from parallax.cluster.profiles import OPERATIONS, cluster_profile_from_json

pytestmark = pytest.mark.timeout(300)

FAST, SLOW = 25_000_000, 5_000_000


@pytest.fixture
def uneven(lab):
    """Three hosts, one at a fifth of the others' rate; where there can be a lab."""
    with Lab(3, FAST, {"host2": SLOW}) as uneven:
        yield uneven


@pytest.mark.slow
def test_a_slow_host_is_seen_and_the_others_rates_are_not_its_own(uneven, start, tmp_path):
    file = tmp_path / "cluster.json"
    words = ("-m", "parallax.entry.cli", "calibrate", "-r", uneven.resource_file(1), "-o", file, "--quick")
    status, stdout, stderr = start(*words, cluster=uneven).finish()
    assert status == 0, stderr
    profile = cluster_profile_from_json(file.read_text())
    assert [host.name for host in profile.hosts] == list(uneven.names)
    rates = [rate for host in profile.hosts for rate in (host.out_bytes_per_s, host.in_bytes_per_s)]
    # Wide bounds: a busy machine slows what it emulates.
    assert all(0.6 * FAST < rate < 1.1 * FAST for rate in rates[:4]) and all(
        0.6 * SLOW < rate < 1.1 * SLOW for rate in rates[4:]
    ), stdout
    assert sorted(profile.across) == sorted(OPERATIONS) and profile.within == {}
    for operation, line in profile.across.items():
        assert 1e6 / SLOW <= line.seconds(3, 1e6, SLOW) + 1e-9 and line.seconds(3, 1, SLOW) > 0, operation
        assert line.samples >= 8 and min(line.base_s, line.per_peer_s, line.byte_s) >= 0, operation


@pytest.mark.slow
def test_islands_are_measured_within_and_between(lab, start, tmp_path):
    islands, file = ("a", "a", "b", "b"), tmp_path / "cluster.json"
    with Lab(4, FAST, islands=islands, between_bytes_per_s=SLOW) as four:
        resource = four.resource_file(1, islands=islands)
        words = ("-m", "parallax.entry.cli", "calibrate", "-r", resource, "-o", file, "--quick")
        status, stdout, stderr = start(*words, cluster=four).finish()
    assert status == 0, stderr
    profile = cluster_profile_from_json(file.read_text())
    sends = [host.out_bytes_per_s for host in profile.hosts]  # a busy machine receives late what one host alone sends
    assert len(sends) == 4 and all(0.6 * FAST < rate < 1.1 * FAST for rate in sends), stdout
    assert 0.4 * SLOW < profile.between_bytes_per_s < 1.1 * SLOW, stdout
    assert [sums.workers_by_host for sums in profile.sums] == [(1, 1)] and "Between them: " in stdout


@pytest.mark.rotates
def test_a_host_that_is_down_ends_a_calibration_and_leaves_no_profile(lab, start, tmp_path):
    file = tmp_path / "resource.yaml"
    file.write_text(f'hosts: [host0, host7]\nssh: {{agent: "{lab.agent}"}}\n')
    output = tmp_path / "cluster.json"
    status, stdout, stderr = start("-m", "parallax.entry.cli", "calibrate", "-r", file, "-o", output).finish()
    assert status != 0 and "host7" in stderr, stderr
    assert stdout == "" and not output.exists()
