"""A Keras `fit` whose workers are on other hosts than its script."""

import json
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from tests.lab.conftest import SCRIPTS
from tests.lab.test_jobs import send_garbage

pytestmark = pytest.mark.timeout(300)


def found_in(finished):
    status, stdout, stderr = finished
    assert status == 0 and stdout.count("BEFORE") == 1, stdout + stderr
    return json.loads(next(line for line in stdout.splitlines() if line.startswith("FOUND "))[6:])


def test_a_fit_drives_workers_of_another_host_lets_no_stranger_in_and_survives_a_worker(lab, start, tmp_path):
    file = tmp_path / "resource.yaml"
    file.write_text(f'hosts: [{{address: 10.77.0.2, workers: 2}}]\nssh: {{agent: "{lab.agent}"}}\nports: 20000-20100\n')
    expected = found_in(start(SCRIPTS / "fit_elsewhere.py", "none", tmp_path, "plain").finish())
    job = start(SCRIPTS / "fit_elsewhere.py", file, tmp_path)
    job.wait_for("WAITS")
    driver = [one for one in lab.listening("host0") if 20000 <= one.port <= 20100]
    assert len(driver) == 1 and driver[0].address == lab.address("host0"), lab.listening("host0")
    send_garbage(lab)
    os.kill(job.pid("host1", "parallax.runtime.worker.main"), signal.SIGKILL)
    (tmp_path / "go").touch()
    found = job.finish()
    assert "Restart 1 of 1" in found[2], str(job)
    for one, other in zip(tf.nest.flatten(found_in(found)), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
