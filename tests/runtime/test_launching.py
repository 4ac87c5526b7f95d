"""Memory and GPUs of the launching machine, as far as a job needs them; no TensorFlow graph is run."""

import pytest

from parallax.cluster.machines import Cluster, Host, local_cluster
from parallax.errors import LaunchError
from parallax.runtime.launching import check_memory, missing_gpus


def test_more_workers_than_memory_holds_are_refused_with_the_number_that_fits():
    words = "200 workers on this machine need at least 50 GB, 250 MB each before the first variable, and 22 GB are free"
    with pytest.raises(LaunchError, match=rf"{words}. Start at most 88\.$"):
        check_memory(local_cluster(200, ""), 22_000_000_000)
    with pytest.raises(LaunchError, match=r"and 100 MB are free. End what takes it\.$"):
        check_memory(local_cluster(1, ""), 100_000_000)
    check_memory(local_cluster(8, ""), 22_000_000_000)
    check_memory(local_cluster(88, ""), 22_000_000_000)
    check_memory(Cluster((Host("localhost", 2), Host("elsewhere", 200))), 1_000_000_000)


@pytest.mark.parametrize(
    ("gpus_there", "is_cuda_build", "words"),
    [
        (0, True, "localhost is to use GPU 0, 1, and this machine has none: these workers train on processors."),
        (0, False, "localhost is to use GPU 0, 1, and this machine has none: these workers train on processors."),
        (1, True, "localhost is to use GPU 1, and this machine has 1: these workers train on processors."),
        (2, False, "localhost is to use GPU 0, 1, and this TensorFlow is built without CUDA: these workers train on"),
        (2, True, ""),
    ],
)
def test_gpus_that_no_worker_can_use_are_told(tmp_path, gpus_there, is_cuda_build, words):
    for number in range(gpus_there):
        (tmp_path / str(number)).mkdir()
    found = missing_gpus(Cluster((Host("localhost", 2, (0, 1)),)), is_cuda_build, tmp_path)
    assert found.startswith(words) and bool(found) == bool(words)
    assert missing_gpus(Cluster((Host("localhost", 2), Host("elsewhere", 1, (0,)))), is_cuda_build, tmp_path) == ""
