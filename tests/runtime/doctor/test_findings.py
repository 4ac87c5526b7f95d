"""What is found wrong of what hosts have told; no host is asked."""

from dataclasses import replace

import pytest

from parallax.cluster.machines import Cluster, Host, Ssh
from parallax.runtime.doctor.command import table_text
from parallax.runtime.doctor.findings import CHECKS, Answer, Expectations, HostFacts, Links, findings
from parallax.runtime.trace.clocks import Offset

OWN = HostFacts(
    name="here",
    python="3.11.7",
    packages={"tensorflow": "2.21.0", "horovod": "0.28.1", "mpi4py": "4.1.2", "numpy": "2.4.6", "keras": "3.15.1"},
    mpirun="mpirun (Open MPI) 4.1.8",
    project="a" * 64,
    libraries={"/env/lib/libparallax_rows.so": "b" * 64},
    cores=4,
    memory_bytes=8 << 30,
    disks={"/tmp": 5 << 30, "/dev/shm": 1 << 30, "/kept": 5 << 30},
    unwritable=(),
    has_folder=True,
    open_files=1024,
    free_ports=8,
)
HOSTS = (Host("a", 2, num_servers=1, memory_bytes=4 << 30), Host("b", 2, num_servers=1, memory_bytes=4 << 30))
CLUSTER = Cluster(HOSTS, Ssh(user="me"), ports=(20000, 20007))
AGAINST = Expectations(CLUSTER, OWN, "/env/bin/python", "/jobs", "/tmp", "/kept", (1e8, 1e8))
CLOCK = Offset(0.0, 900.0, 400.0)
RATES = Links(((9e7, 9e7), (9e7, 9e7)))


def found(told=OWN, offset=CLOCK, links=RATES, against=AGAINST):
    """What is found where host a is well, and b has told something else."""
    return findings(against, [Answer("a", OWN, offset=CLOCK), Answer("b", told, offset=offset)], links)


def wrong(**how):
    return [(one.host, one.check, one.problem) for one in found(**how) if one.problem]


def test_all_is_well():
    assert wrong() == []
    assert [one.check for one in found()] == 2 * [*CHECKS]
    assert table_text(CLUSTER, found()) == (
        "host  reached  python  packages  mpi  project  cores  memory  disk  files  ports  clock  link\n"
        "----  -------  ------  --------  ---  -------  -----  ------  ----  -----  -----  -----  ----\n"
        "a     ok       ok      ok        ok   ok       ok     ok      ok    ok     ok     ok     ok\n"
        "b     ok       ok      ok        ok   ok       ok     ok      ok    ok     ok     ok     ok\n"
        "No problems on 2 hosts.\n"
    )


@pytest.mark.parametrize(
    ("check", "change", "problem"),
    [
        ("python", {"python": "3.12.1"}, "Python 3.12.1, but 3.11.7 here"),
        ("packages", {"packages": {**OWN.packages, "numpy": "1.0"}}, "numpy 1.0, but 2.4.6 here"),
        ("packages", {"packages": {**OWN.packages, "keras": ""}}, "keras missing, but 3.15.1 here"),
        ("mpi", {"mpirun": ""}, "no mpirun, but mpirun (Open MPI) 4.1.8 here"),
        ("project", {"project": ""}, "no project"),
        ("project", {"project": "c" * 64}, "another version of the project, cccccccccccc"),
        ("project", {"libraries": {"/env/lib/libparallax_rows.so": ""}}, "/env/lib/libparallax_rows.so is missing"),
        ("project", {"libraries": {"/env/lib/libparallax_rows.so": "d"}}, "/env/lib/libparallax_rows.so is another"),
        ("project", {"has_folder": False}, "no folder /jobs"),
        ("cores", {"cores": 1}, "2 workers on 1 cores"),
        ("memory", {"memory_bytes": 1 << 30}, "1.074 GB free, but the resource file says 4.295 GB"),
        ("disk", {"disks": {**OWN.disks, "/tmp": 1000}}, "1 kB free in /tmp, but 12.6 MB are recommended"),
        ("disk", {"disks": {**OWN.disks, "/dev/shm": 0}}, "0 B free in /dev/shm, but 8.81 MB are recommended"),
        ("disk", {"disks": {**OWN.disks, "/kept": 0}}, "0 B free in /kept, but 1.074 GB are recommended"),
        ("disk", {"unwritable": ("/kept",)}, "/kept cannot be written"),
        ("files", {"open_files": 256}, "a process may open 256 files, but needs up to 272"),
        ("ports", {"free_ports": 2}, "2 ports of 20000-20007 are free, but servers need 3"),
    ],
)
def test_what_a_host_lacks_is_named_with_a_remedy(check, change, problem):
    assert wrong(told=replace(OWN, **change)) == [("b", check, problem)]
    assert all(one.remedy for one in found(told=replace(OWN, **change)) if one.problem)


@pytest.mark.parametrize(("offset_us", "which"), [(3e6, "behind"), (-3e6, "ahead")])
def test_a_clock_is_off_when_that_is_certain(offset_us, which):
    assert wrong(offset=Offset(0.0, offset_us, 4e5)) == [("b", "clock", f"its clock is 3.0 s {which}")]
    assert wrong(offset=Offset(0.0, offset_us, 2.6e6)) == []


def test_a_link_is_compared_with_what_is_known_of_it():
    slow = Links(((9e7, 9e7), (9e7, 5e7)))
    words = "its link sends and receives 720 Mbit/s and 400 Mbit/s, but 800 Mbit/s were expected"
    assert wrong(links=slow) == [("b", "link", words)]
    assert wrong(links=slow, against=replace(AGAINST, expected=())) == []
    assert wrong(links=Links(why="mpirun said no")) == [("a", "link", "mpirun said no")]


def test_of_a_host_that_gives_no_answer_only_that_is_told():
    silent = findings(AGAINST, [Answer("a", OWN), Answer("b", None, "did not respond within 30 s")])
    text = table_text(CLUSTER, silent)
    assert text.endswith(
        "b     problem  -       -         -    -        -      -       -     -      -\n"
        "b, reached: did not respond within 30 s.\n"
        "  This command must end without asking anything: ssh -o BatchMode=yes -l me b '/env/bin/python --version'\n"
        "1 problem on 2 hosts.\n"
    )
