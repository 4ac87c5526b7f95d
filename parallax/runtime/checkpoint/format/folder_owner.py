"""Reserves a checkpoint folder for one job by a mark: a file in the folder that its owner rewrites every few seconds.

A job deletes unfinished files in its folder, so two jobs in one folder would delete each other's files. The second job
is refused, with an error that names the first. A mark may be left behind by a killed process, a lost host or a rebooted
machine. On the owner's host the kernel says whether the owning process is alive. Any other host watches the mark by its
own clock: the mark changes while the owner is alive, whatever the owner's clock shows. A later start of the owner's own
job, made by its launcher after the earlier start has ended, takes the folder at once.

A job that takes over a folder from an owner that seems dead first only claims it, for longer than a live owner needs to
notice. An owner that was delayed, by a frozen disk for example, then rewrites its mark, and the claim is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import socket
import sys
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.strict import shown
from parallax.report.logger import log
from parallax.settings.environment import settings

OWNER = "parallax.owner"
"""The name of the mark."""
_CLAIMS, _HOLDS = "claims", "holds"
_START_FIELD = 19  # of /proc/PID/stat after the name: when the process began, in ticks since the machine's start


class FolderInUse(CheckpointError):
    """The folder belongs to another job, which is alive."""


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """Times in seconds, each on the clock of the waiting process.

    Attributes:
        beat_s: between two changes of a mark.
        silent_s: a mark of another machine that has not changed for so long belongs to a dead owner.
        settle_s: a claim must stay so long before it counts, if its owner is known to be dead.
    """

    beat_s: float = 3.0
    silent_s: float = 15.0
    settle_s: float = 0.5


@dataclass(frozen=True, slots=True)
class OwnerMark:
    """The content of a mark.

    Attributes:
        claim: drawn at random for each owner.
        job: name of the owner's job, the same at all its starts.
        title: describes the job to readers.
        host: the owner's.
        process: its number there.
        began: the start time of the process, by its kernel.
        machine: differs between machines, boots of a machine, and containers with their own process numbers.
        state: `claims` or `holds`.
        beat: the number of changes.
    """

    claim: str
    job: str
    title: str
    host: str
    process: int
    began: int
    machine: str
    state: str = _CLAIMS
    beat: int = 0

    def to_text(self) -> str:
        """The text of the file, always of one length while the owner changes it."""
        return json.dumps({**asdict(self), "beat": f"{self.beat:012d}"}) + "\n"

    @classmethod
    def from_text(cls, text: str) -> OwnerMark:
        """Parses a mark; any other text is the mark of an unknown owner, which differs whenever the text does."""
        try:
            raw = json.loads(text)
            texts = {name: str(raw[name]) for name in ("claim", "job", "title", "host", "machine", "state")}
            return cls(process=int(raw["process"]), began=int(raw["began"]), beat=int(raw["beat"]), **texts)
        except (ValueError, TypeError, KeyError):
            return cls(text, "", "an unknown job", "unknown", 0, 0, "")

    def __str__(self) -> str:
        return shown(f"{self.title}, process {self.process} on host {self.host}")


@dataclass
class FolderClaim:
    """A folder that one process acquires for its job, holds and releases.

    Attributes:
        folder: absolute.
        job: as `OwnerMark.job`.
        title: as `OwnerMark.title`.
        limits: of waiting.
    """

    folder: str
    job: str
    title: str
    limits: OwnerLimits = OwnerLimits()
    _mark: OwnerMark | None = None
    _lost_to: OwnerMark | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def path(self) -> str:
        """Path of the mark."""
        return posixpath.join(self.folder, OWNER)

    def acquire(self) -> None:
        """Acquires the folder, or verifies that it still belongs to this process; waits if an owner may be dead.

        Raises:
            FolderInUse: it belongs to a live job.
            OSError: the mark cannot be read or written; also tf.errors.OpError.
        """
        if self._mark is not None:
            self._check()
            return
        self._begin()

    def wait(self) -> None:
        """Acquires the folder like `acquire`, but waits until a live job has released it."""
        while True:
            try:
                return self.acquire()
            except FolderInUse as error:
                log.info(f"{error} Waiting for it.")
                time.sleep(self.limits.beat_s)

    def _begin(self) -> None:
        tf.io.gfile.makedirs(self.folder)
        mark = _make_mark(self.job, self.title)
        while True:
            mark_in_folder = _read(self.path)
            if mark_in_folder is None and _make(self.path, replace(mark, state=_HOLDS)):
                break
            if mark_in_folder is not None:
                self._take_over(mark_in_folder, mark)
                break
        self._mark = replace(mark, state=_HOLDS)
        self._ended = threading.Event()
        threading.Thread(target=self._keep, name="owner of checkpoints", daemon=True).start()

    def release(self) -> None:
        """Releases the folder; does nothing if it is not held."""
        mark, self._mark = self._mark, None
        self._ended.set()
        if mark is None:
            return
        with contextlib.suppress(OSError, tf.errors.OpError):  # the next owner detects it
            mark_in_folder = _read(self.path)
            if mark_in_folder is not None and mark_in_folder.claim == mark.claim:
                tf.io.gfile.remove(self.path)

    def _take_over(self, previous: OwnerMark, mark: OwnerMark) -> None:
        settle_s = 0.0 if previous.job == self.job else self._outlived_s(previous)
        _write_mark(self.path, mark)
        time.sleep(settle_s)
        now = _read(self.path)
        if now is not None and now.claim != mark.claim:
            raise self._in_use(now)
        _write_mark(self.path, replace(mark, state=_HOLDS))

    def _outlived_s(self, previous: OwnerMark) -> float:
        """Verifies that an owner is dead; returns how long a claim must stay before it counts."""
        own_machine = _machine()
        if previous.machine == own_machine:
            if _read_start_time(previous.process) == previous.began:
                raise self._in_use(previous)
            return self.limits.settle_s
        log.info(
            f"Checkpoints in {shown(self.folder)} belong to {previous}; within {self.limits.silent_s:g} s it will be "
            "known whether that job is still running."
        )
        until_s = time.monotonic() + self.limits.silent_s
        while time.monotonic() < until_s:
            time.sleep(self.limits.beat_s / 3)
            now = _read(self.path)
            if now is None:
                return self.limits.settle_s
            if now != previous:
                raise self._in_use(now)
        return 2 * self.limits.beat_s

    def _check(self) -> None:
        """Verifies that the folder still belongs to this process; a deleted mark is recreated."""
        if self._mark is None:
            return
        mark_in_folder = self._lost_to or _read(self.path)
        if mark_in_folder is None:
            _make(self.path, self._mark)
        elif self._is_lost_to(mark_in_folder):
            self._lost_to = mark_in_folder
            raise self._in_use(mark_in_folder, " It took over the folder while this job did not respond.")

    def _is_lost_to(self, other: OwnerMark) -> bool:
        """Whether a mark says that another process owns the folder now; a claim is only a request."""
        mark = self._mark
        return (
            mark is not None
            and other.state == _HOLDS
            and (other.machine, other.process) != (mark.machine, mark.process)
        )

    def _keep(self) -> None:
        """Changes the mark at intervals; disk errors meanwhile are reported by the writer of a checkpoint."""
        ended, mark = self._ended, self._mark
        while mark is not None and not ended.wait(self.limits.beat_s):
            mark = replace(mark, beat=mark.beat + 1)
            with contextlib.suppress(OSError, tf.errors.OpError):
                mark_in_folder = _read(self.path)
                if mark_in_folder is not None and self._is_lost_to(mark_in_folder):
                    self._lost_to = mark_in_folder
                    return
                if ended.is_set():
                    return
                if mark_in_folder is None:
                    _make(self.path, mark)
                elif mark_in_folder.claim == mark.claim:
                    _change(self.path, mark)
                elif mark_in_folder.state == _CLAIMS:
                    _write_mark(self.path, mark)

    def _in_use(self, owner: OwnerMark, more: str = "") -> FolderInUse:
        return FolderInUse(
            f"The checkpoint folder {shown(self.folder)} is in use by {owner}, and only one job may use a folder at a "
            f"time.{more} End that job first, or name another folder in CheckPointConfig.ckpt_dir."
        )


def claim_of(folder: str, title: str = "") -> FolderClaim:
    """Returns a claim that is not acquired yet, for the job of this process.

    Args:
        folder: absolute.
        title: describes this process to readers, where it belongs to no job.
    """
    job = settings().job or f"{uuid.uuid4().hex} {title or Path(sys.argv[0]).name}"
    number, _, name = job.partition(" ")
    return FolderClaim(folder, number, title or name)


def _make_mark(job: str, title: str) -> OwnerMark:
    process = os.getpid()
    return OwnerMark(
        uuid.uuid4().hex, job, title, socket.gethostname(), process, _read_start_time(process) or 0, _machine()
    )


def _machine() -> str:
    """Identifies this boot of the machine, and the container that numbers this process."""
    with contextlib.suppress(OSError):
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{started} {Path('/proc/self/ns/pid').readlink()}"
    return uuid.uuid4().hex


def _read_start_time(process: int) -> int | None:
    """The start time of a process of this machine; None if there is none, or it is a zombie."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if words[0] in "ZX" else int(words[_START_FIELD])
    return None


