"""The loop around jobs, with jobs that are only played: no process is started."""

import io
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, field, replace

import pytest

from parallax.base.errors import LaunchError, PlanError
from parallax.cluster.machines import Cluster, Host, Ssh, local_cluster
from parallax.runtime.launcher.failures import cause
from parallax.runtime.launcher.failures.cause import EndCause, Progress
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import JobEnd
from parallax.runtime.launcher.restarts import restart_loop
from parallax.runtime.launcher.restarts.host_probe import probe_hosts
from parallax.runtime.launcher.restarts.restart_loop import RestartOptions, launch_restarting

LIMIT_S = 20.0
LATER = "later"
RAN = Progress(has_started=True, has_run=True, step=4, has_saved=True)
KILLED = JobEnd(137, EndCause(cause.KILLED, (1,)), "rank 1 was killed by SIGKILL", RAN)
WELL = JobEnd(0)
STANDBY = ("PARALLAX_STAND_BY", "numpy")
JOB = Job(("train.py",), local_cluster(2, ""), input=(b"par", b"cel"))


@dataclass
class Played:
    """Jobs that end as was said, one after the other.

    Attributes:
        ends: how they end.
        awaits_spare: they run until a spare job is ready.
        spares: for each that is started, whether it fails at once, or LATER, when it has been told as ready.
    """

    ends: list
    awaits_spare: bool = True
    spares: list = field(default_factory=list)
    jobs: list = field(default_factory=list)
    parcels: list = field(default_factory=list)
    stopped: int = 0
    _ready: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def launch(self, job, stdout, stderr, contact):
        if STANDBY in job.environment:
            contact.progress = Progress(ready_bytes=(10, 20))
            fails = self.spares.pop(0) if self.spares else False
            if fails == LATER:
                time.sleep(4 * restart_loop._POLL_S)
                return JobEnd(137, EndCause(cause.KILLED))
            if fails:
                self._ready.release()
                return JobEnd(1, EndCause(cause.RAISED))
            stdout.write(b"spare speaks\n")
            self._ready.release()
            if not self._parcel_comes(contact):
                self.stopped += 1
                return JobEnd(143, EndCause(cause.STOPPED))
        self.jobs.append((job, STANDBY in job.environment))
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        contact.progress = end.progress
        if end.progress.has_run and self.awaits_spare:
            assert self._ready.acquire(timeout=LIMIT_S)
            time.sleep(4 * restart_loop._POLL_S)
        return end

    def _parcel_comes(self, contact):
        data = b""
        while not contact.signals:
            if select.select([contact.input.read_end], [], [], 0.02)[0]:
                data += os.read(contact.input.read_end.fileno(), 100)
                if len(data) >= sum(map(len, JOB.input)):  # by its length: no end comes
                    self.parcels.append(data)
                    return True
        return False


def run(played, hosts=("localhost",), job_on=lambda chosen: JOB, **options):
    return launch_restarting(RestartOptions(**{"most": 3, **options}), hosts, job_on, played.launch)


def test_a_spare_job_becomes_the_next_one_and_what_it_says_is_shown_from_then_on(capfdbinary):
    played = Played([KILLED, WELL])
    assert run(played, standby=STANDBY) == WELL
    assert [is_spare for _, is_spare in played.jobs] == [False, True] and played.parcels == [b"parcel"]
    out, err = capfdbinary.readouterr()
    assert out == b"spare speaks\n"
    assert err.splitlines()[-1] == b"parallax: Restart 1 of 3: rank 1 was killed by SIGKILL. Continues from step 4."
    assert b"A spare job is ready for a restart; its processes take 30 B (--no-spare: none)." in err


def test_a_spare_that_is_not_needed_is_ended_and_says_nothing(capfdbinary):
    played = Played([replace(WELL, progress=RAN)])
    assert run(played, standby=STANDBY).status == 0
    assert (played.stopped, played.parcels) == (1, [])
    assert capfdbinary.readouterr()[0] == b""


def test_a_spare_that_fails_is_told_and_the_next_job_starts_anew(capfdbinary):
    played = Played([KILLED, WELL], spares=[True])
    assert run(played, standby=STANDBY).status == 0
    assert [is_spare for _, is_spare in played.jobs] == [False, False]
    assert b"The spare job has failed; a restart will import TensorFlow again.\n" in capfdbinary.readouterr()[1]


def test_a_spare_that_was_ready_and_fails_is_replaced(capfdbinary, monkeypatch):
    monkeypatch.setattr(restart_loop, "FIRST_REPLACED_S", 0.1)
    played = Played([KILLED, WELL], spares=[LATER, LATER])
    assert run(played, standby=STANDBY) == WELL
    assert [is_spare for _, is_spare in played.jobs] == [False, True] and played.parcels == [b"parcel"]
    assert capfdbinary.readouterr()[1].count(b"will import TensorFlow again until another one is ready.\n") == 2


def test_without_a_spare_nothing_is_started_before_a_failure_and_files_of_output_stay(tmp_path):
    played = Played([KILLED, KILLED, WELL], awaits_spare=False)
    job = replace(JOB, output_folder=tmp_path)
    assert run(played, job_on=lambda chosen: job).status == 0
    assert [own.output_folder for own, _ in played.jobs] == [tmp_path, tmp_path / "restart-1", tmp_path / "restart-2"]


def test_the_last_jobs_status_is_given_when_no_restart_is_left(capfdbinary):
    played = Played([KILLED, replace(KILLED, status=139)], awaits_spare=False)
    assert run(played, most=1).status == 139
    assert b"not started again: max_restarts is 1." in capfdbinary.readouterr()[1]


