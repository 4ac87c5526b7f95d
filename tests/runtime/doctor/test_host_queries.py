"""Hosts that are asked: this machine, by its own way and by a command in place of ssh that takes it for other hosts."""

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from parallax.base.errors import LaunchError
from parallax.base.strict import shown
from parallax.cluster.machines import Cluster, Host, Ssh, local_cluster
from parallax.runtime.doctor import host_queries, probe
from parallax.runtime.doctor.command import LIBRARIES, doctor, questions, table_text
from parallax.runtime.doctor.findings import Answer, Expectations, HostFacts, facts_from, findings
from parallax.runtime.doctor.host_queries import query_hosts
from parallax.runtime.launcher import reach
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.mpirun import this_launcher
from parallax.runtime.launcher.reach import HostsNotReady, check_reachable, diagnose_answer
from tests.mutations import for_all, mutated_json

# What of a host is other is in a folder that its Python looks into first.
AGENT = """#!/bin/sh
host=$1; shift
case "$host" in
    down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255 ;;
    silent*) sleep 60 ;;
    held) sh -c "$*"; sleep 60 ;;
    other) export PYTHONPATH="$(dirname "$0")/other:$PYTHONPATH" ;;
    greets) echo "Welcome to $host"; printf "\\033[31mMaintenance on Sunday " ;;
    greets-endlessly) yes "Welcome to $host" ;;
    complains-endlessly) yes "no room on $host" >&2 ;;
    drips) while :; do echo "please wait"; sleep 0.05; done ;;
    closed) printf "This account is \\033[2Jnot available.\\n"; exit 1 ;;
    colours) printf "\\033[31mkey refused\\033[0m\\n" >&2; exit 255 ;;
    echoes) exec cat ;;
    odd) export PYTHONPATH="$(dirname "$0")/odd:$PYTHONPATH" ;;
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
    odd = tmp_path / "odd" / "sitecustomize.py"
    odd.parent.mkdir()
    odd.write_text('import socket\nsocket.gethostname = lambda: "\\x1b]0;mine\\x07"\n')
    return Ssh(agent=str(file))


def hosts(agent, *names):
    return Cluster(tuple(Host(name, 1) for name in names), agent)


@pytest.mark.rotates
def test_all_hosts_are_asked_and_a_silent_one_holds_up_nobody(agent):
    cluster = hosts(agent, "well", "down", "silent", "other")
    well, down, silent, other = query_hosts(cluster, sys.executable, questions(cluster, this_launcher(), None), 8.0)
    assert well.facts.python == sys.version.split()[0] and well.facts.cores > 0 and well.facts.project
    assert well.facts.mpirun.startswith("mpirun (Open MPI)") and all(well.facts.packages.values())
    assert abs(well.offset.offset_us) - well.offset.uncertainty_us < 1e5
    assert (down.facts, down.why) == (
        None,
        "cannot be queried (status 255): ssh: connect to host down port 22: No route to host",
    )
    assert (silent.facts, silent.why) == (None, "did not respond within 8 s")
    assert other.facts.packages == {**well.facts.packages, "numpy": "1.0"}
    assert abs(other.offset.offset_us - 100e6) - other.offset.uncertainty_us < 1e5


ODD_ANSWERS = {
    "greets-endlessly": "sends 1.05 MB and more, but no answer: Welcome to greets-endlessly",
    "complains-endlessly": "sends 1.05 MB and more, but no answer: no room on complains-endlessly",
    "drips": "did not respond within 3 s: please wait",
    "closed": "cannot be queried (status 1): This account is \\x1b[2Jnot available.",
    "colours": "cannot be queried (status 255): \\x1b[31mkey refused\\x1b[0m",
    "echoes": "gives an unexpected answer: ",
    "odd": "gives an unexpected answer: expected `str` matching regex ",
}


def test_a_host_that_answers_otherwise_is_named_in_time_with_what_it_said(agent):
    cluster = hosts(agent, *ODD_ANSWERS)
    began_s = time.monotonic()
    found = query_hosts(cluster, sys.executable, questions(cluster, this_launcher(), None), 3.0)
    assert time.monotonic() - began_s < 60
    assert [one.address for one in found] == [*ODD_ANSWERS] and all(one.facts is None for one in found)
    for one in found:
        assert one.why.startswith(ODD_ANSWERS[one.address]) and one.why.isprintable() and len(one.why) < 1000


def test_what_a_login_writes_before_the_answer_is_left_out(agent):
    cluster = hosts(agent, "greets")
    [found] = query_hosts(cluster, sys.executable, questions(cluster, this_launcher(), None), 20.0)
    assert found.why == "" and found.facts.python == sys.version.split()[0] and found.offset is not None


@pytest.mark.parametrize("count", [pytest.param(150, id="some"), pytest.param(5000, id="many", marks=pytest.mark.slow)])
def test_a_mutated_answer_is_refused_in_words_or_can_be_judged(count):
    [asked] = questions(local_cluster(1, ""), this_launcher(), None)
    own = probe.facts(asked)
    against = Expectations(local_cluster(1, ""), HostFacts(**own), sys.executable, "/jobs", tempfile.gettempdir())

    def check(text):
        try:
            found = facts_from(text.encode("utf-8", "surrogatepass"), asked)
        except ValueError as error:
            assert shown(error).isprintable()
            return
        cluster = local_cluster(1, "")
        assert table_text(cluster, findings(against, [Answer("a", found)])).replace("\n", "").isprintable()

    for_all(count, check, mutated_json(json.dumps(own)))


def test_a_host_of_very_many_workers_is_judged_at_once(tmp_path, capsys):
    file = tmp_path / "machines"
    file.write_text("localhost slots=100000\n")
    began_s = time.monotonic()
    assert doctor(str(file), None, None, None, None) == 1
    assert time.monotonic() - began_s < 30
    assert "localhost, cores: 100000 workers on" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["missing", "cut", "other processor"])
def test_a_native_library_that_cannot_be_loaded_is_a_problem_of_this_machine(how, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in LIBRARIES:
        shutil.copy(Path(sys.executable).parent.parent / "lib" / name, folder)
    library = folder / LIBRARIES[-1]
    if how == "missing":
        library.unlink()
    else:
        content = library.read_bytes()
        library.write_bytes(content[:10] if how == "cut" else content[:18] + b"\xf3\0" + content[20:])
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    launcher = replace(this_launcher(), python=str(python))
    monkeypatch.setattr("parallax.runtime.doctor.command.this_launcher", lambda: launcher)
    assert doctor(None, 1, None, None, None) == 1
    said = "is missing" if how == "missing" else "is not built for the processor there"
    assert f"localhost, project: {library} {said}." in capsys.readouterr().out


def test_a_package_that_is_missing_here_too_is_a_problem(monkeypatch, capsys):
    monkeypatch.setitem(probe.PACKAGES, "horovod", ("horovod-that-is-not-there",))
    against = this_launcher()
    [asked] = questions(local_cluster(1, ""), against, None)
    own = HostFacts(**probe.facts(asked))
    expected = Expectations(local_cluster(1, ""), own, against.python, against.folder, tempfile.gettempdir())
    found = findings(expected, [Answer("localhost", own)])
    assert [one.problem for one in found if one.problem] == ["horovod is missing"]


def test_the_libraries_are_those_that_are_installed():
    text = (Path(__file__).parents[3] / "parallax" / "base" / "setup" / "libraries.py").read_text()
    assert {*LIBRARIES} == {*re.findall(r"libparallax_\w+\.so", text)}


def test_this_machine_is_well_and_that_is_told(capsys, tmp_path):
    assert doctor(None, 1, None, str(tmp_path / "kept"), str(tmp_path / "found.json")) == 0
    assert "No problems on 1 host." in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert all(not one["problem"] for one in found["findings"])
    assert found["hosts"][0]["facts"]["has_folder"] and not (tmp_path / "kept").exists()


def test_what_keeps_this_machine_from_starting_a_job_is_told_too():
    # In a process of its own: how many files this one has open depends on the tests before.
    parallax = Path(sys.executable).with_name("parallax")
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 40 && exec {parallax} doctor --workers 2"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stderr
    out = done.stdout
    assert "localhost, mpi: mpirun opens up to 48 files at once for this job, but this process may open only 40." in out
    assert "localhost, files: a process may open 40 files, but needs up to 264." in out


def test_a_job_is_refused_that_a_host_cannot_take(agent):
    launcher = this_launcher()
    job = Job(("train.py",), hosts(agent, "well", "down"))
    with pytest.raises(LaunchError, match=r"host down cannot be reached \(status 255: ssh: connect.*parallax doctor"):
        check_reachable(job, launcher, pytest.fail)
    with pytest.raises(LaunchError, match="reached with `no-ssh`, which cannot be started: No such file"):
        check_reachable(Job(("train.py",), hosts(Ssh(agent="no-ssh"), "well")), launcher, pytest.fail)
    check_reachable(Job(("train.py",), hosts(agent, "well", "other")), launcher, pytest.fail)
    check_reachable(Job(("train.py",), local_cluster(2, "")), launcher, pytest.fail)


def test_silent_hosts_are_named_after_a_while_and_end_the_wait_together(agent, monkeypatch):
    monkeypatch.setattr(reach, "NOTICE_S", 1.0)
    silent = [f"silent{number}" for number in range(12)]
    job = Job(("train.py",), hosts(agent, "well", *silent, "down"), host_timeout_s=3.0)
    told = []
    with pytest.raises(HostsNotReady) as caught:
        check_reachable(job, this_launcher(), told.append)
    names = ", ".join(silent)
    assert told == [f"hosts {names} have not responded for 1 s. Waiting for at most 3 s (--host-timeout-s)."]
    assert "host down cannot be reached (status 255" in str(caught.value)
    assert f"; hosts {names} did not respond within 3 s. `parallax doctor" in str(caught.value)
    assert caught.value.hosts == ("down", *silent)


def test_a_host_that_answers_and_holds_the_connection_is_left_to_mpirun(agent):
    check_reachable(Job(("train.py",), hosts(agent, "held"), host_timeout_s=3.0), this_launcher(), pytest.fail)


def test_nobody_is_waited_for_when_the_job_shall_not_start(agent):
    job = Job(("train.py",), hosts(agent, "silent"), host_timeout_s=math.inf)
    check_reachable(job, this_launcher(), pytest.fail, lambda: True)


def test_doctor_says_whose_answer_it_waits_for_and_names_who_gives_none(tmp_path, agent, monkeypatch, capsys):
    monkeypatch.setattr(host_queries, "NOTICE_S", 1.0)
    (tmp_path / "hosts.yaml").write_text(f"hosts: [silent1, silent2]\nssh: {{agent: {agent.agent}}}\n")
    assert doctor(str(tmp_path / "hosts.yaml"), None, None, None, None, 3.0) == 1
    out, err = capsys.readouterr()
    assert err.startswith("parallax: hosts silent1, silent2 have not responded for 1 s. Waiting for at most 3 s")
    assert "silent1, reached: did not respond within 3 s." in out and "silent2, reached: did not respond" in out


def test_an_answer_says_what_a_host_has_not_and_no_answer_is_left_to_mpirun():
    assert diagnose_answer(0, "greeting\nparallax-reached\n", "") == ""
    assert diagnose_answer(0, "parallax-reached\n/env/bin/python\n/jobs\n", "") == "lacks /env/bin/python, /jobs"
    assert diagnose_answer(0, "", "") == ""
    assert diagnose_answer(1, "", "") == "cannot be reached (status 1)"
