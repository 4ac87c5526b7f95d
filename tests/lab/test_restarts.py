"""A job that loses a host goes on with the others, and takes the host back when it has returned."""

import subprocess

import pytest

from tests.lab.conftest import SCRIPTS

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


def test_a_lost_host_is_left_out_and_taken_back_when_it_answers_again(lab, start, tmp_path):
    job = start(SCRIPTS / "goes_on.py", lab.resource_file(1), tmp_path / "folder", 120)
    job.wait_for("step 5 by 2 workers")
    link = ["ip", "link", "set", "to-host1"]
    subprocess.run(lab.argv_on_bridge([*link, "down"]), check=True)
    try:
        job.wait_for("by 1 workers")
    finally:
        subprocess.run(lab.argv_on_bridge([*link, "up"]), check=True)
    said = job.output()[1]
    assert "parallax: Restart 1 of 3: host host1 is lost" in said, str(job)
    assert "parallax: Left out: host1. The job continues on 1 of 2 hosts." in said, str(job)
    status, stdout, stderr = job.finish()
    assert status == 0, str(job)
    assert "parallax: host1 can be used again: the job saves and continues there too." in stderr, str(job)
    assert "parallax: Taken back: host1. The job continues on 2 of 2 hosts." in stderr, str(job)
    assert stdout.count("Resumed from step") == 2 and "step 119 by 2 workers" in stdout, str(job)
