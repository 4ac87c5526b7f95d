"""Whether the hosts of a job can be reached, asked of all at once before mpirun starts: it would not say which is not.

A host that gives no answer in time is left to mpirun, which waits longer: refused is only what is certain.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence

from parallax.cluster.machines import Host, Ssh
from parallax.errors import LaunchError
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.mpirun import Launcher, may_use_ssh

ANSWER_S = 10.0
_LEAST_S = 0.5  # to read an answer that came while another host was waited for
_REACHED = "parallax-reached"


class HostsNotReady(LaunchError):
    """Hosts of a job cannot be reached, or lack what every host must have; `hosts` has their addresses."""

    hosts: tuple[str, ...] = ()


def argv_on(host: Host, ssh: Ssh, words: Sequence[str]) -> list[str]:
    """The command that runs `words` on a host, by the way on which mpirun reaches it."""
    if host.is_this_machine:
        return list(words)
    return [*shlex.split(ssh.command), host.address, shlex.join(words)]


def check_reachable(job: Job, launcher: Launcher) -> None:
    """Refuses a job of which a host cannot be reached, or lacks what every host must have.

    Raises:
        HostsNotReady: names each such host, and what is wrong.
        LaunchError: the command that reaches them cannot be started.
    """
    cluster = job.cluster
    hosts = [host for host in cluster.hosts if not host.is_this_machine]
    if not hosts or not may_use_ssh(cluster):
        return
    words = _question(launcher)
    started = [_start(argv_on(host, cluster.ssh, words)) for host in hosts]
    until_s = time.monotonic() + ANSWER_S
    wrong = {}
    for host, process in zip(hosts, started, strict=True):
        try:
            out, err = process.communicate(timeout=max(_LEAST_S, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            _leave(process)
            continue
        if why := what_is_wrong(process.returncode, out, err):
            wrong[host.address] = f"host {host.address} {why}"
    if wrong:
        listed = "; ".join(wrong.values())
        error = HostsNotReady(
            f"All hosts of a job must be ready: {listed}. `parallax doctor -r FILE` looks at all of them."
        )
        error.hosts = tuple(wrong)
        raise error


def what_is_wrong(status: int, out: str, err: str) -> str:
    """What the answer of a host says against it; empty for nothing.

    Args:
        status: of the command that asked.
        out: what it wrote.
        err: what it wrote of errors.
    """
    lines = out.splitlines()
    if _REACHED not in lines:
        said = [line.strip() for line in err.splitlines() if line.strip()]
        return f"cannot be reached (status {status}{': ' + said[-1] if said else ''})" if status else ""
    missing = lines[lines.index(_REACHED) + 1 :]
    return f"has no {', '.join(missing)}" if missing else ""


def _start(argv: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise LaunchError(
            f"Other hosts are reached by `{argv[0]}`, and it cannot be started: {error.strerror}. Install it, or name "
            "another command as `ssh: {agent: ...}` in the resource file."
        ) from error


def _question(launcher: Launcher) -> list[str]:
    """A command that tells that it runs, and then which of the paths are missing that every host must have."""
    paths = [launcher.python, launcher.folder]
    if launcher.prefix is not None:  # mpirun of the environment
        paths.append(launcher.mpirun)
    if launcher.has_library:
        paths.append(launcher.preload_library)
    asked = "; ".join(f"test -e {shlex.quote(path)} || echo {shlex.quote(path)}" for path in paths)
    return ["sh", "-c", f"echo {_REACHED}; {asked}; true"]


def _leave(process: subprocess.Popen[str]) -> None:
    """Ends a command without waiting for what it has started elsewhere, which may hold its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
