"""What liveness and the fence cost, as far as it can be told without running a job."""

import subprocess
import sys

from ops.bench.safety.command import Ratios, interval_of_median

PROGRAM = """
from ops.bench.safety.off import turn_off
from parallax.entry import api
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher import launch
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.mpirun import Launcher
from parallax.runtime.worker import heartbeat
seen = []
api.launch = lambda job: seen.append(job) or 0
job = Job(("train.py",), local_cluster(2, ""))
turn_off("liveness")
api.launch(job)
assert min(seen[0].limits.beat_s, seen[0].limits.unheard_s, heartbeat.LIMITS.beat_s) > 1e7
launcher = Launcher("mpirun", "python", "/", has_library=True)
secret = lambda: [name for name in launch.mpirun_environment(job, "a", "b", launcher) if "SECRET" in name]
assert secret()
turn_off("fence")
assert not secret()
"""


def test_the_median_lies_between_the_ranks_that_the_binomial_distribution_gives():
    assert interval_of_median(range(1, 21)) == (6, 15)
    assert interval_of_median(range(1, 6)) == (1, 5)
    assert str(Ratios((0.5, 1.0, 1.5))).startswith("1.0000 (quartiles 0.5000 and 1.5000;")


def test_a_job_can_be_started_without_liveness_and_without_the_fence():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
