"""Jobs of tiny programs under the real mpirun. None needs TensorFlow; every wait is bounded."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from parallax.base.errors import LaunchError
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import EXIT_STALLED, has_written
from parallax.runtime.launcher.mpirun import find_mpirun
from parallax.runtime.supervisor.processes import end_processes, processes_with

pytestmark = pytest.mark.timeout(120)

MARK = "PARALLAX_TEST"
WAIT_S = 30.0

LAUNCHER = """
import json, os, sys
from dataclasses import replace
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import launch
from parallax.runtime.supervisor.limits import Limits
limits = Limits(**json.loads(os.environ.get("LIMITS", "{}")))
given = bytes(range(250)) * int(os.environ.get("GIVEN", "0"))
workers, stall_timeout_s, *program = sys.argv[1:]
cluster = local_cluster(int(workers), "")
job = Job(tuple(program), cluster, (), (("GREETING", "a; b"),), float(stall_timeout_s), (given,), limits=limits)
end = launch(replace(job, preemption_grace_s=float(os.environ["GRACE"]) if "GRACE" in os.environ else None))
sys.exit(end.status)
"""

# What every program starts with.
HEAD = """
import os, signal, subprocess, sys, time
from pathlib import Path
from parallax.runtime.supervisor.control import send
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.02)
def tell(name, text=""):
    Path(name + ".part").write_text(str(text))
    Path(name + ".part").rename(name)
"""


class Launched:
    """A launcher in a process of its own, working in a folder of its own."""

    def __init__(self, folder: Path, body: str, workers: int, stall_timeout_s: float):
        self.folder = folder
        self.mark = {MARK: uuid.uuid4().hex}
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        (folder / "program.py").write_text(HEAD + body)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(workers), str(stall_timeout_s), "program.py"],
            cwd=folder,
            env={**os.environ, **self.mark, "TMPDIR": str(self.scratch)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self) -> tuple[int, str, str]:
        """Waits for the launcher; returns its exit status and what it wrote."""
        stdout, stderr = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, stdout.decode(), stderr.decode()

    def told(self, name: str) -> str:
        """Waits for the file `name`, which a program writes, and returns its text."""
        deadline = time.monotonic() + WAIT_S
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} was not written"
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def left(self, within_s: float = 0.0) -> tuple[int, ...]:
        """The processes that are left of the job, at the latest after `within_s`."""
        deadline = time.monotonic() + within_s
        while processes_with(self.mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        return processes_with(self.mark)


@pytest.fixture
def start(tmp_path):
    started = []

    def start(body, workers=2, stall_timeout_s=60.0):
        started.append(Launched(tmp_path, body, workers, stall_timeout_s))
        return started[-1]

    try:
        find_mpirun()
    except LaunchError as error:
        pytest.skip(str(error))
    yield start
    for launched in started:
        if launched.process.poll() is None:
            launched.process.kill()
            launched.process.communicate()
        end_processes(launched.mark, grace_s=0)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_output_is_relayed_with_its_rank(start):
    job = start('print("out", rank)\nprint("err", rank, file=sys.stderr)')
    status, stdout, stderr = job.finish()
    assert status == 0
    assert sorted(stdout.splitlines()) == ["[0] out 0", "[1] out 1"]
    assert sorted(stderr.splitlines()) == ["[0] err 0", "[1] err 1"]
    assert job.left() == ()


ALLOCATION = {"SLURM_JOBID": "7", "SLURM_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.rotates
@pytest.mark.parametrize(
    "variables",
    [
        {**ALLOCATION, "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
        {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},
        {"OMPI_MCA_orte_rsh_agent": "/x", "OMPI_MCA_plm": "slurm", "OMPI_MCA_ras_simulator_num_nodes": "3"},
        {"OMPI_MCA_ess": "slurm", "OMPI_MCA_rmaps": "seq", "OMPI_MCA_oob_tcp_if_exclude": "eth0"},
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_SECURITY_MODE": "munge", "PMI_RANK": "0"},
        {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "7.x", "PBS_NODEFILE": "/x", "LSB_JOBID": "7", "LSB_HOSTS": "n1"},
    ],
    ids=["slurm", "pod", "agent", "names", "pmix", "pbs"],
)
def test_a_job_on_this_machine_asks_no_scheduler(start, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    status, stdout, stderr = start('print("rank", rank)').finish()
    assert (status, sorted(stdout.splitlines()), stderr) == (0, ["[0] rank 0", "[1] rank 1"], "")


@pytest.mark.rotates
@pytest.mark.parametrize("line", ["plm = slurm", "plm_rsh_agent = /x", "orte_default_hostfile = /x", "rmaps = seq"])
def test_parameter_files_of_open_mpi_choose_no_hosts(start, monkeypatch, tmp_path, line):
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi" / "mca-params.conf").write_text(f"{line}\norte_timestamp_output = 1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    status, stdout, stderr = start('print("rank", rank)').finish()
    assert (status, sorted(stdout.splitlines()), stderr) == (0, ["[0] rank 0", "[1] rank 1"], "")


def test_the_ranks_get_the_jobs_environment_and_no_input(start):
    job = start('print([os.environ[n] for n in ("GREETING", "LD_BIND_NOW")], repr(sys.stdin.read()))', workers=1)
    assert job.finish() == (0, "[0] ['a; b', '1'] ''\n", "")


def test_rank_0_gets_the_jobs_input_and_the_others_none(start, monkeypatch):
    monkeypatch.setenv("GIVEN", "40000")  # 10 MB
    # Its end would not come before the job's (job_input.py).
    job = start("""
