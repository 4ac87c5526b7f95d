"""Jobs on several hosts: how they run, and that nothing is left of one, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.book.pages import file_of
from parallax.runtime.launcher.mpirun import this_launcher

pytestmark = pytest.mark.timeout(300)

SCRIPTS = Path(__file__).parent / "scripts"
LAUNCH = SCRIPTS / "launch_job.py"
TRAIN = file_of(Path("docs/quick_start.md"), "train.py").text


@pytest.fixture
def needs_library():
    if not Path(this_launcher().preload_library).is_file():
        pytest.skip("this environment has no libparallax_preload.so: `parallax setup`")


@pytest.mark.rotates
def test_the_script_of_the_quick_start_runs_on_two_hosts_of_two_workers(lab, start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    before = lab.counters()
    resource = lab.resource_file(2)
    status, stdout, stderr = start("-m", "parallax.entry.cli", "run", "-r", resource, script).finish()
    assert status == 0, stderr
    assert re.search(r"^\[0\] loss 0\.\d+, table \(10000, 64\)$", stdout, re.MULTILINE), stdout
    assert "4 owners" in stdout
    after = lab.counters()
    # 200 steps; at the end each of host1's workers lacks the half of 2.56 MB that host0 has, and the other way round.
    assert all(after[name][0] - before[name][0] > 2_000_000 for name in lab.names)


@pytest.mark.rotates
def test_servers_hold_variables_listen_on_their_hosts_address_only_and_let_no_stranger_in(
    lab, start, needs_library, tmp_path
):
    resource = lab.resource_file(2, ports="20000-20100")
    job = start(LAUNCH, resource, "yes", SCRIPTS / "on_servers.py", tmp_path / "strangers_left")
    job.wait_for(*(f"waits {rank}" for rank in range(4)))
    strangers_come(lab, tmp_path)
    (tmp_path / "strangers_left").touch()
    job.wait_for(*(f"waits again {rank}" for rank in range(4)))
    assert job.output()[0].count("then [[1, 2, 3, 4], [1, 2, 3, 4]]") == 4, str(job)
    for number, name in enumerate(lab.names):
        own = [one for one in lab.listening(name) if 20000 <= one.port <= 20100]
        assert len(own) == 3 and {one.address for one in own} == {lab.address(name)}, lab.listening(name)
        expected = [f"on {name}, {[2 * number, 2 * number + 1]}, ('10.77.0.1:20", "from my host: "]
        assert all(text in job.output()[0] for text in expected), str(job)
    assert job.output()[0].count("server 0 has [1, 2, 3, 4]") == 4
    assert job.output()[0].count("server 1 has [1, 2, 3, 4]") == 4
    assert "[3] from my host: [21, 31]" in job.output()[0]
    os.kill(job.pid("host1", "parallax.runtime.worker.server", without="agent"), signal.SIGKILL)
    status, _, stderr = job.finish()
    assert status == 137
    assert "parallax: server 1 on host host1 was killed by SIGKILL" in stderr


def send_garbage(lab):
    """Sends garbage from each host to all ports that it reaches, and gives those ports by host."""
    at = {name: lab.listening(name) for name in lab.names}
    for here in lab.names:
        places = [
            f"{lab.address(there) if one.address == '0.0.0.0' else one.address}:{one.port}"
            for there in lab.names
            for one in at[there]
            if one.address != "::" and (here == there or one.address != "127.0.0.1")
        ]
        done = lab.run_on(here, [sys.executable, "-m", "tests.fences.strangers", *places], capture_output=True)
        assert (done.returncode, done.stdout) == (0, b"b''\n"), done.stderr
    return at


def strangers_come(lab, folder):
    """Garbage from each host to all ports that it reaches, and sessions of TensorFlow with the job's servers."""
    at = send_garbage(lab)
    targets = [f"{one.address}:{one.port}" for ports in at.values() for one in ports if 20000 <= one.port <= 20100]
    words = ["-m", "tests.fences.stranger_session", str(folder / "written"), *targets]
    done = lab.run_on("host0", [sys.executable, *words], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["nothing"] * 6, done.stderr
    assert not (folder / "written").exists()


@pytest.mark.rotates
def test_a_job_with_servers_ends_well_also_behind_a_proxy_for_the_web(lab, start, needs_library, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody listens there
    resource = lab.resource_file([2, 0], servers=[0, 1])
    status, stdout, stderr = start(LAUNCH, resource, "yes", SCRIPTS / "one_server.py").finish()
    assert status == 0, stderr
    assert stdout.count("server 0 has 1.5") == 2


def test_the_launcher_need_not_be_one_of_the_hosts(lab, start, tmp_path):
    file = tmp_path / "resource.yaml"
    file.write_text(f'hosts: [{{address: 10.77.0.2, workers: 2}}]\nssh: {{agent: "{lab.agent}"}}\n')
    job = start(LAUNCH, file, "bare", SCRIPTS / "waiting.py", "waits")
    job.wait_for("ready 0", "ready 1")
    assert not any("-m parallax" in line and "mpirun" not in line for line in lab.processes("host0").values())
    os.kill(job.launcher(), signal.SIGTERM)
    assert job.finish()[0] == 143


def test_ranks_find_their_hosts_gpus_and_the_variables_that_libraries_read(lab, start, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_MARK", "1")
    monkeypatch.setenv("OTHER_MARK", "2")
    file = tmp_path / "resource.yaml"
    file.write_text(
        "hosts: [{address: host0, workers: 1}, {address: host1, gpus: [5, 3]}]\n"
        f'ssh: {{agent: "{lab.agent}"}}\nnetwork: {{interface: eth0}}\n'
    )
    job = start(LAUNCH, file, "bare", SCRIPTS / "waiting.py", "waits")
    job.wait_for("[0] ready 0 ['-1', '1', '2']")  # on the launcher's host they inherit all
    job.wait_for("[1] ready 1 ['5,3', '1', None]", "[2] ready 2 ['5,3', '1', None]")
    os.kill(job.launcher(), signal.SIGTERM)
    assert job.finish()[0] == 143


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("victim", "status", "words"),
    [
        ("worker", 137, "rank 1 on host host1 was killed by SIGKILL"),
        ("supervisor", 137, "rank 1 on host host1 is lost: its supervisor was killed by SIGKILL"),
        ("daemon", 1, "parallax: host host1 is lost: it is down, or mpirun's daemon there was killed"),
        ("mpirun", 137, "mpirun was killed by SIGKILL"),
        ("launcher", 137, ""),
    ],
)
def test_whoever_is_killed_nothing_is_left_on_any_host(lab, start, victim, status, words):
    job = start(LAUNCH, lab.resource_file(1), "bare", SCRIPTS / "waiting.py", "waits")
    job.wait_for("ready 0", "ready 1")
    agent = "parallax.runtime.supervisor.agent"
    pid = {
        "worker": lambda: job.pid("host1", "bare_worker.py", without=agent),
        "supervisor": lambda: job.pid("host1", agent),
        "daemon": lambda: job.pid("host1", "orted", without="/bin/sh"),
        "mpirun": lambda: job.pid("host0", "/mpirun --"),
        "launcher": job.launcher,
    }[victim]()
    os.kill(pid, signal.SIGKILL)
    found, _, stderr = job.finish()
    assert (found, words in stderr) == (status, True), str(job)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("victim", "status", "words"),
    [
        ("link", 1, "parallax: host host1 is lost: nothing has arrived from it"),
        ("daemon", 1, "parallax: host host1 is lost: nothing has arrived from it"),
        ("worker", 124, "parallax: rank 1 on host host1 is silent: a signal stopped its process"),
    ],
)
def test_a_host_that_falls_silent_is_named_and_its_processes_end_by_themselves(
    lab, start, monkeypatch, victim, status, words
):
    limits = {"beat_s": 0.5, "stopped_s": 2, "silent_s": 4, "word_s": 0.5, "unheard_s": 12}
    monkeypatch.setenv("LIMITS", json.dumps(limits))
    job = start(LAUNCH, lab.resource_file(1), "bare", SCRIPTS / "waiting.py", "waits")
    job.wait_for("ready 0", "ready 1")
    link = ["ip", "link", "set", "to-host1"]
    if victim == "link":
        subprocess.run(lab.argv_on_bridge([*link, "down"]), check=True)
    else:
        agent = "parallax.runtime.supervisor.agent"
        word, without = ("orted", "/bin/sh") if victim == "daemon" else ("bare_worker.py", agent)
        os.kill(job.pid("host1", word, without=without), signal.SIGSTOP)
    try:
        found, _, stderr = job.finish()
    finally:
        subprocess.run(lab.argv_on_bridge([*link, "up"]), check=True)
    assert (found, words in stderr) == (status, True), str(job)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [("waits", 130, "the launcher got SIGINT"), ("raises", 1, "ValueError: no line 4711 in the corpus")],
)
def test_an_exception_or_ctrl_c_leaves_nothing_on_any_host(lab, start, kind, status, words):
    job = start(LAUNCH, lab.resource_file(1), "bare", SCRIPTS / "waiting.py", kind)
    if kind == "waits":
        job.wait_for("ready 0", "ready 1")
        os.kill(job.launcher(), signal.SIGINT)
    found, _, stderr = job.finish()
    assert (found, words in stderr) == (status, True), str(job)


