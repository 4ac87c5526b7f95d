"""Evaluates the hosts' answers: the problems of each host, and their remedies.

A check compares one property of a host with the job's requirements or with the launching host: workers plan and
exchange by the same code only if all properties are equal.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from parallax.base.strict import Count, Positive, Text, checked_value, read_json
from parallax.base.types import JsonObject
from parallax.cluster.machines import Cluster, Host
from parallax.report.text import bytes_text
from parallax.runtime.doctor.probe import NOT_NATIVE
from parallax.runtime.launcher.reach import argv_on
from parallax.runtime.supervisor.host_checks import SEGMENT_BYTES, SESSION_BYTES
from parallax.runtime.trace.clocks import Offset

REACHED, PYTHON, PACKAGES, MPI, PROJECT, CORES, MEMORY, DISK, FILES, PORTS, CLOCK, LINK = CHECKS = (
    *("reached", "python", "packages", "mpi", "project", "cores"),
    *("memory", "disk", "files", "ports", "clock", "link"),
)
"""The checks, in the order of the table's columns."""

SHARED_MEMORY = "/dev/shm"
CHECKPOINT_BYTES = 1 << 30
"""The space that a folder for checkpoints should have if their size is unknown."""
CLOCK_US = 500_000.0
"""The largest clock difference: files of several hosts are then in the order in which they were written."""
LINK_SHARE = 0.7
"""A link with a smaller part of the expected rate is reported: short measurements vary by 10 to 20 %."""
_OWN_FILES, _PEER_FILES = 256, 4  # files that TensorFlow and Python open; connections to one other rank


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host's answer about itself (probe.py).

    Attributes:
        name: its own host name.
        python: version.
        packages: that workers import: name -> version; empty for one that is missing.
        mpirun: its version line; empty if it does not run.
        project: digest of the project's source; empty if there is none.
        libraries: path -> digest of each native library; empty for one that is missing, NOT_NATIVE for one of another
            processor.
        cores: that processes may use.
        memory_bytes: that is free.
        disks: folder -> free bytes.
        unwritable: folders that must be writable, and are not.
        has_folder: whether the ranks' working folder exists.
        open_files: how many a process may have.
        free_ports: of the range; None if any will do.
    """

    name: Text
    python: Text
    packages: Mapping[Text, Text]
    mpirun: Text
    project: Text
    libraries: Mapping[Text, Text]
    cores: Positive
    memory_bytes: Count
    disks: Mapping[Text, Count]
    unwritable: Sequence[Text]
    has_folder: bool
    open_files: Count
    free_ports: Count | None


def facts_from(text: bytes, question: JsonObject) -> HostFacts:
    """Parses a host's answer to all that was requested (probe.py).

    Raises:
        ValueError: it is not JSON, has other fields or types, or is about other folders or files.
    """
    raw = read_json(text.decode("utf-8", "replace"), ValueError, "answer", "an answer")
    facts = checked_value(raw, HostFacts)
    for name, requested in (
        ("libraries", question["libraries"]),
        ("disks", [*question["disks"], *question["written"]]),
    ):
        answers = getattr(facts, name)
        if set(answers) != set(requested):
            raise ValueError(
                f"an answer must have {name} of {', '.join(requested) or 'none'}, got {', '.join(answers)}"
            )
    return facts


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of probing one host.

    Attributes:
        address: of the host, as in the resource file.
        facts: its answer; None without one.
        why: why there is no answer.
        offset: added to its clock to get the launching machine's.
    """

    address: str
    facts: HostFacts | None
    why: str = ""
    offset: Offset | None = None


