"""A lab that stays up: a background process, the holder, keeps it alive, and other processes find it by its folder.

The folder is `parallax-lab.NAME` in the directory for temporary files. The process that starts the lab locks the
folder, and the holder inherits the lock. The kernel releases the lock however the holder ends, so an unlocked folder is
a leftover of a lab that is gone. The folder contains `pid` (the holder's), `state.json` once the hosts are up, `log`,
and the lab's own files.

`python -m ops.lab.holder FOLDER SHAPE_JSON LOCK_FD` is the holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from ops.lab import links
from ops.lab.hosts import EmulatedHost, Hosts
from ops.lab.lab import Lab, why_not
from ops.lab.rates import mbit

ROOT = Path(__file__).resolve().parents[2]
_UP_LIMIT_S = 120.0
_DOWN_LIMIT_S = 15.0
_POLL_S = 0.05


class LabError(RuntimeError):
    """A request for a lab cannot be met; the message states the rule, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The requested size and rates of a lab. Labs of equal shapes are interchangeable.

    Args:
        hosts: number of hosts.
        workers: default number of workers on each host in a resource file.
        rates: of each host's link in bytes per second; None for no limit.
        mtu: of the links.
    """

    hosts: int
    workers: int
    rates: tuple[int | None, ...]
    mtu: int = links.MTU

    def __str__(self) -> str:
        rates = ", ".join("unlimited" if rate is None else mbit(rate) for rate in self.rates)
        return f"{self.hosts} host(s), workers on each: {self.workers}, links: {rates}, frames: {self.mtu} bytes"


@dataclass(frozen=True, slots=True)
class Held:
    """A lab that is up in the background."""

    shape: Shape
    hosts: Hosts


def folder_of(name: str) -> Path:
    """Returns the folder of a background lab."""
    return Path(tempfile.gettempdir()) / f"parallax-lab.{name}"


def up(name: str, shape: Shape) -> tuple[Held, bool]:
    """Brings a lab up, unless one of this name and shape is up already.

    Returns:
        The lab, and whether this call has started it.

    Raises:
        LabError: no lab can be made here, or one of another shape is up.
    """
    if reason := why_not():
        raise LabError(f"No lab can be made here: {reason}.")
    folder = folder_of(name)
    with _locked(folder, make=True) as lock:
        if lock is not None:
            _empty(folder)
            _start(folder, shape, lock)
            return find(name), True
    held = find(name)
    if held.shape != shape:
        raise LabError(
            f"A running lab cannot change its shape; received {shape} for {name!r}, which has {held.shape}. "
            f"Take it down first: python -m ops.lab down --name {name}"
        )
    return held, False


def find(name: str) -> Held:
    """Finds the running lab of this name.

    Raises:
        LabError: it is not up.
    """
    folder = folder_of(name)
    with _locked(folder) as lock:
        if lock is not None or not folder.exists():
            raise LabError(f"No lab {name!r} is up. Bring it up: python -m ops.lab up --hosts N --name {name}")
    deadline_s = time.monotonic() + _UP_LIMIT_S
    while not (folder / "state.json").exists():  # another process is starting it
        if time.monotonic() > deadline_s or not folder.exists():
            raise LabError(
                f"Lab {name!r} did not come up; see {folder}/log. Take it down first: python -m ops.lab down"
            )
        time.sleep(_POLL_S)
    state = json.loads((folder / "state.json").read_text())
    hosts = Hosts(folder, state["bridge_pid"], [EmulatedHost(**host) for host in state["hosts"]])
    return Held(_shape(state["shape"]), hosts)


def down(name: str) -> bool:
    """Takes a lab down, whatever its state; returns False if there was none.

    Raises:
        LabError: its holder does not exit.
    """
    folder = folder_of(name)
    if not folder.exists():
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline_s = time.monotonic() + _DOWN_LIMIT_S
        told = False
        while time.monotonic() < deadline_s:
            with _locked(folder) as lock:
                if lock is not None or not folder.exists():
                    shutil.rmtree(folder, ignore_errors=True)
                    return True
                told = told or _tell(folder, number)
            time.sleep(_POLL_S)
    raise LabError(f"The background process of lab {name!r} does not exit; {folder}/pid has its number.")


def _tell(folder: Path, number: int) -> bool:
    """Sends a signal to the holder; returns False if there is none yet."""
    with contextlib.suppress(OSError, ValueError):  # the file or the process may not exist
        pid = int((folder / "pid").read_text())
        if b"ops.lab.holder" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, number)
            return True
    return False


@contextlib.contextmanager
def _locked(folder: Path, make: bool = False) -> Iterator[int | None]:
    """Locks a folder and yields its file descriptor; None if another process has the lock or there is no folder."""
    if make:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            raise LabError(
                f"A lab's folder must belong to the user who starts the lab; {folder} belongs to another. "
                "Choose another --name."
            )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = not folder.exists() or os.fstat(lock).st_ino != folder.stat().st_ino
        except BlockingIOError:
            gone = True
        yield None if gone else lock
    finally:
        os.close(lock)


def _empty(folder: Path) -> None:
    """Removes the leftovers of a lab that is gone."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _start(folder: Path, shape: Shape, lock: int) -> None:
    """Starts the holder, which inherits the lock, and waits until the hosts are up."""
    words = [str(folder), json.dumps(asdict(shape)), str(lock)]
    with (folder / "log").open("wb") as log:
        holder = subprocess.Popen(
            [sys.executable, "-m", "ops.lab.holder", *words],
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
        )
    deadline_s = time.monotonic() + _UP_LIMIT_S
    while not (folder / "state.json").exists():
        if holder.poll() is not None or time.monotonic() > deadline_s:
            holder.kill()
            holder.wait()
            said = (folder / "log").read_text(errors="replace").strip() if folder.exists() else "It was taken down."
            shutil.rmtree(folder, ignore_errors=True)
            raise LabError(f"The lab did not come up. {said[-2000:]}")
        time.sleep(_POLL_S)


def _shape(values: dict[str, Any]) -> Shape:
    return Shape(**{**values, "rates": tuple(values["rates"])})


def _hold(folder: Path, shape: Shape) -> NoReturn:
    """Makes the lab, records its state in the folder, and sleeps until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (folder / "pid").write_text(str(os.getpid()))
    rates = {f"host{number}": rate for number, rate in enumerate(shape.rates)}
    with Lab(shape.hosts, host_rates=rates, mtu=shape.mtu, folder=folder) as lab:
        hosts = [asdict(host) for host in lab.hosts]
        state = {"shape": asdict(shape), "bridge_pid": lab.bridge_pid, "hosts": hosts}
        unfinished = folder / "state.json.new"
        unfinished.write_text(json.dumps(state, indent=1))
        unfinished.rename(folder / "state.json")
        while True:
            signal.pause()


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[3]), False)
    _hold(Path(sys.argv[1]), _shape(json.loads(sys.argv[2])))
