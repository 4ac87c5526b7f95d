"""A Keras `fit` whose workers are on other hosts than its script."""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ops.lab import Lab, why_not
from tests.lab.conftest import SCRIPTS
from tests.lab.test_jobs import send_garbage

pytestmark = pytest.mark.timeout(300)


def found_in(finished):
    status, stdout, stderr = finished
    assert status == 0 and stdout.count("BEFORE") == 1, stdout + stderr
    return json.loads(next(line for line in stdout.splitlines() if line.startswith("FOUND "))[6:])


def worker_on(lab, host):
    """A worker that a fork server of a host has forked."""
    return next(pid for pid in lab.processes(host) if Path(f"/proc/{pid}/comm").read_text().startswith("rank "))


def compare(found, expected):
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("data", ["arrays", "mapped"])
def test_a_fit_drives_workers_of_another_host_lets_no_stranger_in_and_survives_a_worker(lab, start, tmp_path, data):
    file = tmp_path / "resource.yaml"
    file.write_text(f'hosts: [{{address: 10.77.0.2, workers: 2}}]\nssh: {{agent: "{lab.agent}"}}\nports: 20000-20100\n')
    expected = found_in(start(SCRIPTS / "fit_elsewhere.py", "none", tmp_path, "plain", data).finish())
    job = start(SCRIPTS / "fit_elsewhere.py", file, tmp_path, data)
    job.wait_for("WAITS")
    driver = [one for one in lab.listening("host0") if 20000 <= one.port <= 20100]
    assert len(driver) == 1 and driver[0].address == lab.address("host0"), lab.listening("host0")
    send_garbage(lab)
    os.kill(worker_on(lab, "host1"), signal.SIGKILL)
    (tmp_path / "go").touch()
    found = job.finish()
    assert "Restart 1 of 1" in found[2], str(job)
    compare(found_in(found), expected)


@pytest.mark.rotates
def test_a_fit_that_loses_a_host_is_planned_for_the_others_and_goes_on(lab, start, tmp_path):
    expected = found_in(start(SCRIPTS / "fit_elsewhere.py", "none", tmp_path, "plain").finish())
    job = start(SCRIPTS / "fit_elsewhere.py", lab.resource_file(1), tmp_path, "elastic")
    job.wait_for("WAITS")
    link = ["ip", "link", "set", "to-host1"]
    subprocess.run(lab.argv_on_bridge([*link, "down"]), check=True)
    try:
        (tmp_path / "go").touch()
        found = job.finish()
    finally:
        subprocess.run(lab.argv_on_bridge([*link, "up"]), check=True)
    assert "parallax: Left out: host1. The job continues on 1 of 2 hosts." in found[2], str(job)
    assert found[1].count("Plan for 2 workers") == found[1].count("Plan for 1 worker,") == 1, str(job)
    compare(found_in(found), expected)


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=str(why_not()))
def test_a_fit_drives_two_workers_on_each_of_four_hosts(start, tmp_path):
    (tmp_path / "go").touch()
    with Lab(4) as lab:
        file = lab.resource_file(2)
        expected = found_in(start(SCRIPTS / "fit_elsewhere.py", "none", tmp_path, "plain", cluster=lab).finish())
        compare(found_in(start(SCRIPTS / "fit_elsewhere.py", file, tmp_path, cluster=lab).finish()), expected)
