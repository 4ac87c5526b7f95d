"""Writes each rank's relayed output to files: `FOLDER/worker-0/stdout`, `FOLDER/server-0/stderr`, ...

The console still gets everything; the files hold the same text without rank prefixes. Only the user may read them:
scripts print training data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from parallax.base.errors import LaunchError

STREAMS = ("stdout", "stderr")


class OutputFiles:
    """The open files of one job; recreated, so that none of an earlier job with as many workers remains.

    Raises:
        LaunchError: when they cannot be made.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._files: dict[tuple[int, str], BinaryIO] = {}
        self._names = names
        for rank, name in enumerate(names):
            for stream in STREAMS:
                file = folder / name / stream
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    file.parent.mkdir(mode=0o700, exist_ok=True)
                    self._files[rank, stream] = open(file, "wb", buffering=0, opener=_private)  # noqa: PTH123
                except OSError as error:
                    raise LaunchError(
                        f"redirect_path must be a writable folder: {file}: {error.strerror}. Name another."
                    ) from error

    def write(self, rank: int, stream: str, text: str) -> str:
        """Appends text; when a file cannot be written, returns a message for the user and closes that file."""
        file = self._files.get((rank, stream))
        if file is None:
            return ""
        try:
            file.write(text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            del self._files[rank, stream]
            return f"parallax: {stream} of {self._names[rank]} is no longer written to its file: {error.strerror}."
        return ""

    def close(self) -> None:
        """Closes all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _private(path: str, flags: int) -> int:
    """Opens a file that only its user may read, whatever its permissions were."""
    made = os.open(path, flags, 0o600)
    os.fchmod(made, 0o600)
    return made
