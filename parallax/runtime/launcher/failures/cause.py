"""Classifies the end of a job for the restart policy, and records the progress of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from parallax.runtime.supervisor.control import READY, SAVED
from parallax.runtime.supervisor.frames import Control, Frame, Pulse, Start

WELL, STOPPED, RAISED, KILLED, LOST, HOST_LOST, SILENT, STALLED, BROKEN, YIELDED = (
    *("ended well", "stopped", "failed", "killed", "supervisor lost", "host lost", "silent", "stalled"),
    *("mpirun ended", "yielded"),
)
"""Kinds of ends. `stopped`: by a signal to the launcher, or because its output has no reader. `failed`: a rank's
program raised an exception or ended with its own status. `yielded`: it saved and ended, to continue on more hosts.
"""


@dataclass(frozen=True, slots=True)
class EndCause:
    """The cause of a job's end.

    Attributes:
        kind: one of the above.
        ranks: the first to fail, as far as they are known.
        what: an exception's kind and text, without its place; else empty.
        host: a lost host, as reported by mpirun; else empty.
    """

    kind: str = WELL
    ranks: tuple[int, ...] = ()
    what: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job.

    Attributes:
        has_started: a rank has started.
        has_run: a worker has made a run of its loop.
        step: of the latest checkpoint that it has loaded or written; None without one.
        has_saved: it has written one.
        has_finished: a worker has reached the end of its loop.
        ready_bytes: in a spare job, the memory of each rank that is ready.
    """

    has_started: bool = False
    has_run: bool = False
    step: int | None = None
    has_saved: bool = False
    has_finished: bool = False
    ready_bytes: tuple[int, ...] = ()

    def observe(self, frame: Frame) -> Progress:
        """Processes a frame of a rank's supervisor."""
        if isinstance(frame, Start):
            return replace(self, has_started=True)
        if isinstance(frame, Pulse):
            runs = frame.doing.get("runs", 0)
            return replace(self, has_run=True) if isinstance(runs, int) and runs > 0 else self
        return self._take_message(frame.message) if isinstance(frame, Control) else self

    def _take_message(self, message: Mapping[str, object]) -> Progress:
        kind = message.get("kind")
        if kind == SAVED:
            return replace(self, step=int(str(message["step"])), has_saved=self.has_saved or not message["loaded"])
        if kind == READY:
            return replace(self, ready_bytes=(*self.ready_bytes, int(str(message["bytes"]))))
        return replace(self, has_finished=True) if kind == "finished" else self
