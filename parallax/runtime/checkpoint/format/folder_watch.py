"""Detects a checkpoint folder that does not respond, and ends the job when it has not responded for too long.

A disk that hangs (a frozen file system, a network file system without its server) blocks every process that reads,
writes, lists, renames or deletes a file there, for ever and without an error; the kernel may not even let that process
be killed. So each operation in the folder, on at most a chunk of rows, is watched by a thread that touches no file.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from parallax.base.strict import shown
from parallax.report.logger import log
from parallax.runtime.supervisor.control import OVERDUE, send

_FIRST_S, _AGAIN_S = 30.0, 60.0  # forcing a chunk to a busy disk takes some seconds


@dataclass(frozen=True, slots=True)
class FolderWatch:
    """Watches one process's operations in a checkpoint folder.

    Attributes:
        folder: its name for messages.
        timeout_s: seconds that the folder may fail to respond; infinite for ever.
        first_s: a message is printed after so many seconds.
        again_s: and again after so many more.
    """

    folder: str
    timeout_s: float = float("inf")
    first_s: float = _FIRST_S
    again_s: float = _AGAIN_S

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Watches one operation inside a `with` block.

        Args:
            what: describes it: `the checkpoint of step 40 is being written`.
        """
        ended, is_beside = threading.Event(), threading.current_thread() is not threading.main_thread()
        look = threading.Thread(target=self._look, args=(what, ended, is_beside), name="folder watch", daemon=True)
        look.start()
        try:
            yield
        finally:
            ended.set()
            look.join()  # its last line precedes this process's next action

    def _look(self, what: str, ended: threading.Event, is_beside: bool) -> None:
        """Counts the seconds in which this process ran: a process stopped for an hour has not waited for a disk."""
        waited_s, next_s = 0.0, min(self.first_s, self.timeout_s)
        while not ended.wait(next_s - waited_s):
            waited_s = next_s
            if waited_s >= self.timeout_s and send({"kind": OVERDUE, "what": self._text(what, waited_s)}):
                return
            goes_on = " Training continues until the next checkpoint is due." if is_beside else ""
            until = "" if waited_s >= self.timeout_s else f" The job ends after {self.timeout_s:g} s."
            log.warning(f"{self._text(what, waited_s)}{goes_on}{until}")
            following_s = waited_s + self.again_s
            next_s = min(following_s, self.timeout_s) if waited_s < self.timeout_s else following_s
        if waited_s:
            log.info(f"The checkpoint folder {shown(self.folder)} responds again.")

    def _text(self, what: str, waited_s: float) -> str:
        return shown(
            f"{what}: its folder {self.folder} has not responded on host {socket.gethostname()} for {waited_s:g} s. "
            "Check that disk or network file system, or name another folder in CheckPointConfig.ckpt_dir."
        )
