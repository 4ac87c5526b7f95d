"""Jobs with TensorFlow servers, as a user starts them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(300)

SCRIPTS = Path(__file__).parent / "scripts"

MACHINES = "hosts:\n- address: localhost\n  workers: {workers}\n  servers: 2\n"
RUN = ("-m", "parallax.entry.cli", "run", "-r", "machines")
TOLERANCE = 1e-5  # float32 sums in another order


@pytest.fixture
def counted(start, write):
    """Counts with some workers, the last of them slow."""

    def counted(optimizer, workers=4, steps=200):
        write("machines", MACHINES.format(workers=workers))
        done = start(*RUN, SCRIPTS / "counting.py", optimizer, steps).finish(240)
        assert done.status == 0, str(done)
        assert all("all good" in done.lines(rank) for rank in range(workers)), str(done)
        return done

    return counted


@pytest.mark.rotates
@pytest.mark.parametrize(("workers", "steps"), [(3, 80), pytest.param(4, 200, marks=pytest.mark.slow)])
def test_what_workers_count_is_exact_and_nobody_waits_for_the_slow_one(counted, workers, steps):
    done = counted("count", workers, steps)
    assert "3 partitions on 2 servers" in done.stdout, str(done)
    found = [re.search(rf"{steps} steps done, (\d+) by all", "\n".join(done.lines(rank))) for rank in range(workers)]
    so_far = [int(one.group(1)) for one in found]
    # When the last of the fast workers had done its steps, the slow one had not done half of its own.
    assert so_far[-1] == workers * steps and max(so_far[:-1]) < (workers - 1) * steps + steps // 2, so_far
    print(f"steps of all when each worker had done its {steps}: {so_far}")


@pytest.mark.slow
def test_adam_trains_without_waiting(counted):
    counted("adam")


@pytest.mark.rotates
def test_a_slow_worker_delays_others_once_they_are_as_far_ahead_as_they_may_be(start, write, tmp_path):
    write("machines", MACHINES.format(workers=3))
    done = start(*RUN, SCRIPTS / "bounded.py", tmp_path / "kept", 4, 25).finish()
    assert done.status == 0, str(done)
    assert "at most 4 runs apart, by servers" in done.stdout, str(done)
    found = [re.search(r"at most (\d+) runs ahead after 25", "\n".join(done.lines(rank))) for rank in range(3)]
    assert max(int(one.group(1)) for one in found) == 4, str(done)  # worker 0 also writes checkpoints, and may be slow
    assert len(list((tmp_path / "kept").glob("*.index"))) > 2, str(done)  # written while workers waited


@pytest.fixture
def trained(start, write, tmp_path):
    """What two workers trained with some settings."""

    def trained(steps, **settings):
        write("machines", MACHINES.format(workers=2))
        done = start(*RUN, SCRIPTS / "trained.py", json.dumps(settings), tmp_path / "values.npz", steps).finish()
        assert done.status == 0, str(done)
        with np.load(tmp_path / "values.npz") as values:
            return done, dict(values)

    return trained


def check(found, wanted):
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def routes(done):
    """The route of each variable in the plan that was printed."""
    return {
        name: route
        for name, route in re.findall(r"^(emb|weights) .* (alltoall|allgather|allreduce|ps) ", done.stdout, re.M)
    }


def in_one_process(start, steps, workers=2):
    """What the script's variables are after some steps on the global batch, in float64."""
    emb, weights = start["start"].astype(np.float64), start["start_weights"].astype(np.float64)
    for step in range(steps):
        draws = [np.random.default_rng([step, worker]) for worker in range(workers)]
        ids, labels = map(
            np.concatenate, zip(*((d.integers(0, 11, 6), d.normal(size=(6, 1))) for d in draws), strict=True)
        )
        by_product = 2 * (emb[ids] @ weights - labels) / len(ids)
        by_weights, by_rows = emb[ids].T @ by_product, by_product @ weights.T
        np.subtract.at(emb, ids, 0.5 * by_rows)
        weights -= 0.5 * by_weights
    return {"emb": emb, "weights": weights}


@pytest.mark.rotates
def test_variables_on_servers_are_trained_as_those_of_one_process(trained):
    done, found = trained(4, run_option="PS", partitions={"emb": 3, "weights": 2})
    assert routes(done) == {"emb": "ps", "weights": "ps"}, str(done)
    check(found, in_one_process(found, 4))


@pytest.mark.slow  # both kinds of routes at once: a job of tests/equality has them
def test_one_variable_on_servers_and_one_by_all_reduce_are_trained_as_those_of_one_process(trained):
    done, mixed = trained(4, routes={"emb": "ps"})
    assert routes(done) == {"emb": "ps", "weights": "allreduce"}, str(done)
    check(mixed, in_one_process(mixed, 4))


@pytest.mark.slow
def test_sums_of_sparse_gradients_are_the_same_on_all_routes(trained):
    """After one step of two workers a sum has moved rows twice as far as a mean; dense gradients stay means."""
    _, mean = trained(1, routes={"emb": "alltoall"})
    wanted = {**mean, "emb": mean["start"] + 2 * (mean["emb"] - mean["start"])}
    for route in ("alltoall", "allgather", "allreduce", "ps"):
        done, found = trained(1, routes={"emb": route}, average_sparse=False)
        assert routes(done)["emb"] == route and "summed over the workers" in done.stdout, str(done)
        check(found, wanted)
