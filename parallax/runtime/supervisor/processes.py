"""Finds a job's processes on this host, monitors them, terminates them and cleans up after them.

Every process of a job carries the job's mark in its environment, which its children inherit, so leftover processes are
found whoever started them. Linux only: it reads /proc and asks the kernel to signal a child when its parent dies.

Run as a script, `processes.py PARENT SIGNAL HELD COMMAND...` becomes COMMAND with that parent-death signal, and blocks
the signals HELD (numbers with commas between). It is for parents that have threads (TensorFlow's), where no Python code
may run between fork and exec.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

JOB_ID = "PARALLAX_JOB_ID"
RANK = "OMPI_COMM_WORLD_RANK"
"""Set by mpirun."""
GONE = "X"
STOPPED = "T"  # by a signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_KILL_WAIT_S = 5.0  # a killed process that stays longer than this is stuck inside the kernel
_POLL_S = 0.02
_SESSIONS = "ompi."  # prefix of the folder of a user's sessions with Open MPI on a host, which its last session removes


def die_with_parent(number: int) -> None:
    """Makes the kernel send signal `number` to this process when the thread that started it ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def tied_argv(
    python: str, argv: list[str], parent_pid: int, number: int, blocked_signals: Iterable[int] = ()
) -> list[str]:
    """Wraps `argv` in a command that gets signal `number` when process `parent_pid`, which must start it, dies.

    Args:
        python: path of the interpreter.
        argv: the command.
        parent_pid: the process that starts it.
        number: the signal.
        blocked_signals: signals that are blocked in the command: they stay pending, where `pending_signals` reads them.
    """
    # Isolated and without site packages: it starts in 10 ms and imports nothing of the user's folder.
    words = [str(parent_pid), str(number), ",".join(map(str, blocked_signals))]
    return [python, "-I", "-S", str(Path(__file__)), *words, *argv]


def processes_with(marks: Mapping[str, str]) -> tuple[int, ...]:
    """Returns the process ids, ascending, whose environment at their start had all of `marks`; never the caller itself.

    Processes of other users and zombies are left out.
    """
    marks_text = {f"{name}={value}".encode() for name, value in marks.items()}
    pids = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        if marks_text <= set(environment.split(b"\0")):
            pids.append(int(folder.name))
    return tuple(sorted(pids))


def end_processes(marks: Mapping[str, str], grace_s: float) -> tuple[int, ...]:
    """Waits up to `grace_s` until no process has `marks`, then kills the rest.

    Returns:
        The process ids that could not be killed within a few seconds, normally none.
    """
    left = _wait_until_gone(marks, grace_s)
    deadline = time.monotonic() + _KILL_WAIT_S
    while left and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        left = _wait_until_gone(marks, 10 * _POLL_S)  # again: a process may have forked meanwhile
    return left


def _wait_until_gone(marks: Mapping[str, str], timeout_s: float) -> tuple[int, ...]:
    deadline = time.monotonic() + timeout_s
    while True:
        left = processes_with(marks)
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_S)


def _become(parent_pid: int, number: int, blocked_signals: str, argv: list[str]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [int(word) for word in blocked_signals.split(",") if word])
    die_with_parent(number)
    if os.getppid() != parent_pid:  # the parent died before the kernel was set up
        sys.exit(128 + number)
    os.execv(argv[0], argv)


class Vitals(NamedTuple):
    """The state of a process at one moment.

    Attributes:
        state: the letter of proc(5): R running or runnable, S sleeping, D sleeping in the kernel, T stopped by a
            signal, t stopped by a debugger, Z dead; X when there is no such process.
        ticks: processor time of all its threads, in the kernel's ticks (10 ms).
    """

    state: str
    ticks: int = 0


def vitals_of(pid: int) -> Vitals:
    """Reads the vitals of process `pid` on this machine."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return Vitals(GONE)
    return Vitals(words[0], int(words[11]) + int(words[12]))


def pending_signals(pid: int, blocked_signals: Iterable[int]) -> tuple[int, ...]:
    """Returns those of the signals `blocked_signals` that are pending for process `pid`, which blocks them."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:")), 0)
    return tuple(number for number in blocked_signals if mask >> (number - 1) & 1)


def scratch_patterns(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Returns patterns of the files that a killed Open MPI leaves on a host: a session folder, shared memory.

    Args:
        variables: the environment of a rank.
    """
    folder = glob.escape(variables.get("OMPI_MCA_orte_jobfam_session_dir", ""))
    number = variables.get("OMPI_MCA_ess_base_jobid", "")
    segments = f"/dev/shm/vader_segment.*.{int(number):x}.*" if number.isdigit() else ""
    return tuple(pattern for pattern in (folder, segments) if pattern)


def mpirun_scratch(variables: Mapping[str, str], pid: int) -> str:
    """Returns a pattern of the session folder that mpirun makes before any rank can report it.

    Args:
        variables: the environment of mpirun.
        pid: its process, on this machine.
    """
    places = (variables.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    folder = glob.escape(next(filter(None, places), "/tmp"))
    return f"{folder}/{_SESSIONS}{os.uname().nodename.partition('.')[0]}.{os.geteuid()}/pid.{pid}"


def remove_scratch(patterns: Iterable[str]) -> None:
    """Removes files that match the patterns on this host; links are not followed, and other users' files stay."""
    for pattern in sorted(patterns):
        for path in Path("/").glob(pattern.lstrip("/")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    path.unlink()
            if path.parent.name.startswith(_SESSIONS):
                with contextlib.suppress(OSError):  # another job has a session in it
                    path.parent.rmdir()


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
