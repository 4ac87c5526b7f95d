"""`parallax doctor` on emulated hosts."""

import json

import pytest

from ops.lab import Lab

pytestmark = pytest.mark.timeout(300)

# In place of the lab's way to hosts: on host1 another NumPy is found first, and the clock is late.
AGENT = """#!/bin/sh
host=$1; shift
[ "$host" = host1 ] && set -- "export PYTHONPATH=FOLDER/other:$PYTHONPATH; $*"
exec AGENT "$host" "$@"
"""
LATE = "import time\nbefore = time.time_ns\ntime.time_ns = lambda: before() - 100 * 10**9\n"


@pytest.mark.rotates
def test_hosts_that_are_well_are_measured_and_others_are_named(lab, start, tmp_path):
    resource = tmp_path / "resource.yaml"
    resource.write_text(f'hosts: [host0, host1]\nports: 20000-20009\nssh: {{agent: "{lab.agent}"}}\n')
    words = ("-m", "parallax.entry.cli", "doctor", "-r", resource)
    status, stdout, stderr = start(*words, "--json", tmp_path / "well.json").finish()
    assert (status, stderr) == (0, ""), f"{stdout}{stderr}"
    assert stdout.splitlines()[0].split()[-3:] == ["ports", "clock", "link"]
    assert stdout.endswith("No problems on 2 hosts.\n"), stdout
    links = [one for one in json.loads((tmp_path / "well.json").read_text())["findings"] if one["check"] == "link"]
    assert [one["host"] for one in links] == ["host0", "host1"] and all("Mbit/s" in one["seen"] for one in links)
    agent, other = tmp_path / "agent", tmp_path / "other"
    agent.write_text(AGENT.replace("AGENT", lab.agent).replace("FOLDER", str(tmp_path)))
    agent.chmod(0o755)
    (other / "numpy-1.0.dist-info").mkdir(parents=True)
    (other / "numpy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    (other / "sitecustomize.py").write_text(LATE)
    resource.write_text(f'hosts: [host0, host1, host7]\nssh: {{agent: "{agent}"}}\n')
    status, stdout, stderr = start(*words).finish()
    assert (status, stderr) == (1, ""), f"{stdout}{stderr}"
    assert "host1, packages: numpy 1.0, but 2." in stdout, stdout
    assert "host1, clock: its clock is 100.0 s behind." in stdout, stdout
    assert "host7, reached: cannot be queried (status 255): lab: there is no host host7." in stdout, stdout
    assert stdout.endswith("3 problems on 3 hosts.\n"), stdout


@pytest.mark.rotates
def test_islands_are_proposed_where_links_differ(lab, start):
    islands = ("a", "a", "b", "b")
    with Lab(4, 25_000_000, islands=islands, between_bytes_per_s=2_500_000) as four:
        words = ("-m", "parallax.entry.cli", "doctor", "-r")
        status, stdout, stderr = start(*words, four.resource_file(1), cluster=four).finish()
        named = start(*words, four.resource_file(1, islands=islands), cluster=four).finish()
    assert status == 0, stderr
    lines = [f"- {{address: host{n}, workers: 1, island: island{n // 2}}}" for n in range(4)]
    assert stdout.splitlines()[-4:] == lines, stdout
    assert "- {address" not in named[1]
