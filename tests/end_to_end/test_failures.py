"""A job in which something goes wrong ends soon, says what and where, and leaves nothing behind."""

import os
import re
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)

SCRIPT = Path(__file__).parent / "scripts" / "failing.py"
RUN = ("-m", "parallax.entry.cli", "run", "--workers", "2", SCRIPT)
END_S = 30.0  # from where it goes wrong; the start of a job may take longer than that on a busy machine


def pid_of(running, rank):
    return int(re.search(r"process (\d+)", running.wait_for(f"rank {rank} is process"))[1])


@pytest.mark.rotates
def test_an_exception_ends_the_job_and_is_shown_with_its_rank(start):
    done = start(*RUN, "raises", cold=True).finish()
    assert done.status == 1, str(done)
    assert "rank 1 failed with exit status 1" in done.stderr, str(done)
    assert done.stderr.count("Traceback (most recent call last)") == 1, str(done)
    of_tensorflow = re.compile(r"absl::InitializeLog|port\.cc:|is deprecated")
    assert not of_tensorflow.search(done.stderr), str(done)
    assert "DataEnded: no line 4711 in the corpus" in done.stderr
    assert 'failing.py", line' in done.stderr and "runpy" not in done.stderr, str(done)


@pytest.mark.slow  # without a job: tests/runtime/worker/test_worker_end.py, test_launch.py
def test_the_exit_status_of_a_rank_is_that_of_the_job(start):
    done = start(*RUN, "exits").finish()
    assert done.status == 3, str(done)
    assert "rank 1 failed with exit status 3" in done.stderr, str(done)


@pytest.mark.rotates
def test_a_killed_worker_ends_the_job(start):
    running = start(*RUN, "is killed")
    os.kill(pid_of(running, 1), signal.SIGKILL)
    done = running.finish(END_S)
    assert done.status == 128 + signal.SIGKILL, str(done)
    assert "rank 1 was killed by SIGKILL" in done.stderr, str(done)


@pytest.mark.rotates
def test_ctrl_c_ends_all(start):
    running = start(*RUN, "is interrupted")
    pid_of(running, 1)
    os.killpg(running.process.pid, signal.SIGINT)
    done = running.finish(END_S)
    assert done.status == 130, str(done)
    assert "SIGINT" in done.stderr, str(done)


@pytest.mark.rotates
def test_workers_that_drift_apart_end_the_job_with_one_message(start):
    done = start("-m", "parallax.entry.cli", "run", "--workers", "2", SCRIPT.with_name("guarded.py"), "broken").finish()
    assert done.status == 1, str(done)
    said = "parallax: Variable 'w' (float32 [3, 1]) must be equal on all workers, but differs after step 1"
    assert done.stderr.count(said) == 1 and "all good" not in done.stdout, str(done)
    assert "guarded.py:" in done.stderr.partition("The job was ended.")[2], str(done)


@pytest.mark.rotates
@pytest.mark.parametrize("route", ["alltoall", "allgather", "ps"])
def test_an_id_outside_its_table_is_named_with_table_rank_and_step(start, route):
    done = start(*RUN, "asks for row 11", route).finish()
    assert done.status == 1, str(done)
    assert "rank 1 failed" in done.stderr
    named = "emb has rows 0 to 10, got 11. Rank 1 looked that up in step 4, and the table has 11 rows."
    assert named in done.stderr, str(done)


@pytest.mark.rotates
def test_a_fetch_that_one_rank_runs_alone_is_named(start):
    running = start(*RUN, "evaluates alone")
    pid_of(running, 0)
    done = running.finish(END_S)
    assert done.status == 124, str(done)
    stall = done.stderr.partition("the job stalled")[2]
    # The one that has waited longer comes first, and they began within a few milliseconds.
    assert "scores:0" in stall and "Adam" in stall, str(done)
    assert re.search("waiting: rank [01]\n.*missing: rank [01]: waits in another fetch", stall), str(done)
    assert "every rank must fetch" in stall and "scores:0 (by " in stall, str(done)


@pytest.mark.rotates
def test_a_rank_that_catches_a_failed_run_and_goes_on_is_named(start):
    done = start(*RUN, "catches").finish()
    assert done.status == 124, str(done)
    apart = "rank 1: is a run ahead: it caught an error and continued (run 4: InvalidArgumentError"
    behind = "rank 0: is a run behind, in one that failed on the waiting ranks (run 4: InvalidArgumentError"
    assert apart in done.stderr or behind in done.stderr, str(done)


@pytest.mark.rotates
def test_a_rank_that_ends_its_loop_early_is_named(start):
    running = start(*RUN, "ends its loop")
    pid_of(running, 0)
    done = running.finish(END_S)
    assert done.status == 124, str(done)
    assert "fetch: Adam" in done.stderr and "waiting: rank 0" in done.stderr, str(done)
    assert "missing: rank 1: ended its loop after 3 runs" in done.stderr, str(done)


@pytest.mark.slow  # the same report as of a rank that ends its loop, with no run
def test_a_rank_that_never_calls_parallel_run_is_named(start):
    done = start(*RUN, "leaves early").finish()
    assert done.status == 124, str(done)
    assert "fetch: parallel_run" in done.stderr and "missing: rank 1: ended its loop after 0 runs" in done.stderr, done
