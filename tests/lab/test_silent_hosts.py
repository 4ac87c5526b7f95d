"""Hosts from which no packet comes back, as behind a firewall, reached by ssh itself."""

import pytest

from ops.lab.links import address

pytestmark = pytest.mark.timeout(300)

TRAIN = """
import parallax, tensorflow.compat.v1 as tf
with tf.Graph().as_default() as graph:
    w = tf.get_variable("w", [4], initializer=tf.ones_initializer())
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(w)))
parallax.parallel_run(graph)
"""


@pytest.fixture
def silent(lab):
    """Addresses whose packets are lost: host0 knows where to send them, and nobody is there."""
    found = [address(number) for number in (200, 201)]
    for one in found:
        words = ["ip", "neighbour", "replace", one, "lladdr", "02:00:00:00:00:99", "dev", "eth0"]
        assert lab.run_on("host0", words).returncode == 0
    yield found
    for one in found:
        lab.run_on("host0", ["ip", "neighbour", "delete", one, "dev", "eth0"])


@pytest.mark.rotates
def test_silent_hosts_are_named_after_a_while_and_end_the_start(lab, start, silent, tmp_path):
    script, resource = tmp_path / "train.py", tmp_path / "hosts"
    script.write_text(TRAIN)
    resource.write_text("\n".join(["localhost slots=1", *(f"{one} slots=1" for one in silent)]) + "\n")
    names = ", ".join(silent)
    for words, status, ending in (
        (("run", "-r", resource, "--host-timeout-s", "8", script), 1, f"hosts {names} did not respond within 8 s"),
        (("plan", "-r", resource, script), 0, "Plan for 3 workers"),
        (("doctor", "-r", resource, "--host-timeout-s", "8"), 1, "reached: did not respond within 8 s"),
    ):
        found, stdout, stderr = start("-m", "parallax.entry.cli", *words).finish()
        assert found == status and ending in stdout + stderr, f"{stdout}{stderr}"
        is_told = f"parallax: hosts {names} have not responded for 5 s. Waiting for at most 8 s" in stderr
        assert is_told == (words[0] != "plan"), stderr