def test_a_host_that_cannot_be_reached_is_named(lab, start, tmp_path):
    file = tmp_path / "resource.yaml"
    file.write_text(f'hosts: [host0, host7]\nssh: {{agent: "{lab.agent}"}}\n')
    status, _, stderr = start(LAUNCH, file, "bare", SCRIPTS / "waiting.py", "waits").finish()
    assert status != 0
    assert "host7" in stderr, stderr


def test_a_hostfile_and_ssh_are_enough_also_inside_an_allocation(lab, start, tmp_path, monkeypatch):
    """As the recipes for Kubernetes and Slurm do it: an `ssh` on PATH, and variables that name other hosts."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"""#!/bin/sh
while true; do
    case $1 in
        -[opli]) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
exec {lab.agent} "$@"
""")
    ssh.chmod(0o755)
    (tmp_path / "hostfile").write_text("host0 slots=1\nhost1 slots=2\n")
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    allocation = {"JOBID": "1", "JOB_ID": "1", "NNODES": "1", "NODELIST": "other", "JOB_NODELIST": "other"}
    allocation |= {"TASKS_PER_NODE": "1", "NTASKS": "1"}
    for name, value in allocation.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("OMPI_MCA_orte_keep_fqdn_hostnames", "true")
    monkeypatch.setenv("OMPI_MCA_orte_default_hostfile", str(tmp_path / "hostfile"))
    monkeypatch.setenv("OMPI_MCA_orte_rsh_agent", "/etc/mpi/kubexec.sh")
    monkeypatch.setenv("OMPI_MCA_rmaps", "seq")
    monkeypatch.setenv("PMIX_NAMESPACE", "slurm.pmix.1.0")
    job = start(LAUNCH, tmp_path / "hostfile", "bare", SCRIPTS / "waiting.py", "waits")
    job.wait_for("[0] ready 0", "[1] ready 1", "[2] ready 2")
    os.kill(job.launcher(), signal.SIGTERM)
    assert job.finish()[0] == 143


@pytest.mark.rotates
def test_a_verification_on_several_hosts_is_refused(lab, start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    words = ("-m", "parallax.entry.cli", "verify", "-r", lab.resource_file(1), "--feeds", "train.py:batch", script)
    status, _, stderr = start(*words).finish()
    assert status == 1
    assert "a verification runs only on this machine" in stderr and "'host1' is another machine" in stderr
