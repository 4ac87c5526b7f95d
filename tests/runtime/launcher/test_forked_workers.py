"""Workers of real jobs that a fork server forks: what is their own, how they end, and what is left of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher import early_server
from parallax.runtime.launcher.early_server import end_early_server, start_early_server, take_early_server
from parallax.runtime.launcher.job import Job, worker_variables
from parallax.runtime.launcher.mpirun import mpirun_environment, this_launcher
from parallax.runtime.supervisor import worker_process
from parallax.runtime.supervisor.processes import GONE, JOB_ID, processes_with, vitals_of
from parallax.runtime.supervisor.worker_process import (
    NUMBER,
    WORKER,
    ForkedWorker,
    ServerConnection,
    WorkerOrder,
    check_peer,
    start_worker,
)
from parallax.runtime.worker.script import mentions_keras
from parallax.settings.environment import Role, Settings
from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers, write  # noqa: F401

pytestmark = pytest.mark.timeout(240)

# Launches a job whose workers call `work`, which has no plan.
LAUNCHER = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.launch import launch
from parallax.runtime.make_job import job_with, message_without_plan
from parallax.runtime.worker.function_package import pack_function
from parallax.settings.config import Config
from parallax.settings.environment import Role, Settings

def work():
    import json, os, signal, sys, threading, time
    from pathlib import Path
    from parallax.runtime.worker.ranks import current_process_group
    group = current_process_group()
    rank = group.rank
{body}

cluster = local_cluster({workers}, "")
message = replace(message_without_plan(cluster, ()), function=pack_function(work))
end = launch(job_with(message, cluster, Config(), Settings(Role.WORKER, without_keras=True)))
print("cause", end.cause, end.reason)
sys.exit(end.status)
"""


@pytest.fixture
def launch(start, write):  # noqa: F811
    """Starts a job of a function's body."""

    def launch(body, workers=3, **environment):
        lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
        script = write("launcher.py", LAUNCHER.replace("{body}", lines).replace("{workers}", str(workers)))
        return start(script, cold=True, **environment)

    return launch


@pytest.mark.rotates
def test_workers_are_forked_from_one_process_and_have_all_else_of_their_own(launch):
    done = launch("""
import numpy as np
import tensorflow as tf
graph = tf.Graph()
with graph.as_default():
    drawn = tf.compat.v1.random_uniform([])
session = tf.compat.v1.Session(graph=graph)
parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\\0")
print(json.dumps({
    "rank": rank, "size": group.size, "parent": os.getppid(), "command": parent[1:3],
    "shown": f"\\0OMPI_COMM_WORLD_RANK={rank}\\0" in Path("/proc/self/environ").read_text(),
    "leads": os.getsid(0) == os.getpgid(0) == os.getpid(), "name": Path("/proc/self/comm").read_text(),
    "draws": [float(np.random.default_rng().random()), float(tf.random.uniform([])), float(session.run(drawn))],
    "original": sys.orig_argv[1:3],
    "of_rank": os.environ["OMPI_COMM_WORLD_RANK"], "argv": sys.argv, "input": sys.stdin.read(),
    "sum": float(group.workers.allreduce(rank)),
    "computes": float(tf.constant(2.0) + rank), "keras": "keras.src" in sys.modules,
    "handler": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
}))
sys.stderr.write(f"error of {rank}\\n")
""").finish()
    assert done.status == 0, done
    found = [json.loads(done.lines(rank)[0]) for rank in range(3)]
    assert {one["parent"] for one in found} == {found[0]["parent"]}
    for rank, one in enumerate(found):
        assert one["command"] == ["-m", "parallax.runtime.worker.fork_server"]
        assert (one["rank"], one["of_rank"], one["size"], one["sum"]) == (rank, str(rank), 3, 3.0)
        assert (one["leads"], one["name"], one["handler"], one["shown"]) == (True, f"rank {rank}\n", True, True)
        assert (one["computes"], one["keras"], one["input"]) == (2.0 + rank, False, "")
        assert one["argv"][0].endswith("launcher.py")
        assert one["original"] == ["-m", "parallax.runtime.worker.main"]
        assert f"[{rank}] error of {rank}" in done.stderr
    draws = [draw for one in found for draw in one["draws"]]
    assert len(set(draws)) == len(draws)  # without a seed each draws its own, by NumPy and TensorFlow


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("last", "status", "told"),
    [
        ("sys.exit(7)", 7, "rank 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV, "rank 1"),
        ("os.kill(os.getppid(), signal.SIGKILL)", 128 + signal.SIGKILL, "rank"),
    ],
    ids=["exit", "signal", "server"],
)
def test_a_forked_worker_that_ends_ends_the_job_and_leaves_nothing(launch, last, status, told):
    # What workers fork ends with them, in their process group or not.
    done = launch(f"""
for leaves in (False, True):
    if os.fork() == 0:
        if leaves:
            os.setsid()
        time.sleep(600)
group.world.Barrier()
if rank == 1:
    {last}
time.sleep(60)
""").finish()
    assert done.status == status and told in done.stderr, done


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("victim", "number", "status", "told"),
    [
        ("launcher", signal.SIGTERM, 128 + signal.SIGTERM, "the launcher got SIGTERM"),
        ("server", signal.SIGKILL, None, "parallax: "),
        ("server", signal.SIGSTOP, 124, "is silent: a signal stopped its process"),
    ],
    ids=["ended", "killed", "stopped"],
)
def test_a_job_that_fails_while_its_fork_server_imports_says_why_and_leaves_nothing(
    launch, victim, number, status, told
):
    running = launch("raise AssertionError('came to its work')")
    deadline_s = time.monotonic() + 60
    while not (servers := _servers(running.mark)):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    os.kill(running.process.pid if victim == "launcher" else servers[0], number)
    done = running.finish(60)
    assert done.status == status if status else done.status in (127, 137), done
    assert told in done.stderr and "came to its work" not in done.stderr, done


