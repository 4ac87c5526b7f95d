"""The emulated cluster itself."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.lab import Lab, Listening, why_not

SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listens", flush=True)
    connection, _ = server.accept()
    while connection.recv(1 << 16):
        pass
"""
SERVERS = """
import socket, sys, threading
def drain(connection):
    while connection.recv(1 << 16):
        pass
    connection.close()
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listens", flush=True)
    drains = [threading.Thread(target=drain, args=(server.accept()[0],)) for _ in range(int(sys.argv[2]))]
    [one.start() for one in drains]
    [one.join() for one in drains]
"""
CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
"""


def send(lab, size):
    """Seconds to send `size` bytes from host0 to host1."""
    server = lab.start_on("host1", [sys.executable, "-c", SERVER, "host1"], stdout=subprocess.PIPE)
    server.stdout.readline()
    assert lab.listening("host1") == (Listening(lab.address("host1"), 5000),)
    assert list(lab.processes("host1").values()) == [f"{sys.executable} -c {SERVER} host1".strip()]
    began_s = time.monotonic()
    lab.run_on("host0", [sys.executable, "-c", CLIENT, "host1", str(size)])
    seconds = time.monotonic() - began_s
    server.communicate(timeout=30)
    return seconds


def test_hosts_have_names_of_their_own_and_see_nothing_of_each_other(lab):
    command = ["sh", "-c", "hostname; ls -d /proc/[0-9]* | wc -l; cat /proc/sys/kernel/hostname; cat /proc/net/dev"]
    shown = lab.run_on("host1", command, capture_output=True, text=True).stdout.splitlines()
    assert shown[0] == shown[2] == "host1"
    assert int(shown[1]) < 8  # init, the shell, ls, wc
    assert sorted(line.split(":")[0].strip() for line in shown[5:]) == ["eth0", "lo"]


def test_counters_give_the_bytes_on_the_wire(lab):
    before = lab.counters()
    send(lab, 3_000_000)
    after = lab.counters()
    assert 3_000_000 < after["host1"][0] - before["host1"][0] < 3_300_000
    assert 3_000_000 < after["host0"][1] - before["host0"][1] < 3_300_000


def test_a_lifted_link_carries_more_and_then_its_rate_again():
    if why_not():
        pytest.skip(why_not())
    with Lab(2, rate_bytes_per_s=4_000_000) as lab:
        lab.lift_rates(True)
        assert send(lab, 20_000_000) < 3.5  # by its rate five seconds
        lab.lift_rates(False)
        assert 1.9 < send(lab, 8_000_000) < 3.5


def test_a_link_carries_its_rate_and_a_lab_leaves_nothing():
    if why_not():
        pytest.skip(why_not())
    with Lab(2, rate_bytes_per_s=4_000_000) as lab:
        folder = lab.folder
        seconds = send(lab, 8_000_000)
    assert 1.9 < seconds < 3.5  # two seconds, headers, and the start of an interpreter
    assert not folder.exists()
    assert not any(str(folder) in line for line in _command_lines())


def test_links_lose_nothing_where_all_senders_meet():
    if why_not():
        pytest.skip(why_not())
    size, senders = 2_000_000, ("host1", "host2", "host3")
    with Lab(4, rate_bytes_per_s=12_500_000) as lab:
        server = lab.start_on("host0", [sys.executable, "-c", SERVERS, "host0", "3"], stdout=subprocess.PIPE)
        server.stdout.readline()
        before = lab.counters()
        clients = [lab.start_on(host, [sys.executable, "-c", CLIENT, "host0", str(size)]) for host in senders]
        assert [client.wait(60) for client in clients] == [0, 0, 0]
        server.communicate(timeout=30)
        after = lab.counters()
        again = [_sent_again(lab, host) for host in lab.names]
    assert again == [0, 0, 0, 0]
    received = after["host0"][0] - before["host0"][0]
    assert 3 * size < received < 1.02 * 3 * size


def test_hosts_may_have_rates_of_their_own():
    if why_not():
        pytest.skip(why_not())
    with Lab(3, 8_000_000, {"host1": 4_000_000, "host2": None}) as lab:
        assert [host.rate_bytes_per_s for host in lab.hosts] == [8_000_000, 4_000_000, None]
        text = lab.resource_file(1).read_text()
        seconds = send(lab, 8_000_000)
    assert text.count("bandwidth: 64mbit") == text.count("bandwidth: 32mbit") == 1
    assert text.count("bandwidth") == 2
    assert 1.9 < seconds < 3.5  # of host1's link, the slower one


def test_a_host_has_no_more_memory_than_its_limit():
    grows = "held = bytearray(int(sys.argv[1]) << 20); held[::4096] = bytes(len(held[::4096]))"
    with Lab(2, memory_bytes=96 << 20) as limited:
        assert limited.resource_file(1).read_text().count(f"memory: {96 << 20}B") == 2
        ends = [
            limited.run_on("host1", [sys.executable, "-I", "-S", "-c", f"import sys; {grows}", size]).returncode
            for size in ("16", "256")
        ]
    assert ends == [0, -9] or ends == [0, 137]
    assert not [group for group in Path("/sys/fs/cgroup").glob(f"**/parallax-lab-{os.getpid()}-*")]


def test_a_lab_refuses_what_it_cannot_be():
    with pytest.raises(ValueError, match="1 to 253 hosts; received 0"):
        Lab(0)
    with pytest.raises(ValueError, match="from host0 to host1; received host2"):
        Lab(2, host_rates={"host2": 1000})
    with pytest.raises(ValueError, match="more than 0 bytes a second; received -1 for host1"):
        Lab(2, 1000, {"host1": -1})


def test_two_labs_do_not_meet(lab):
    with Lab(1) as other:
        assert other.address("host0") == lab.address("host0")
        other.start_on("host0", ["sleep", "100"])
        time.sleep(0.3)
        assert list(other.processes("host0").values()) == ["sleep 100"]
        assert lab.processes("host0") == {}
    assert lab.run_on("host0", ["true"]).returncode == 0


def test_a_killed_lab_leaves_no_process(tmp_path):
    if why_not():
        pytest.skip(why_not())
    words = ["-m", "ops.lab", "once", "--hosts", "2", "--", "sh", "-c", f"touch {tmp_path}/up; sleep 987"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen([sys.executable, *words], cwd=Path(__file__).parents[2], env=environment)
    while not (tmp_path / "up").exists():
        assert running.poll() is None
        time.sleep(0.05)
    running.kill()
    running.wait()
    deadline_s = time.monotonic() + 10
    while _of_lab(running.pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert _of_lab(running.pid) == []


def test_the_command_line_runs_a_command_on_a_host_and_shows_its_bytes():
    if why_not():
        pytest.skip(why_not())
    words = ["-m", "ops.lab", "once", "--hosts", "3", "--workers", "2", "--", "sh", "-c"]
    words.append("cat {resource}; hostname; exit 7")
    done = subprocess.run([sys.executable, *words], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert done.stdout.count("workers: 2") == 3 and "\nhost0\n" in done.stdout
    assert "host2: received" in done.stdout


def _sent_again(lab, host):
    """Segments that a host has sent more than once."""
    shown = lab.run_on(host, ["grep", "^Tcp:", "/proc/net/snmp"], capture_output=True, text=True).stdout
    names, values = (line.split() for line in shown.splitlines())
    return int(dict(zip(names, values, strict=True))["RetransSegs"])


def _command_lines():
    found = []
    for folder in Path("/proc").iterdir():
        try:
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def _of_lab(pid):
    return [line for line in _command_lines() if f"parallax-lab-{pid}-" in line or line.startswith("sleep 987")]


def test_the_agent_gives_a_command_a_bare_environment_and_its_exit_status(lab):
    os.environ["NOT_FOR_OTHERS"] = "1"
    try:
        agent = [*lab.agent.split(), "host1", "hostname; env;", "exit 5"]
        done = lab.run_on("host0", agent, capture_output=True, text=True)
    finally:
        del os.environ["NOT_FOR_OTHERS"]
    assert done.returncode == 5
    assert done.stdout.startswith("host1\n") and "NOT_FOR_OTHERS" not in done.stdout
    unknown = lab.run_on("host0", [*lab.agent.split(), "host9", "true"], capture_output=True, text=True)
    assert (unknown.returncode, unknown.stderr) == (255, "lab: there is no host host9\n")
