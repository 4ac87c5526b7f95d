"""`parallax doctor`: probes all hosts, measures their links, and prints problems with their remedies."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from parallax.base.errors import LaunchError
from parallax.base.strict import Amount, shown
from parallax.base.types import JsonObject
from parallax.cluster.machines import Cluster
from parallax.cluster.plan_inputs import PlanInputs, read_measured
from parallax.report.show import show, write_file
from parallax.report.text import align, pluralize
from parallax.runtime.doctor import probe
from parallax.runtime.doctor.findings import (
    CHECKS,
    MPI,
    SHARED_MEMORY,
    Answer,
    Expectations,
    Finding,
    HostFacts,
    Links,
    findings,
)
from parallax.runtime.doctor.host_queries import query_hosts
from parallax.runtime.doctor.island_proposal import proposal_text
from parallax.runtime.launcher.job import Job, cluster_named
from parallax.runtime.launcher.launch import launch
from parallax.runtime.launcher.mpirun import Launcher, this_launcher
from parallax.runtime.launcher.startable import check_startable
from parallax.runtime.supervisor.control import DamagedMessage
from parallax.runtime.supervisor.limits import Limits
from parallax.runtime.supervisor.sealed_files import value_of
from parallax.settings.config import HOST_TIMEOUT_S
from parallax.settings.environment import python_path_with

LIBRARIES = tuple(f"libparallax_{name}.so" for name in ("exchange", "frozen", "preload", "rows"))
"""The native libraries that `parallax setup` builds; a job may need each of them."""
_LINKS = "parallax.runtime.doctor.links"
_PROJECT = Path(__file__).resolve().parents[2]
_RANK_0 = b"[0] "
# A job of a few seconds: longer silence is reported, whatever the timeout of users' jobs.
_LIMITS = Limits(begin_s=60.0, start_s=30.0)
_LAST_LINES = 3


def doctor(
    resource: str | None,
    workers: int | None,
    cluster_profile: str | None,
    checkpoints: str | None,
    output: str | None,
    limit_s: float = HOST_TIMEOUT_S,
) -> int:
    """Checks the hosts of a job, and prints a table of them.

    Args:
        resource: a resource file; None for this machine.
        workers: on this machine, if there is no file.
        cluster_profile: the profile with which links are compared, if any.
        checkpoints: a folder for checkpoints on worker 0's host, if any.
        output: a JSON file for the findings, if any.
        limit_s: how long a host may take to respond.

    Returns:
        The exit status: 0 if there is no problem, else 1.

    Raises:
        ParallaxError: the resource file, the profile or the number of workers is invalid, or there is no mpirun.
    """
    cluster = cluster_named(resource, workers)
    measured = read_measured(cluster_profile, None)
    measured.check_names([host.address for host in cluster.hosts])
    launcher = this_launcher()
    questions_by_host = questions(cluster, launcher, checkpoints)
    launcher_facts = HostFacts(**probe.facts({**questions_by_host[0], "ports": None, "written": []}))
    against = Expectations(
        *(cluster, launcher_facts, launcher.python, launcher.folder, tempfile.gettempdir()),
        checkpoints="" if checkpoints is None else str(Path(checkpoints).absolute()),
        expected=tuple(
            float((host.link_bytes_per_s or 0) if measured.cluster is None else of_profile)
            for host, of_profile in zip(cluster.hosts, _rates(measured, cluster), strict=True)
        ),
    )
    answers = query_hosts(cluster, launcher.python, questions_by_host, limit_s, _tell)
    found = findings(against, answers)
    links = Links()
    if not cluster.is_local:
        links = _links(cluster, found)
        found = findings(against, answers, links)
    found += _unstartable(cluster, launcher)
    show(table_text(cluster, found) + proposal_text(cluster, links.pairs))
    if output is not None:
        write_file(output, json_text(found, answers), "--json")
    return 1 if any(one.problem for one in found) else 0


def questions(cluster: Cluster, launcher: Launcher, checkpoints: str | None) -> list[JsonObject]:
    """The request to each host (probe.py)."""
    first = next(number for number, host in enumerate(cluster.hosts) if host.num_workers)
    libraries = [str(Path(launcher.python).parent.parent / "lib" / name) for name in LIBRARIES]
    return [
        {
            "project": str(_PROJECT),
            "libraries": libraries,
            "mpirun": launcher.mpirun,
            "disks": [tempfile.gettempdir(), SHARED_MEMORY],
            "written": [str(Path(checkpoints).absolute())] if checkpoints is not None and number == first else [],
            "address": host.address,
            "ports": cluster.ports,
            "folder": launcher.folder,
        }
        for number, host in enumerate(cluster.hosts)
    ]


def _tell(text: str) -> None:
    sys.stderr.write(f"parallax: {text}\n")
    sys.stderr.flush()


def _rates(measured: PlanInputs, cluster: Cluster) -> list[float]:
    """The slower direction of each host's link, from the profile; 0 without one."""
    if measured.cluster is None:
        return [0.0] * len(cluster.hosts)
    return [min(host.out_bytes_per_s, host.in_bytes_per_s) for host in measured.cluster.hosts]


