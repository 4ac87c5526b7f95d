"""The channels of a worker's all-reduces, and what is said where a host cannot share memory."""

from unittest import mock

import pytest
import tensorflow as tf

from parallax.runtime.worker.session import channels


class TeamsOfOneHost:
    """Opens no channel; says why memory cannot be shared, for the first all-reduce alone."""

    def __init__(self, why):
        self.why, self.opened = why, []

    def is_open(self, name):
        return False

    def open_sums(self, name, among, part_bytes, known):
        self.opened.append((name, among))
        return self.why if len(self.opened) == 1 else ""


@pytest.mark.parametrize("why", ["", "4096 bytes of shared memory cannot be had: File too large"])
def test_a_host_that_cannot_share_memory_warns_once_with_the_reason(why):
    graph_def = tf.compat.v1.GraphDef()
    for name in ("b", "a"):
        node = graph_def.node.add(name=name, op=channels.ALL_REDUCE)
        node.attr["among"].s, node.attr["N"].i, node.attr["elements"].i = b"workers", 1, -1
    teams = TeamsOfOneHost(why)
    with mock.patch.object(channels.log, "warning") as warning:
        channels.open_channels(graph_def, teams)
    assert teams.opened == [("a", "workers"), ("b", "workers")]
    said = [f"Workers of this host cannot share memory: {why}. They reduce gradients over MPI, which is slower."]
    assert [call.args[0] for call in warning.call_args_list] == said * bool(why)