def test_what_a_launch_raises_is_raised():
    with pytest.raises(LaunchError, match="no mpirun"):
        run(Played([LaunchError("no mpirun")]))


def test_a_later_job_that_cannot_be_launched_is_tried_again(capfdbinary):
    played = Played([KILLED, LaunchError("Host b cannot be reached."), WELL], awaits_spare=False)
    assert run(played).status == 0 and len(played.jobs) == 3
    assert b"Restart 2 of 3 in 2 s: Host b cannot be reached. Continues" in capfdbinary.readouterr()[1]


@pytest.mark.parametrize("stopped", [JobEnd(143, EndCause(cause.STOPPED)), KILLED])
def test_a_signal_ends_the_job_and_is_no_reason_to_start_it_again(stopped):
    seen = []

    def launch(job, stdout, stderr, contact):
        os.kill(os.getpid(), signal.SIGTERM)
        deadline_s = time.monotonic() + LIMIT_S
        while not contact.signals and time.monotonic() < deadline_s:
            time.sleep(0.01)
        seen.extend(contact.signals)
        return stopped

    assert launch_restarting(RestartOptions(3), ("a",), lambda chosen: JOB, launch) == stopped
    assert seen == [signal.SIGTERM]


def test_a_signal_while_a_restart_is_waited_for_is_heard(capfdbinary, monkeypatch):
    monkeypatch.setattr("parallax.runtime.launcher.restarts.restart_policy.FIRST_WAIT_S", 60.0)
    loaded = replace(KILLED, progress=replace(RAN, has_saved=False))
    played = Played([loaded, loaded, WELL], awaits_spare=False)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    end = run(played)
    assert (end.status, end.cause.kind, len(played.jobs)) == (130, cause.STOPPED, 2)
    assert b"the launcher got SIGINT. The job is not started again." in capfdbinary.readouterr()[1]


def test_a_host_that_does_not_answer_is_left_out_and_the_spare_on_it_is_dropped(capfdbinary, monkeypatch):
    hosts = ("a", "b")
    cluster = Cluster(tuple(Host(name, 1) for name in hosts))
    answers = iter([("a",), hosts])
    monkeypatch.setattr(restart_loop, "probe_hosts", lambda cluster: next(answers))
    asked = []

    def job_on(chosen):
        asked.append(chosen)
        return replace(JOB, cluster=replace(cluster, hosts=tuple(h for h in cluster.hosts if h.address in chosen)))

    played = Played([KILLED, replace(KILLED, cause=EndCause(cause.KILLED, (0,))), WELL])
    assert run(played, hosts, job_on, min_hosts=1, standby=STANDBY).status == 0
    assert [job.cluster.num_workers for job, _ in played.jobs] == [2, 1, 2] and played.parcels == []
    err = capfdbinary.readouterr()[1]
    assert b"Left out: b. The job continues on 1 of 2 hosts." in err
    assert b"Taken back: b. The job continues on 2 of 2 hosts." in err


def test_hosts_for_which_there_is_no_plan_end_it_with_the_jobs_status(capfdbinary, monkeypatch):
    monkeypatch.setattr(restart_loop, "probe_hosts", lambda cluster: ("a",))

    def job_on(chosen):
        if len(chosen) == 1:
            raise PlanError("The profile must be of these hosts.")
        return JOB

    assert run(Played([KILLED], awaits_spare=False), ("a", "b"), job_on, min_hosts=1).status == 137
    said = capfdbinary.readouterr()[1]
    assert b"cannot be planned for the remaining hosts. The profile must be of these hosts." in said


AGENT = """
import subprocess, sys, time
host, command = sys.argv[1:]
if host.endswith("3"):
    sys.exit(255)
if host.endswith("4"):
    time.sleep(60)
sys.exit(subprocess.call(["sh", "-c", "true" if host.endswith("5") else command]))
"""


def test_hosts_answer_by_connecting_back(tmp_path, monkeypatch):
    monkeypatch.setattr(Host, "is_this_machine", property(lambda host: host.address == "127.0.0.6"))
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    hosts = tuple(Host(f"127.0.0.{number}", 1) for number in (2, 3, 4, 5, 6))
    cluster = Cluster(hosts, Ssh(agent=f"{sys.executable} {agent}"))
    assert probe_hosts(cluster, 3.0) == ("127.0.0.2", "127.0.0.6")


def test_streams_for_text_alone_take_what_a_spare_says():
    from parallax.runtime.launcher.output.relay import bytes_of
    from parallax.runtime.launcher.restarts.spare import BufferedStream

    text = io.StringIO()
    held = BufferedStream(bytes_of(text))
    held.write(b"before ")
    assert text.getvalue() == "" and not held.isatty()
    held.release()
    held.write(b"after")
    assert text.getvalue() == "before after"


def test_a_failed_job_that_nobody_waits_for_is_not_started_again():
    played = Played([KILLED, WELL], awaits_spare=False)
    options = RestartOptions(3, may_restart=lambda: False)
    assert launch_restarting(options, ("localhost",), lambda hosts: JOB, played.launch) is KILLED
    assert len(played.jobs) == 1


def test_signals_that_another_thread_adds_end_the_last_job():
    played, caught = Played([KILLED, WELL], awaits_spare=False), [int(signal.SIGTERM)]
    assert launch_restarting(RestartOptions(3), ("localhost",), lambda hosts: JOB, played.launch, caught) is KILLED
