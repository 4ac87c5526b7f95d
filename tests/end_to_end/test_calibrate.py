"""A calibration of this machine, as a user starts it."""

import pytest

from parallax.cluster.profiles import OPERATIONS, cluster_profile_from_json


@pytest.mark.slow
def test_two_workers_of_this_machine_are_measured_within_their_host(start, tmp_path):
    file = tmp_path / "cluster.json"
    done = start("-m", "parallax.entry.cli", "calibrate", "--workers", 2, "-o", file, "--quick").finish()
    assert done.status == 0, done
    profile = cluster_profile_from_json(file.read_text())
    assert [host.name for host in profile.hosts] == ["localhost"]
    assert profile.hosts[0].cores > 0 and profile.hosts[0].memory_bytes > 0
    assert (profile.across, sorted(profile.within), profile.shared_cores) == ({}, sorted(OPERATIONS), None)
    assert all(0 < line.seconds(2, 1 << 20, None) < 60 for line in profile.within.values())
    assert all(f"within a host {operation}" in done.stdout for operation in OPERATIONS), done
    assert "measuring: 100%" in done.stderr, done
    assert [path.name for path in tmp_path.iterdir() if "cluster.json" in path.name] == ["cluster.json"]
