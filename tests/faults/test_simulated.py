"""Simulated jobs with faults. `python -m ops.faults --seed S` shows what happens in one."""

from dataclasses import replace
from multiprocessing import Pool

import pytest

from ops.faults.defects import DEFECTS, changed_source, hunt
from ops.faults.job import LIMITS, launch_within
from ops.faults.simulate_job import simulate, simulate_all
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import JobEnd

SCHEDULES = 10_000
# One of each module; `python -m ops.faults --planted` has all.
SOME = [next(one for one in DEFECTS if one.module == module) for module in dict.fromkeys(d.module for d in DEFECTS)]


@pytest.mark.rotates
def test_every_simulated_job_ends_names_its_first_cause_and_leaves_nothing():
    assert [str(broken) for broken in simulate_all(range(SCHEDULES))] == []


def test_a_seed_replays():
    assert simulate(17, watching=True)[1].trace == simulate(17, watching=True)[1].trace != []


@pytest.mark.parametrize("seed", [14068, 40556])
def test_a_worker_that_hangs_is_named_also_where_a_stall_would_be_told_just_before(seed):
    assert str(simulate(seed)[0]) == "None"


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_planted_defect_changes_the_source_as_it_is(defect):
    assert compile(changed_source(defect), "changed", "exec")


def test_a_training_job_gives_its_end_on_to_who_launched_it():
    job, end = Job(("train.py",), local_cluster(2, "")), JobEnd(3)
    launched = []
    assert launch_within(LIMITS, lambda given: launched.append(given) or end, job) is end
    assert launched == [replace(job, limits=LIMITS)]


def test_planted_defects_are_found():
    with Pool(1, maxtasksperchild=1) as pool:
        assert [str(one.defect) for one in pool.map(hunt, SOME, chunksize=1) if not one.found] == []