def _servers(mark):
    return [pid for pid, command in _commands(mark) if b"fork_server" in command]


def _commands(mark):
    for pid in processes_with(mark):
        try:
            yield pid, Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # it has ended
            continue


@pytest.mark.rotates
def test_workers_are_new_interpreters_where_something_has_started_threads(launch, write):  # noqa: F811
    write(
        "sitecustomize.py",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    )
    done = launch(
        """
print(threading.active_count() >= 2, "runpy" in sys.modules, Path("/proc/self/cmdline").read_text().split("\\0")[1:3])
""",
        PYTHONPATH=os.pathsep.join([".", os.environ["PYTHONPATH"]]),
    ).finish()
    assert done.status == 0, done
    assert [done.lines(rank)[0] for rank in range(3)] == ["True True ['-m', 'parallax.runtime.worker.main']"] * 3


def test_a_peer_of_another_user_is_refused(monkeypatch):
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert check_peer(one) == os.getpid()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(PermissionError, match=f"Process {os.getpid()} of user"):
            check_peer(one)


@pytest.mark.parametrize(("server", "status"), [("exit 3", 3), ("kill -9 $$", -9), ("exec sleep 60", 127), (None, 127)])
def test_a_worker_whose_server_ends_before_it_is_forked_has_the_servers_status_if_that_is_known(server, status):
    started = None if server is None else subprocess.Popen(["sh", "-c", server])
    one, other = socket.socketpair(socket.AF_UNIX)
    worker = ForkedWorker(WorkerOrder((), {}, None, ()), lambda _: ServerConnection(one, 1, started))
    other.close()
    assert worker.wait() == status
    for fd in worker.streams.values():
        os.close(fd)
    if started is not None:
        started.kill()
        started.wait()


def test_what_a_worker_has_started_ends_with_a_server_that_is_killed():
    forked = subprocess.Popen(["sh", "-c", "echo $$; sleep 60; true"], stdout=subprocess.PIPE, start_new_session=True)
    assert int(forked.stdout.readline()) == forked.pid
    one, other = socket.socketpair(socket.AF_UNIX)
    worker = ForkedWorker(WorkerOrder((), {}, None, ()), lambda _: ServerConnection(one, 1))
    other.sendall(NUMBER.pack(forked.pid))
    other.close()
    assert worker.wait() == -signal.SIGKILL and worker.pid == forked.pid
    assert forked.wait(10) == -signal.SIGKILL and forked.stdout.read() == b""  # nobody has its output open any more
    for fd in worker.streams.values():
        os.close(fd)


