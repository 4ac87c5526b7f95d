"""Hosts that are asked: this machine, by its own way and by a command in place of ssh that takes it for other hosts."""

import json
import resource
import sys

import pytest

from parallax.cluster.machines import Cluster, Host, Ssh, local_cluster
from parallax.errors import LaunchError
from parallax.runtime.doctor.ask import ask_all
from parallax.runtime.doctor.command import doctor, questions
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.mpirun import this_launcher
from parallax.runtime.launcher.reach import check_reachable, what_is_wrong

# What of a host is other is in a folder that its Python looks into first.
AGENT = """#!/bin/sh
host=$1; shift
case "$host" in
    down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255 ;;
    silent) sleep 60 ;;
    other) export PYTHONPATH="$(dirname "$0")/other:$PYTHONPATH" ;;
esac
exec sh -c "$*"
"""
LATE = "import time\nbefore = time.time_ns\ntime.time_ns = lambda: before() - 100 * 10**9\n"


@pytest.fixture
def agent(tmp_path):
    """A command that runs others here, whatever the host."""
    file = tmp_path / "agent"
    file.write_text(AGENT)
    file.chmod(0o755)
    metadata = tmp_path / "other" / "numpy-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    (tmp_path / "other" / "sitecustomize.py").write_text(LATE)
    return Ssh(agent=str(file))


def hosts(agent, *names):
    return Cluster(tuple(Host(name, 1) for name in names), agent)


def test_all_hosts_are_asked_and_a_silent_one_holds_up_nobody(agent):
    cluster = hosts(agent, "well", "down", "silent", "other")
    well, down, silent, other = ask_all(cluster, sys.executable, questions(cluster, this_launcher(), None), 8.0)
    assert well.facts.python == sys.version.split()[0] and well.facts.cores > 0 and well.facts.project
    assert well.facts.mpirun.startswith("mpirun (Open MPI)") and all(well.facts.packages.values())
    assert abs(well.offset.offset_us) - well.offset.uncertainty_us < 1e5
    assert (down.facts, down.why) == (
        None,
        "cannot be asked (status 255): ssh: connect to host down port 22: No route to host",
    )
    assert (silent.facts, silent.why) == (None, "gave no answer within 8 s")
    assert other.facts.packages == {**well.facts.packages, "numpy": "1.0"}
    assert abs(other.offset.offset_us - 100e6) - other.offset.uncertainty_us < 1e5


def test_this_machine_is_well_and_that_is_told(capsys, tmp_path):
    assert doctor(None, 1, None, str(tmp_path / "kept"), str(tmp_path / "found.json")) == 0
    assert "All is well on 1 host." in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert all(not one["problem"] for one in found["findings"])
    assert found["hosts"][0]["facts"]["has_folder"] and not (tmp_path / "kept").exists()


def test_what_keeps_this_machine_from_starting_a_job_is_told_too(capsys):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, limits[1]))
    try:
        assert doctor(None, 2, None, None, None) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    out = capsys.readouterr().out
    assert "localhost, mpi: mpirun opens up to 48 files at once for this job, and this process may open 40." in out
    assert "localhost, files: a process may open 40 files, and needs up to 264." in out


def test_a_job_is_refused_that_a_host_cannot_take(agent):
    launcher = this_launcher()
    job = Job(("train.py",), hosts(agent, "well", "down"))
    with pytest.raises(LaunchError, match=r"host down cannot be reached \(status 255: ssh: connect.*parallax doctor"):
        check_reachable(job, launcher)
    with pytest.raises(LaunchError, match="reached by `no-ssh`, and it cannot be started: No such file"):
        check_reachable(Job(("train.py",), hosts(Ssh(agent="no-ssh"), "well")), launcher)
    check_reachable(Job(("train.py",), hosts(agent, "well", "other")), launcher)
    check_reachable(Job(("train.py",), local_cluster(2, "")), launcher)


def test_an_answer_says_what_a_host_has_not_and_no_answer_is_left_to_mpirun():
    assert what_is_wrong(0, "greeting\nparallax-reached\n", "") == ""
    assert what_is_wrong(0, "parallax-reached\n/env/bin/python\n/jobs\n", "") == "has no /env/bin/python, /jobs"
    assert what_is_wrong(0, "", "") == ""
    assert what_is_wrong(1, "", "") == "cannot be reached (status 1)"
