"""A lab in the background: what its commands do, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.lab import why_not
from ops.lab.__main__ import main
from ops.lab.check import LinkSpeed
from ops.lab.holder import folder_of
from ops.lab.rates import parse_host_rate, parse_rate

ROOT = Path(__file__).parents[2]
NAME = f"test-{os.getpid()}"
SHAPE = ("--hosts", "2", "--rate", "80mbit", "--host-rate", "host1=4MB", "--workers", "3", "--no-check")


def command(verb, *words):
    """Exit status, stdout and stderr of a command of the lab."""
    argv = [sys.executable, "-m", "ops.lab", verb, "--name", NAME, *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=150)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def up():
    """A lab in the background, which is down at the end."""
    if why_not():
        pytest.skip(why_not())
    status, stdout, stderr = command("up", *SHAPE)
    try:
        assert status == 0, stderr
        yield stdout
    finally:
        assert command("down")[0] == 0
    assert not folder_of(NAME).exists()
    assert left() == []


def holder():
    return int((folder_of(NAME) / "pid").read_text())


def left():
    """Processes of the lab, once those that are ending have had their time."""
    deadline_s = time.monotonic() + 10
    while (found := _processes()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found


def _processes():
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder_of(NAME)}/" in line or f"{folder_of(NAME)} " in line:
            found.append(line)
    return found


def test_a_lab_in_the_background_runs_commands_and_shows_bytes_and_resources(up):
    assert up.startswith(f"Lab '{NAME}' is up: 2 host(s), workers on each: 3, links: 80mbit, 32mbit")
    status, stdout, _ = command("run", "host1", "--", "sh", "-c", "hostname; cat {resource}; exit 7")
    assert (status, stdout.splitlines()[0]) == (7, "host1")
    hosts = stdout.partition("ssh:")[0].split("host1\n", 1)[1]
    assert hosts == (
        "hosts:\n"
        "  - address: host0\n    workers: 3\n    bandwidth: 80mbit\n"
        "  - address: host1\n    workers: 3\n    bandwidth: 32mbit\n"
    )
    shown = command("resources")[1]
    path = Path(command("resources", "--path")[1].strip())
    assert path.read_text().strip() == shown.strip() and "workers: 3" in shown
    assert "workers: 1" in command("resources", "--workers", "1")[1]
    assert [line.split(":")[0] for line in command("counters")[1].splitlines()] == ["host0", "host1"]
    assert command("run", "host9", "--", "true")[2] == "lab: Hosts are called host0 to host1; received 'host9'.\n"


def test_up_again_says_so_and_another_shape_is_refused(up):
    pid = holder()
    status, stdout, _ = command("up", *SHAPE)
    assert status == 0 and "is up already" in stdout
    status, _, stderr = command("up", "--hosts", "3")
    assert status == 1
    assert "received 3 host(s)" in stderr and "links: 80mbit, 32mbit" in stderr and f"down --name {NAME}" in stderr
    assert holder() == pid


def test_links_of_their_own_rates_are_measured_each_way(up):
    status, stdout, stderr = command("check")
    assert status == 0, stderr
    words = [line.replace(",", "").replace("mbit", "").split() for line in stdout.splitlines()]
    assert [line[:3] for line in words] == [["host0:", "configured", "80"], ["host1:", "configured", "32"]]
    for line in words:  # wide: a busy machine carries less for a moment
        assert all(0.6 < float(rate) / float(line[2]) < 1.1 for rate in (line[4], line[6])), stdout


def test_a_killed_holder_leaves_a_folder_only_and_the_next_up_goes_on(up):
    pid = holder()
    command("run", "host0", "--", "sh", "-c", "sleep 987 >/dev/null 2>&1 &")
    os.kill(pid, signal.SIGKILL)
    assert left() == []
    assert "is up" in command("counters")[2]
    status, stdout, stderr = command("up", "--hosts", "1", "--no-check")
    assert status == 0, stderr
    assert "is up: 1 host(s)" in stdout and holder() != pid


def test_down_takes_down_what_a_killed_holder_has_left(up):
    os.kill(holder(), signal.SIGKILL)
    assert command("down")[1] == f"Lab '{NAME}' is down.\n"
    assert command("down") == (0, f"Lab '{NAME}' was not up.\n", "")


def test_only_root_is_served(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert why_not() == "only root can make network namespaces"
    assert main(["up", "--name", NAME]) == 1
    assert "only root" in capsys.readouterr().err
    assert not folder_of(NAME).exists()


def test_rates_are_bits_or_bytes_a_second():
    assert [parse_rate(text) for text in ("200mbit", "1gbit", "25MB", "2.5 MB/s")] == [25e6, 125e6, 25e6, 2.5e6]
    assert parse_host_rate("host3=50mbit") == ("host3", 6_250_000)
    for wrong in ("200", "fast", "0mbit", "25mb"):
        with pytest.raises(ValueError, match=f"received '{wrong}'"):
            parse_rate(wrong)
    with pytest.raises(ValueError, match="like host3=50mbit; received '50mbit'"):
        parse_host_rate("50mbit")


def test_a_link_more_than_a_twentieth_off_is_called_off():
    assert not LinkSpeed("host0", 100, sent=96, received=104).is_off
    assert LinkSpeed("host0", 100, sent=94, received=100).is_off
    assert LinkSpeed("host0", 100, sent=100, received=106).is_off
    assert not LinkSpeed("host0", None, sent=1, received=2).is_off