def test_a_worker_is_a_new_interpreter_where_no_server_can_be_reached(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(worker_process, "connect_to_server", refuse)
    environment = {**os.environ, JOB_ID: "job"}
    worker = start_worker(WorkerOrder(("-c", "import sys; sys.exit(4)"), environment, None, ()), is_forked=True)
    assert worker.wait() == 4


SCRIPT = """
import os, sys, time
BEFORE
import numpy as np
import tensorflow as tf
import parallax
if "OMPI_COMM_WORLD_RANK" in os.environ:
    began = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[19])
    print("server", began, os.environ.get("OMP_NUM_THREADS"))
else:
    print("script", time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
graph = tf.Graph()
with graph.as_default():
    v = tf.compat.v1.get_variable("v", initializer=1.0, use_resource=True)
    x = tf.compat.v1.placeholder(tf.float32, [None], "x")
    loss = tf.reduce_mean((v * x - 1.0) ** 2)
    step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
session, workers, rank, _ = parallax.parallel_run(graph)
print("value", session.run([loss, step], {x: np.array([1.0 + rank])})[0])
session.close()
"""


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("before", "is_taken"), [("", True), ('os.environ["OMP_NUM_THREADS"] = "1"', False)], ids=["same", "other"]
)
def test_a_run_has_its_fork_server_from_the_start_if_the_script_leaves_the_environment(
    start,  # noqa: F811
    write,  # noqa: F811
    before,
    is_taken,
):
    script = write("train.py", SCRIPT.replace("BEFORE", before))
    done = start(*CLI, "run", "--workers", 2, script, cold=True).finish()
    assert done.status == 0, done
    server = [done.lines(rank)[0].split() for rank in range(2)]
    assert server[0] == server[1]
    (began_ticks,) = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("script ")]
    assert (int(server[0][1]) < began_ticks) == is_taken
    assert server[0][2] == ("None" if is_taken else "1")
    assert {done.lines(rank)[1].split()[0] for rank in range(2)} == {"value"}


@pytest.fixture
def waiting():
    """Ends what a test has left waiting."""
    yield early_server._waiting
    end_early_server()


def job(workers=2, wanted=Settings(Role.WORKER), servers=()):  # noqa: B008
    cluster = local_cluster(workers, "")
    return Job((*WORKER, "train.py"), cluster, servers, worker_variables(wanted, cluster, servers))


def test_an_early_server_goes_to_the_next_job_that_could_have_started_it(waiting, monkeypatch):
    start_early_server(local_cluster(1, ""), False)
    assert waiting == []
    start_early_server(local_cluster(2, ""), False)
    start_early_server(local_cluster(2, ""), False)
    (server,) = waiting
    for others in ({"variable": "of the script"}, {"TF2_BEHAVIOR": "1"}):
        assert server.serves({**mpirun_environment(job(), "1", "0" * 64, this_launcher()), **others})
    changed = ({"PATH": "/bin"}, {"PARALLAX_WITHOUT_KERAS": "1"}, {"KERAS_BACKEND": "jax"})
    for others in (*changed, {"OMP_NUM_THREADS": "1"}, {"KMP_BLOCKTIME": "0"}, {"LC_NUMERIC": "C"}):
        assert not server.serves({**mpirun_environment(job(), "1", "0" * 64, this_launcher()), **others})
    assert take_early_server(Job(("train.py",), local_cluster(2, "")), this_launcher()) is None
    assert take_early_server(job(), this_launcher()) is server
    assert take_early_server(job(), this_launcher()) is None
    process = server._process
    server.close()
    assert process.returncode is not None

    start_early_server(local_cluster(2, ""), False)
    process = waiting[0]._process
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert take_early_server(job(), this_launcher()) is None
    assert process.returncode is not None


def test_an_early_server_ends_with_the_process_that_started_it():
    code = """
import os, signal, sys
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher import early_server
early_server.start_early_server(local_cluster(2, ""), True)
print(early_server._waiting[0]._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid, deadline_s = int(done.stdout), time.monotonic() + 10
    while vitals_of(pid).state not in (GONE, "Z") and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert vitals_of(pid).state in (GONE, "Z")


def test_scripts_that_mention_keras_are_known_by_their_files(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import keras")
    (tmp_path / "package" / "other.py").write_text("import tensorflow")
    (tmp_path / "train.py").write_text("from tensorflow import keras")
    monkeypatch.chdir(tmp_path)
    assert mentions_keras(["train.py", "1"]) and mentions_keras(["-m", "package"])
    assert not mentions_keras(["-m", "package.other"]) and not mentions_keras(["-m", "nothing"])
