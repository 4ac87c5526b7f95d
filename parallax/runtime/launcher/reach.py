"""Checks in parallel that all hosts of a job can be reached, before mpirun starts, which would not name a failing host.

A silent host is reported after some seconds, and ends the wait at its timeout. A host that has answered but keeps the
connection open is left to mpirun: only certain failures are refused.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple

from parallax.base.errors import LaunchError
from parallax.cluster.machines import Host, Ssh
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.mpirun import Launcher, may_use_ssh

NOTICE_S = 5.0
"""Seconds after which the user sees which hosts have not responded."""
_POLL_S = 0.05
_REACHED = "parallax-reached"


class HostsNotReady(LaunchError):
    """Hosts of a job cannot be reached, or lack what every host must have; `hosts` has their addresses."""

    hosts: tuple[str, ...] = ()


def argv_on(host: Host, ssh: Ssh, words: Sequence[str]) -> list[str]:
    """The command that runs `words` on a host, through the agent by which mpirun reaches it."""
    if host.is_this_machine:
        return list(words)
    return [*shlex.split(ssh.command), host.address, shlex.join(words)]


class _ProbedHost(NamedTuple):
    """A probed host: the command's output goes to files, so that processes it leaves behind block nothing."""

    host: Host
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]


def check_reachable(
    job: Job, launcher: Launcher, tell: Callable[[str], None], is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Refuses a job if one of its hosts cannot be reached, does not respond, or lacks what every host must have.

    Args:
        job: its hosts are probed, with its timeout.
        launcher: lists what every host must have.
        tell: prints a line to the user with the hosts that are awaited.
        is_stopped: whether the job must not be started any more; then there is no wait.

    Raises:
        HostsNotReady: names each such host, and its problem.
        LaunchError: the command that reaches them cannot be started.
    """
    cluster = job.cluster
    hosts = [host for host in cluster.hosts if not host.is_this_machine]
    if not hosts or not may_use_ssh(cluster):
        return
    words = _question(launcher)
    probed: list[_ProbedHost] = []
    try:
        for host in hosts:
            probed.append(_start(host, argv_on(host, cluster.ssh, words)))
        _wait(probed, job.host_timeout_s, tell, is_stopped)
        if not is_stopped():
            _refuse(probed, job.host_timeout_s)
    finally:
        for one in probed:
            _end(one)


def describe_waiting(hosts: Sequence[str], waited_s: float, limit_s: float) -> str:
    """The user message about hosts that have not responded yet."""
    verb = "has" if len(hosts) == 1 else "have"
    return (
        f"{name_hosts(hosts)} {verb} not responded for {waited_s:.0f} s. Waiting for at most {limit_s:g} s "
        "(--host-timeout-s)."
    )


def name_hosts(hosts: Sequence[str]) -> str:
    """Hosts as the subject of a sentence."""
    return f"host {hosts[0]}" if len(hosts) == 1 else f"hosts {', '.join(hosts)}"


def _wait(
    probed: Sequence[_ProbedHost], limit_s: float, tell: Callable[[str], None], is_stopped: Callable[[], bool]
) -> None:
    """Waits until all commands have ended, or time is up."""
    began_s = time.monotonic()
    has_logged = False
    while (waited_s := time.monotonic() - began_s) < limit_s and not is_stopped():
        left = [one.host.address for one in probed if one.process.poll() is None]
        if not left:
            return
        if waited_s >= NOTICE_S and not has_logged:
            tell(describe_waiting(left, waited_s, limit_s))
            has_logged = True
        time.sleep(_POLL_S)


def _refuse(probed: Sequence[_ProbedHost], limit_s: float) -> None:
    """Raises HostsNotReady for problems that the hosts report, and for hosts that have not responded."""
    silent, wrong = [], {}
    for host, process, out, err in probed:
        status, output = process.poll(), _text_of(out)
        if status is None and _REACHED not in output.splitlines():
            silent.append(host.address)
        elif status is not None and (why := diagnose_answer(status, output, _text_of(err))):
            wrong[host.address] = f"host {host.address} {why}"
    if not silent and not wrong:
        return
    listed = list(wrong.values())
    if silent:
        listed.append(f"{name_hosts(silent)} did not respond within {limit_s:g} s")
    error = HostsNotReady(
        f"All hosts of a job must be ready: {'; '.join(listed)}. `parallax doctor -r FILE` checks all of them."
    )
    error.hosts = (*wrong, *silent)
    raise error


def diagnose_answer(status: int, out: str, err: str) -> str:
    """The problem that a host's answer shows; empty if there is none.

    Args:
        status: of the probing command.
        out: its output.
        err: its error output.
    """
    lines = out.splitlines()
    if _REACHED not in lines:
        error_lines = [line.strip() for line in err.splitlines() if line.strip()]
        return f"cannot be reached (status {status}{': ' + error_lines[-1] if error_lines else ''})" if status else ""
    missing = lines[lines.index(_REACHED) + 1 :]
    return f"lacks {', '.join(missing)}" if missing else ""


def _start(host: Host, argv: list[str]) -> _ProbedHost:
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
    except OSError as error:
        raise LaunchError(
            f"Other hosts are reached with `{argv[0]}`, which cannot be started: {error.strerror}. Install it, or set "
            "another command as `ssh: {agent: ...}` in the resource file."
        ) from error
    return _ProbedHost(host, process, out, err)


def _question(launcher: Launcher) -> list[str]:
    """A command that reports that it runs, and then the missing ones of the paths that every host must have."""
    paths = [launcher.python, launcher.folder]
    if launcher.prefix is not None:  # mpirun of the environment
        paths.append(launcher.mpirun)
    if launcher.has_library:
        paths.append(launcher.preload_library)
    tests = "; ".join(f"test -e {shlex.quote(path)} || echo {shlex.quote(path)}" for path in paths)
    return ["sh", "-c", f"echo {_REACHED}; {tests}; true"]


def _text_of(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")


def _end(probed: _ProbedHost) -> None:
    """Ends a command that still runs, with all processes that it started on this machine."""
    if probed.process.poll() is None:
        os.killpg(probed.process.pid, signal.SIGKILL)
        probed.process.wait()
    probed.out.close()
    probed.err.close()
