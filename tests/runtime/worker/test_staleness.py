"""Clocks of asynchronous workers on a server: in one process, whose threads are the workers."""

import random
import threading
import time

import pytest
import tensorflow as tf

from parallax.base.errors import ConfigError, PlanError
from parallax.plans.coordinates import locate
from parallax.runtime.worker.session.staleness import RunClocks
from parallax.settings.config import Config
from parallax.settings.modes import resolve_sync

WORKERS, STALENESS, RUNS = 4, 3, 2500


@pytest.fixture(scope="module")
def target():
    server = tf.distribute.Server({"ps": ["localhost:0"]}, "ps", 0)
    return server.target


@pytest.mark.rotates
def test_no_clock_is_further_ahead_than_the_staleness_at_any_of_ten_thousand_pulls(target):
    begun, lock, failures = [0] * WORKERS, threading.Lock(), []

    def work(rank):
        draw, clocks = random.Random(rank), RunClocks(target, None, rank, WORKERS, STALENESS)
        for run in range(1, RUNS + 1):
            while not clocks.may_begin(run):
                time.sleep(0.0005)
            with lock:  # what others have begun is on the server before it is here
                begun[rank] = run
                clocks.begin(run)
                if min(begun) < max(begun) - STALENESS:
                    failures.append((rank, list(begun)))
            if draw.random() < 0.02:
                time.sleep(draw.random() * 0.01 * (5 if rank == 0 else 1))
        clocks.end()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert begun == [RUNS] * WORKERS
    assert not failures


def test_nobody_waits_for_a_worker_that_has_ended(target):
    first, second = (RunClocks(target, None, rank, 12, 1) for rank in (10, 11))
    assert not first.may_begin(3)
    for rank in range(10):
        RunClocks(target, None, rank, 12, 1).end()
    assert not first.may_begin(2)
    second.end()
    second.end()
    assert first.may_begin(3) and first.may_begin(10**6)


@pytest.mark.parametrize(
    ("sync", "settings", "told"),
    [
        ("sometimes", {}, "sync must be True, False or 'bounded', got 'sometimes'"),
        (1, {}, "sync must be True, False or 'bounded', got 1"),
        ("bounded", {}, "sync='bounded' needs a bound, but staleness is None"),
        (True, {"staleness": 4}, "staleness=4 bounds .* but sync is True"),
        (False, {"staleness": 0}, "staleness=0 bounds .* but sync is False"),
        (False, {"stages": 2}, "sync=False .* contradicts stages=2"),
        ("bounded", {"staleness": 2, "search_partitions": True}, "contradicts search_partitions=True"),
        ("bounded", {"staleness": 0, "run_option": "MPI"}, "staleness=0 .* but run_option='MPI' starts no servers"),
        (False, {"replan": "on"}, "sync=False .* contradicts replan='on'"),
    ],
)
def test_contradictions_are_refused_by_the_names_of_both_settings(sync, settings, told):
    with pytest.raises(ConfigError, match=told):
        resolve_sync(sync, Config(**settings))


def test_a_staleness_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="staleness must be an integer of at least 0, or None, got -1"):
        Config(staleness=-1)


def build():
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        table, weights = v1.get_variable("table", [50, 4]), v1.get_variable("weights", [4, 1])
        ids = v1.placeholder(tf.int64, [None], name="ids")
        loss = tf.reduce_mean(tf.nn.embedding_lookup(table, ids) @ weights)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return graph


def test_workers_within_a_bound_need_servers():
    import parallax

    with pytest.raises(PlanError, match=r"\(sync='bounded'\) .* run option MPI starts no servers"):
        parallax.plan(build(), None, "bounded", Config(workers=3, staleness=2, run_option="MPI"))


def test_a_staleness_of_0_is_the_plan_of_synchronous_servers():
    import parallax

    bounded = parallax.plan(build(), None, "bounded", Config(workers=3, staleness=0))
    servers = parallax.plan(build(), None, True, Config(workers=3, run_option="PS"))
    assert bounded.to_json() == servers.to_json()


def test_a_plan_says_how_far_apart_workers_may_be():
    import parallax

    plan = parallax.plan(build(), None, "bounded", Config(workers=3, staleness=4))
    assert "One model: 2 variables data parallel with sharded rows, at most 4 runs apart, by servers." in str(plan)
    assert parallax.plan(build(), None, True, Config(workers=3)).staleness is None
    (group,) = locate(plan)
    assert (group.variables, group.is_plain) == (("table", "weights"), False)