def _read(path: str) -> OwnerMark | None:
    """Reads the existing mark; None without one."""
    if "://" not in path:
        try:
            return OwnerMark.from_text(Path(path).read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return None
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        return OwnerMark.from_text(file.read())


def _write_mark(path: str, mark: OwnerMark) -> None:
    """Writes a mark, replacing any existing one."""
    unfinished = f"{path}.{mark.claim}"
    with tf.io.gfile.GFile(unfinished, "w") as file:
        file.write(mark.to_text())
    tf.io.gfile.rename(unfinished, path, overwrite=True)


def _make(path: str, mark: OwnerMark) -> bool:
    """Writes a mark if there is none; returns whether there was none."""
    if "://" in path:  # no atomic create-if-absent operation
        _write_mark(path, mark)
        return True
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(file, "w", encoding="utf-8") as made:
        made.write(mark.to_text())
    return True


def _change(path: str, mark: OwnerMark) -> None:
    """Writes this process's mark with another beat; on local file systems in place, which works on a full disk."""
    if "://" in path:
        _write_mark(path, mark)
        return
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if OwnerMark.from_text(os.pread(file, 1 << 16, 0).decode(errors="replace")).claim == mark.claim:
            os.pwrite(file, mark.to_text().encode(), 0)
    finally:
        os.close(file)
