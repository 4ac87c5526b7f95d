"""The idle job of a process: there is one at most, and it ends in time."""

import os
import time

import pytest

from parallax.runtime.launcher.restarts.waiting_job import end_waiting_job, park_job, take_waiting


class Idle:
    """Counts how often it is ended."""

    closed = 0

    def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def ended():
    yield
    end_waiting_job()


def test_the_idle_job_is_taken_once():
    job = Idle()
    park_job(job, 60)
    assert take_waiting() is job and take_waiting() is None
    end_waiting_job()
    assert job.closed == 0


def test_a_second_idle_job_ends_the_first():
    first, second = Idle(), Idle()
    park_job(first, 60)
    park_job(second, 60)
    assert (first.closed, second.closed) == (1, 0)
    end_waiting_job()
    end_waiting_job()
    assert second.closed == 1


def test_an_idle_job_ends_after_its_time_and_one_that_was_taken_does_not():
    taken, left = Idle(), Idle()
    park_job(taken, 0.05)
    assert take_waiting() is taken
    park_job(left, 0.05)
    deadline_s = time.monotonic() + 10
    while not left.closed and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert (taken.closed, left.closed) == (0, 1) and take_waiting() is None


def test_a_forked_process_neither_takes_nor_ends_the_job_of_its_parent():
    job = Idle()
    park_job(job, 60)
    child = os.fork()
    if not child:
        end_waiting_job()
        os._exit(3 if job.closed or take_waiting() is not None else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert take_waiting() is job