import select
data = sys.stdin.buffer.read(10_000_000)
ended = bool(select.select([0], [], [], 0.5)[0])
print(len(data), data == bytes(range(250)) * (len(data) // 250), ended)
""")
    status, stdout, _ = job.finish()
    assert (status, sorted(stdout.splitlines())) == (0, ["[0] 10000000 True False", "[1] 0 True True"])


def test_a_rank_0_that_reads_nothing_does_not_hold_up_the_job(start, monkeypatch):
    monkeypatch.setenv("GIVEN", "40000")
    status, stdout, _ = start('print("done")').finish()
    assert (status, sorted(stdout.splitlines())) == (0, ["[0] done", "[1] done"])


def test_output_comes_while_the_program_runs(start):
    job = start('print("early")\nprint("no newline yet", end="")\nwait_for("go")')
    assert job.process.stdout.readline() in (b"[0] early\n", b"[1] early\n")
    (job.folder / "go").touch()
    assert job.finish()[0] == 0


def test_heavy_output_of_four_ranks_arrives_whole_and_in_order(start):
    lines = 3000
    line = 'f"{rank}:{i}:" + "[1,0]<stdout>:é" * (i % 5) + "z" * (9000 if i % 100 == 0 else 0)'
    body = f"for i in range({lines}):\n    print({line}, file=sys.stderr if i % 3 == 0 else sys.stdout)"
    status, stdout, stderr = start(body, workers=4).finish()
    assert status == 0
    for rank in range(4):
        want = [eval(line, {"rank": rank, "i": i}) for i in range(lines)]
        own = f"[{rank}] "
        for text, expected in ((stdout, [w for i, w in enumerate(want) if i % 3]), (stderr, want[::3])):
            got = [one.removeprefix(own) for one in text.split("\n") if one.startswith(own)]
            assert got == expected


def test_bytes_that_are_not_text_come_through(tmp_path, start):
    job = start('sys.stdout.buffer.write(b"\\xff\\xfe [ \\xc3\\xa9 < \\x1b\\n")', workers=1)
    stdout, _ = job.process.communicate(timeout=WAIT_S)
    assert stdout == b"[0] \xff\xfe [ \xc3\xa9 < \x1b\n"


def test_the_exit_status_of_the_failing_rank_is_the_jobs(start):
    job = start("if rank == 1:\n    sys.exit(3)\nwait_for('never')", workers=4)
    status, _, stderr = job.finish()
    assert status == 3
    assert stderr == "parallax: rank 1 failed with exit status 3. The job was ended. It wrote nothing to stderr.\n"
    assert job.left() == ()


def test_the_traceback_of_the_failing_rank_comes_last(start):
    job = start(
        'if rank == 1:\n    raise ValueError("no such table")\nprint("waits", file=sys.stderr)\nwait_for("never")'
    )
    status, _, stderr = job.finish()
    assert status == 1
    message = stderr[stderr.index("parallax: ") :].splitlines()
    assert message[0] == "parallax: rank 1 failed with exit status 1. The job was ended."
    assert message[2] == "Traceback (most recent call last):"
    assert message[-1] == "ValueError: no such table"


def test_who_told_of_a_failure_first_is_named_and_not_who_failed_after_it(start):
    body = """
if rank == 1:
    send({"kind": "failed", "error": "Traceback of the cause"})
    tell("failed")
    wait_for("consequence")
    time.sleep(0.5)
    sys.exit(5)
wait_for("failed")
time.sleep(0.5)
tell("consequence")
sys.exit("lost rank 1")
"""
    status, _, stderr = start(body).finish()
    assert status == 5
    assert "rank 1 failed with exit status 5" in stderr
    assert stderr.endswith("Error of rank 1:\nTraceback of the cause\n")


WAITING = """
tell(f"worker.{rank}", os.getpid())
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=rank == 0)
tell(f"ready.{rank}")
wait_for("never")
"""


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("victim", "words"),
    [
        ("worker", "parallax: rank 1 was killed by SIGKILL"),
        ("agent", "parallax: rank 1 is lost: its supervisor was killed by SIGKILL"),
        ("mpirun", "parallax: mpirun was killed by SIGKILL"),
    ],
)
def test_a_killed_process_ends_the_job_and_is_named(start, victim, words):
    job = start(WAITING)
    for rank in range(2):
        job.told(f"ready.{rank}")
    worker = int(job.told("worker.1"))
    agent = parent_of(worker)
    os.kill({"worker": worker, "agent": agent, "mpirun": parent_of(agent)}[victim], signal.SIGKILL)
    status, _, stderr = job.finish()
    assert status == 128 + signal.SIGKILL
    assert words in stderr
    assert job.left() == ()
    assert list(job.scratch.iterdir()) == []


def test_an_mpirun_that_is_killed_before_any_rank_starts_leaves_no_folder(start):
    job = start(WAITING)
    deadline = time.monotonic() + WAIT_S
    while not (folders := list(job.scratch.glob("ompi.*/pid.*"))):
        assert time.monotonic() < deadline
    os.kill(int(folders[0].name.removeprefix("pid.")), signal.SIGKILL)
    assert job.finish()[0] == 128 + signal.SIGKILL
    assert job.left() == ()
    assert list(job.scratch.iterdir()) == []


def test_a_killed_launcher_takes_the_job_with_it(start):
    job = start(WAITING.replace("subprocess", "# subprocess"))
    for rank in range(2):
        job.told(f"ready.{rank}")
    job.process.kill()
    job.process.communicate(timeout=WAIT_S)
    assert job.left(within_s=WAIT_S) == ()


def test_no_signal_is_blocked_in_a_rank(start):
    job = start("print(signal.pthread_sigmask(signal.SIG_BLOCK, []))", workers=1)
    assert job.finish() == (0, "[0] set()\n", "")


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGQUIT, 131), (signal.SIGUSR1, 138), (signal.SIGXCPU, 152)],
)
def test_a_signal_to_the_launcher_ends_the_job(start, number, expected):
    job = start(WAITING)
    for rank in range(2):
        job.told(f"ready.{rank}")
    job.process.send_signal(number)
    status, _, stderr = job.finish()
    assert status == expected
    assert stderr == f"parallax: the launcher got {number.name}. The job was ended.\n"
    assert job.left() == ()


SAVING = """
from parallax.runtime.supervisor.control import is_preempted
tell(f"ready.{rank}", os.getpid())
while rank == 0 and not is_preempted():
    time.sleep(0.02)
if rank == 0 and "SAVES" in os.environ:
    send({"kind": "preempted", "step": 12})
    tell("saved")
    sys.exit()
tell(f"heard.{rank}")
while rank or "SAVES" not in os.environ:
    time.sleep(0.02)
    if "SAVES" in os.environ and Path("saved").exists():
        sys.exit()
"""


@pytest.mark.parametrize(
    ("saves", "grace", "status", "words"),
    [
        ({"SAVES": "1"}, "30", 75, "preempted at step 12, saved. Start the job again to continue from there."),
        (
            *({}, "0.5", 143),
            "the launcher got SIGTERM, and the workers have not saved within 0.5 s. The job was ended.",
        ),
    ],
    ids=["saved", "not saved"],
)
def test_a_preempted_job_saves_if_it_can(start, monkeypatch, saves, grace, status, words):
    for name, value in {**saves, "GRACE": grace}.items():
        monkeypatch.setenv(name, value)
    job = start(SAVING)
    for rank in range(2):
        job.told(f"ready.{rank}")
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == (status, "", f"parallax: {words}\n")
    assert job.left() == () and list(job.scratch.iterdir()) == []


LIMITS = {"beat_s": 0.2, "stopped_s": 1.0, "silent_s": 3.0, "word_s": 0.2, "unheard_s": 2.0}
ALIVE = """
send({"kind": "alive", "runs": 12, "fetch": "train_op", "seconds": 0.5})
"""


def victim_of(job, victim):
    worker = int(job.told("worker.1"))
    agent = parent_of(worker)
    return {"worker": worker, "agent": agent, "mpirun": parent_of(agent)}[victim]


@pytest.mark.parametrize(
    ("victim", "words"),
    [
        ("worker", "parallax: rank 1 is silent: a signal stopped its process"),
        ("agent", "parallax: rank 1 is lost: its supervisor, process"),
        ("mpirun", "parallax: mpirun is silent: a signal stopped it"),
    ],
)
def test_a_stopped_process_ends_the_job_and_is_named(start, monkeypatch, victim, words):
    monkeypatch.setenv("LIMITS", json.dumps(LIMITS | {"unheard_s": 60.0}))
    job = start(ALIVE + WAITING, stall_timeout_s=600)
    for rank in range(2):
        job.told(f"ready.{rank}")
    os.kill(victim_of(job, victim), signal.SIGSTOP)
    status, _, stderr = job.finish()
    assert (status, words in stderr) == (EXIT_STALLED, True), stderr
    if victim == "worker":
        assert "  last heard of rank 1: 12 runs made, in a run of train_op for 0.5 s\n" in stderr
        assert "  meanwhile rank 0: in a run of train_op\n" in stderr
    assert job.left() == ()


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("victim", "number", "words"),
    [
        ("worker", signal.SIGHUP, "parallax: rank 1 was killed by SIGHUP"),
        ("agent", signal.SIGHUP, "parallax: rank 1 is lost: its supervisor was ended by SIGHUP"),
        ("agent", signal.SIGINT, "parallax: rank 1 is lost: its supervisor was ended by SIGINT"),
        ("agent", signal.SIGTERM, "parallax: rank 1 is lost: its supervisor was ended by SIGTERM"),
        ("agent", signal.SIGSEGV, "parallax: rank 1 is lost: its supervisor was killed by SIGSEGV"),
        ("agent", signal.SIGUSR1, "parallax: rank 1 is lost: its supervisor was killed by SIGUSR1"),
        ("mpirun", signal.SIGTERM, "parallax: mpirun got SIGTERM from another process. The job was ended."),
        ("mpirun", signal.SIGHUP, "parallax: mpirun got SIGHUP from another process. The job was ended."),
        ("mpirun", signal.SIGINT, "parallax: mpirun got SIGINT from another process. The job was ended."),
        ("mpirun", signal.SIGUSR1, "parallax: mpirun got SIGUSR1 from another process. The job was ended."),
        ("mpirun", signal.SIGQUIT, "parallax: mpirun got SIGQUIT from another process. The job was ended."),
        ("mpirun", signal.SIGSEGV, "parallax: mpirun was killed by SIGSEGV before ranks 0-1 had ended."),
    ],
)
def test_a_signal_to_one_process_ends_the_job_and_both_are_named(start, victim, number, words):
    job = start(WAITING)
    for rank in range(2):
        job.told(f"ready.{rank}")
    os.kill(victim_of(job, victim), number)
    status, _, stderr = job.finish()
    assert (status, words in stderr) == (128 + number, True), stderr
    assert job.left() == ()


def test_ranks_of_a_stopped_launcher_end_by_themselves(start, monkeypatch):
    monkeypatch.setenv("LIMITS", json.dumps(LIMITS))
    job = start(WAITING)
    agents = [parent_of(int(job.told(f"worker.{rank}"))) for rank in range(2)]
    for rank in range(2):
        job.told(f"ready.{rank}")
    job.process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + WAIT_S
    while set(job.left()) - {job.process.pid} and time.monotonic() < deadline:
        time.sleep(0.05)
    dead = [pid for pid in job.left() if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"]
    assert set(job.left()) <= {job.process.pid, *dead}, agents
    job.process.send_signal(signal.SIGCONT)
    assert job.finish()[0] != 0


def test_the_launcher_speaks_from_the_first_byte_on_that_a_rank_has_written():
    read_fd, written_fd = os.pipe()
    high_fd = fcntl.fcntl(read_fd, fcntl.F_DUPFD, min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100))
    os.close(read_fd)
    with os.fdopen(high_fd, "rb") as pipe, os.fdopen(written_fd, "wb", 0) as written:
        assert not has_written(pipe)
        written.write(b"[1,0]<stdout>:")
        assert has_written(pipe)
    assert not has_written(None)


def test_a_program_may_end_well_and_leave_children(start):
    job = start(
        "for alone in (False, True):\n"
        '    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=alone)\n'
        'print("done")'
    )
    assert job.finish()[0] == 0
    assert job.left() == ()


def test_a_job_whose_output_nobody_reads_is_ended(start):
    job = start('print("x" * 100)\nwait_for("go")\nwhile True:\n    print("x" * 100)')
    job.process.stdout.readline()
    job.process.stdout.close()
    (job.folder / "go").touch()
    assert job.process.wait(WAIT_S) == 128 + signal.SIGPIPE
    assert job.left() == ()


def test_a_rank_that_others_wait_for_in_vain_is_named(start):
    body = """
if rank == 2:
    send({"kind": "finished", "runs": 40})
    tell("finished")
else:
    wait_for("finished")
    send({"kind": "in_run", "fetch": "train_op", "collectives": "d", "seconds": 2.0})
wait_for("never")
"""
    job = start(body, workers=4, stall_timeout_s=5.0)
    status, _, stderr = job.finish()
    assert status == EXIT_STALLED
    assert "parallax: the job stalled" in stderr
    assert "  fetch: train_op\n  waiting: ranks 0-1, 3\n" in stderr
    assert "  missing: rank 2: ended its loop after 40 runs\n" in stderr
    assert job.left() == ()


def test_a_long_run_of_all_ranks_is_no_stall(start):
    body = """
send({"kind": "in_run", "fetch": "train_op", "collectives": "d", "seconds": 1e6})
tell(f"told.{rank}")
wait_for(f"told.{1 - rank}")
time.sleep(1)
send({"kind": "run_done"})
send({"kind": "finished", "runs": 1})
"""
    # The first of the two is alone in its run until the other has told.
    assert start(body, stall_timeout_s=1e6 + 20).finish()[0] == 0


def test_workers_that_use_mpi_end_cleanly(start):
    job = start("from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(rank + 1))")
    status, stdout, stderr = job.finish()
    assert (status, stderr) == (0, "")
    assert sorted(stdout.splitlines()) == ["[0] 3", "[1] 3"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_worker_that_is_killed_in_a_collective_is_named(start, number):
    job = start(
        "from mpi4py import MPI\nMPI.COMM_WORLD.barrier()\n"
        f"if rank == 1:\n    os.kill(os.getpid(), {number:d})\nMPI.COMM_WORLD.allreduce(1)"
    )
    status, _, stderr = job.finish()
    assert status == 128 + number
    assert f"rank 1 was killed by {number.name}" in stderr
    assert job.left() == ()


def test_a_launch_without_mpirun_starts_nothing(tmp_path, monkeypatch):
    from parallax.runtime.launcher.launch import launch

    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="mpirun"):
        launch(Job(("train.py",), local_cluster(2, "")))