@dataclass(frozen=True, slots=True)
class Expectations:
    """The reference values for the hosts.

    Attributes:
        cluster: the machines of the job.
        local: the answer of the launching machine.
        python: the interpreter's path, on all hosts.
        folder: the ranks' working folder, on all hosts.
        temporary: the folder for temporary files.
        checkpoints: the folder of the checkpoints; empty for none.
        expected: rate of each host's link that was measured before, or that the resource file has, in bytes per second;
            0 if unknown.
    """

    cluster: Cluster
    local: HostFacts
    python: str
    folder: str
    temporary: str
    checkpoints: str = ""
    expected: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one host.

    Attributes:
        host: its address.
        check: its name.
        seen: the observed value.
        problem: the problem; empty if there is none.
        remedy: its remedy.
    """

    host: str
    check: str
    seen: str
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Links:
    """The results of the measuring job.

    Attributes:
        rates: (sending, receiving) of each host in bytes per second; empty if not measured.
        why: why not, if that is a problem.
        pairs: of every two hosts, by their numbers; empty if not measured.
    """

    rates: tuple[tuple[float, float], ...] = field(default=())
    why: str = ""
    pairs: tuple[tuple[float, ...], ...] = ()


def findings(against: Expectations, answers: Sequence[Answer], links: Links = Links()) -> list[Finding]:
    """All checks that were possible, host by host in the order of the resource file."""
    results: list[Finding] = []
    for number, (host, answer) in enumerate(zip(against.cluster.hosts, answers, strict=True)):
        results.append(_check_reach(host, answer, against))
        if answer.facts is None:
            continue
        results += _software(host, answer.facts, against)
        results += _room(host, answer.facts, against)
        if answer.offset is not None:
            results.append(_clock(host, answer.offset))
        if links.rates:
            expected = against.expected[number] if against.expected else 0.0
            results.append(_link(host, links.rates[number], expected))
    if links.why:
        remedy = "The job that measures links starts one process on each host, as mpirun starts workers: see there."
        results.append(Finding(against.cluster.hosts[0].address, LINK, "", links.why, remedy))
    return results


def _check_reach(host: Host, answer: Answer, against: Expectations) -> Finding:
    if answer.facts is not None:
        return Finding(host.address, REACHED, answer.facts.name)
    by_hand = shlex.join(argv_on(host, against.cluster.ssh, [against.python, "--version"]))
    return Finding(host.address, REACHED, "", answer.why, f"This command must end without asking anything: {by_hand}")


def _software(host: Host, facts: HostFacts, against: Expectations) -> Iterator[Finding]:
    """Checks software that must be equal on all hosts."""
    local, name = against.local, host.address
    same = "Install what the launching machine has, in the same folder: `make install`."
    differs = "" if facts.python == local.python else f"Python {facts.python}, but {local.python} here"
    yield Finding(name, PYTHON, facts.python, differs, differs and f"{against.python} must be the same. {same}")
    wrong = []
    for package, version in local.packages.items():
        there = facts.packages.get(package, "")
        if not there and not version:
            wrong.append(f"{package} is missing")
        elif there != version:
            wrong.append(f"{package} {there or 'missing'}, but {version or 'missing'} here")
    seen = ", ".join(f"{package} {version or 'missing'}" for package, version in facts.packages.items())
    yield Finding(name, PACKAGES, seen, "; ".join(wrong), same if wrong else "")
    is_other = not facts.mpirun or facts.mpirun != local.mpirun
    differs = f"{facts.mpirun or 'no mpirun'}, but {local.mpirun or 'none'} here" if is_other else ""
    yield Finding(name, MPI, facts.mpirun, differs, same if differs else "")
    yield _project(name, facts, local, against.folder)


def _project(name: str, facts: HostFacts, local: HostFacts, folder: str) -> Finding:
    wrong = [f"{path} {how}" for path in facts.libraries if (how := _library(path, facts, local))]
    if not facts.project:
        return Finding(name, PROJECT, "", "no project", "Copy it to the path that it has on the launching machine.")
    if facts.project != local.project:
        remedy = "Copy the launching machine's version, or use a folder that all hosts share."
        return Finding(
            name, PROJECT, facts.project[:12], f"another version of the project, {facts.project[:12]}", remedy
        )
    if wrong:
        return Finding(
            name, PROJECT, facts.project[:12], "; ".join(wrong), "Build the libraries there: `parallax setup`."
        )
    if not facts.has_folder:
        remedy = (
            "Ranks run in the launcher's working folder: create it there, or start the job in one that all hosts have."
        )
        return Finding(name, PROJECT, facts.project[:12], f"no folder {folder}", remedy)
    return Finding(name, PROJECT, facts.project[:12])


def _library(path: str, facts: HostFacts, local: HostFacts) -> str:
    """The problem with a native library of a host; empty if there is none."""
    digest, expected = facts.libraries[path], local.libraries.get(path, "")
    if not digest:
        return "is missing"
    if digest == NOT_NATIVE:
        return "is not built for the processor there"
    return "is another" if expected not in ("", NOT_NATIVE, digest) else ""


def _room(host: Host, facts: HostFacts, against: Expectations) -> Iterator[Finding]:
    """Checks the resources that a job needs of a host."""
    name = host.address
    ranks = host.num_workers + (host.num_servers or 0)
    few = host.num_workers > facts.cores
    problem = f"{host.num_workers} workers on {facts.cores} cores" if few else ""
    yield Finding(name, CORES, str(facts.cores), problem, "Name fewer workers: these would share cores." if few else "")
    expected_bytes = host.memory_bytes or 0
    short = facts.memory_bytes < expected_bytes
    problem = (
        f"{bytes_text(facts.memory_bytes)} free, but the resource file says {bytes_text(expected_bytes)}"
        if short
        else ""
    )
    remedy = "Free memory, or correct `memory`." if short else ""
    yield Finding(name, MEMORY, bytes_text(facts.memory_bytes), problem, remedy)
    yield _disk(host, facts, against)
    needed = _OWN_FILES + _PEER_FILES * against.cluster.num_workers
    problem = (
        f"a process may open {facts.open_files} files, but needs up to {needed}" if facts.open_files < needed else ""
    )
    remedy = "Raise the limit (/etc/security/limits.conf, or the container's ulimits)." if problem else ""
    yield Finding(name, FILES, str(facts.open_files), problem, remedy)
    if facts.free_ports is not None and against.cluster.ports is not None:
        first, last = against.cluster.ports
        needed = max(ranks, host.num_workers + 1)
        problem = f"{facts.free_ports} ports of {first}-{last} are free, but servers need {needed}"
        problem = problem if facts.free_ports < needed else ""
        remedy = "Widen `ports`; 0 are also free where the address does not belong to the host." if problem else ""
        yield Finding(name, PORTS, str(facts.free_ports), problem, remedy)


def _disk(host: Host, facts: HostFacts, against: Expectations) -> Finding:
    """Checks the space for Open MPI's files, and for checkpoints on worker 0's host."""
    needed = {against.temporary: SESSION_BYTES}
    if host.num_workers > 1:
        needed[SHARED_MEMORY] = host.num_workers * SEGMENT_BYTES * 21 // 20
    if against.checkpoints and against.checkpoints in facts.disks:
        needed[against.checkpoints] = max(CHECKPOINT_BYTES, needed.get(against.checkpoints, 0))
    problems = [f"{folder} cannot be written" for folder in facts.unwritable]
    problems += [
        f"{bytes_text(facts.disks[folder])} free in {folder}, but {bytes_text(least)} are recommended"
        for folder, least in needed.items()
        if facts.disks[folder] < least
    ]
    seen = ", ".join(f"{folder} {bytes_text(free)}" for folder, free in facts.disks.items())
    remedy = "Free space, or name other folders (TMPDIR, `ckpt_dir`)." if problems else ""
    return Finding(host.address, DISK, seen, "; ".join(problems), remedy)


def _clock(host: Host, offset: Offset) -> Finding:
    """Checks for a clock that is certainly off."""
    seen = f"{offset.offset_us / 1e3:+.1f} ms"
    if abs(offset.offset_us) - offset.uncertainty_us <= CLOCK_US:
        return Finding(host.address, CLOCK, seen)
    problem = f"its clock is {abs(offset.offset_us) / 1e6:.1f} s {'behind' if offset.offset_us > 0 else 'ahead'}"
    return Finding(host.address, CLOCK, seen, problem, "Synchronize it with NTP (chrony, systemd-timesyncd).")


def _link(host: Host, rates: tuple[float, float], expected: float) -> Finding:
    seen = " and ".join(f"{8e-6 * rate:,.0f} Mbit/s" for rate in rates)
    if min(rates) >= LINK_SHARE * expected:
        return Finding(host.address, LINK, seen)
    problem = f"its link sends and receives {seen}, but {8e-06 * expected:,.0f} Mbit/s were expected"
    remedy = "Check what else uses it, and its speed (`ethtool`); or measure again with `parallax calibrate`."
    return Finding(host.address, LINK, seen, problem, remedy)