def _unstartable(cluster: Cluster, launcher: Launcher) -> list[Finding]:
    """Problems of this machine that would keep a job from being started."""
    try:
        check_startable(Job(("-m", _LINKS), cluster), launcher)
    except LaunchError as error:
        return [Finding(cluster.hosts[0].address, MPI, "", str(error).rstrip("."))]
    return []


def _links(cluster: Cluster, findings_so_far: Sequence[Finding]) -> Links:
    """Measures the rates of the links, if no problem is known yet that would keep MPI from starting."""
    if any(one.problem and one.check in CHECKS[: CHECKS.index("cores")] for one in findings_so_far):
        return Links()
    hosts = tuple(replace(host, num_workers=1, gpus=(), num_servers=None) for host in cluster.hosts)
    path = ("PYTHONPATH", python_path_with(_PROJECT.parent))
    job = Job(("-m", _LINKS), replace(cluster, hosts=hosts), environment=(path,), limits=_LIMITS)
    output, errors = io.BytesIO(), io.BytesIO()
    try:
        status = launch(job, output, errors).status
    except LaunchError as error:
        return Links(why=str(error))
    if status:
        lines = errors.getvalue().decode("utf-8", "replace").splitlines()
        return Links(why=" ".join(lines[-_LAST_LINES:]))
    return read_links(output.getvalue(), len(hosts))


def read_links(output: bytes, num_hosts: int) -> Links:
    """Parses the rates that rank 0 has written (links.py), of all hosts."""
    lines = [line for line in output.splitlines() if line.startswith(_RANK_0)]
    try:
        line = lines[-1][len(_RANK_0) :] if lines else b""
        rates, pairs = value_of(line, tuple[list[tuple[Amount, Amount]], list[tuple[Amount, ...]]])
    except DamagedMessage as error:
        return Links(why=f"rank 0 sent damaged rates: {error}")
    if len(rates) != num_hosts:
        return Links(why=f"rank 0 must report rates of {pluralize(num_hosts, 'host')}, got {len(rates)}")
    if pairs and {len(pairs), *map(len, pairs)} != {num_hosts}:
        return Links(why=f"rank 0 must report rates between every two of {pluralize(num_hosts, 'host')}")
    return Links(tuple(rates), pairs=tuple(pairs))


def table_text(cluster: Cluster, found: Sequence[Finding]) -> str:
    """A row for each host, a column for each check that was made, and below them the problems with remedies."""
    by_place = {(one.host, one.check): one for one in found}
    checks = [check for check in CHECKS if any(one.check == check for one in found)]

    def cell(host: str, check: str) -> str:
        one = by_place.get((host, check))
        return "-" if one is None else "problem" if one.problem else "ok"

    rows = [(host.address, *(cell(host.address, check) for check in checks)) for host in cluster.hosts]
    lines = align(("host", *checks), rows)
    wrong = [one for one in found if one.problem]
    for one in wrong:
        lines += [f"{one.host}, {one.check}: {one.problem}.", *([f"  {one.remedy}"] if one.remedy else [])]
    hosts = pluralize(len(cluster.hosts), "host")
    lines.append(f"{pluralize(len(wrong), 'problem')} on {hosts}." if wrong else f"No problems on {hosts}.")
    return "".join(f"{shown(line)}\n" for line in lines)  # some contain text from hosts


def json_text(results: Sequence[Finding], answers: Sequence[Answer]) -> str:
    """All findings, and the hosts' answers."""
    body = {"findings": [asdict(one) for one in results], "hosts": [asdict(one) for one in answers]}
    return json.dumps(body, indent=1, sort_keys=True) + "\n"
