"""A disk for a trial's checkpoints that is full for a while."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from ops.faults.running_job import wait

_SIZE = "16m"  # room for about ten checkpoints
_FILL = 1 << 20
_LIMIT_S = 120.0
WARNING = "Training continues"


class SmallDisk:
    """A folder for checkpoints. If `is_mounted`, it is a small file system of its own, which needs root."""

    def __init__(self, folder: Path, is_mounted: bool) -> None:
        self.folder = folder
        self._is_mounted = is_mounted
        folder.mkdir()
        if is_mounted:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "none", str(folder)], check=True)

    def close(self) -> None:
        """Unmounts the file system, if there is one."""
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def fill_and_free(self, said: Callable[[], str]) -> str:
        """Fills the disk until the job warns, frees it and waits for the next checkpoint; returns any problem."""
        if not wait(lambda: self._steps() > 0, _LIMIT_S):
            return "received no checkpoint"
        filler = self.folder / "filler"
        with filler.open("ab", buffering=0) as file:

            def is_warned() -> bool:
                with contextlib.suppress(OSError):  # full; space that the job frees is filled too
                    while file.write(bytes(_FILL)):
                        pass
                return WARNING in said()

            warned = wait(is_warned, _LIMIT_S)
        filler.unlink()
        if not warned:
            return "was full, but the job printed no warning"
        return "" if self.has_next() else "was free again, but no checkpoint followed"

    def has_next(self) -> bool:
        """Waits for a checkpoint; returns whether it came."""
        before = self._steps()
        return wait(lambda: self._steps() > before, _LIMIT_S)

    def _steps(self) -> int:
        """Returns the step of the last checkpoint; -1 if there is none."""
        steps = [int(path.stem.rpartition("-")[2]) for path in self.folder.glob("model.ckpt-*.index")]
        return max(steps, default=-1)
