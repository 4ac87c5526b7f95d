"""Memory and GPUs of the launching machine, as far as a job needs them; no TensorFlow graph is run."""

import pytest
import tensorflow as tf

from parallax.base.errors import LaunchError
from parallax.cluster.machines import Cluster, Host, local_cluster
from parallax.runtime.before_launch import check_memory, leave_gpus, missing_gpus


def test_more_workers_than_memory_holds_are_refused_with_the_number_that_fits():
    needed = "200 workers on this machine need at least 50 GB, 250 MB each before the first variable"
    words = f"{needed}, but only 22 GB are free"
    with pytest.raises(LaunchError, match=rf"{words}. Start at most 88\.$"):
        check_memory(local_cluster(200, ""), 22_000_000_000)
    with pytest.raises(LaunchError, match=r"but only 100 MB are free. End the programs that use it\.$"):
        check_memory(local_cluster(1, ""), 100_000_000)
    check_memory(local_cluster(8, ""), 22_000_000_000)
    check_memory(local_cluster(88, ""), 22_000_000_000)
    check_memory(Cluster((Host("localhost", 2), Host("elsewhere", 200))), 1_000_000_000)


@pytest.mark.parametrize(
    ("gpus_there", "is_cuda_build", "words"),
    [
        (0, True, "localhost is to use GPU 0, 1, but this machine has none: these workers train on CPUs."),
        (0, False, "localhost is to use GPU 0, 1, but this machine has none: these workers train on CPUs."),
        (1, True, "localhost is to use GPU 1, but this machine has 1: these workers train on CPUs."),
        (2, False, "localhost is to use GPU 0, 1, but this TensorFlow is built without CUDA: these workers train on"),
        (2, True, ""),
    ],
)
def test_gpus_that_no_worker_can_use_are_told(tmp_path, gpus_there, is_cuda_build, words):
    for number in range(gpus_there):
        (tmp_path / str(number)).mkdir()
    found = missing_gpus(Cluster((Host("localhost", 2, (0, 1)),)), is_cuda_build, tmp_path)
    assert found.startswith(words) and bool(found) == bool(words)
    assert missing_gpus(Cluster((Host("localhost", 2), Host("elsewhere", 1, (0,)))), is_cuda_build, tmp_path) == ""


def test_a_process_leaves_gpus_to_workers_of_its_machine_alone(monkeypatch):
    left = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: left.append((devices, kind)))
    assert not leave_gpus(Cluster((Host("localhost", 2), Host("elsewhere", 1, (0,)))))
    assert left == []
    assert leave_gpus(Cluster((Host("localhost", 1, (0,)),)))
    assert left == [([], "GPU")]


def test_a_process_that_has_begun_to_use_gpus_says_so(monkeypatch):
    def refuse(devices, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    told = []
    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    monkeypatch.setattr("parallax.runtime.before_launch.log.warning", told.append)
    assert leave_gpus(Cluster((Host("localhost", 1, (0,)),)))
    assert len(told) == 1 and "Call parallax.keras.use() right after the imports" in told[0]
