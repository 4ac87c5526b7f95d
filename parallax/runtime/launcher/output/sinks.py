"""The launcher's stdout and stderr, with handling of failed writes.

A reader that is gone, or a terminal that was closed, ends the job. A full disk does not; output that it rejects is
lost, because nothing can buffer it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO


class Sink:
    """A byte stream with handling of failed writes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._trouble = ""
        self._has_reported = False

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._is_terminal

    def write(self, data: bytes) -> None:
        """Writes bytes, or drops them.

        Raises:
            BrokenPipeError: the stream has no reader any more.
        """
        try:
            self._stream.write(data)
        except OSError as error:
            self._discard_buffer(error)

    def flush(self) -> None:
        """Flushes the buffer.

        Raises:
            BrokenPipeError: the stream has no reader any more.
        """
        try:
            self._stream.flush()
        except OSError as error:
            self._discard_buffer(error)

    def new_trouble(self) -> str:
        """Returns once why bytes were lost; empty when none were."""
        if self._has_reported or not self._trouble:
            return ""
        self._has_reported = True
        return self._trouble

    def drop_unread(self) -> None:
        """Redirects output buffered for a lost reader to /dev/null, so that Python's flush at exit keeps the status."""
        try:
            self._stream.flush()
        except OSError:
            self._to_nowhere()

    def _discard_buffer(self, error: OSError) -> None:
        """Drops the buffer, which Python would try to write again at the next call and at exit."""
        if isinstance(error, BrokenPipeError):
            raise error
        if self._is_terminal and error.errno == errno.EIO:  # the terminal was closed
            raise BrokenPipeError(errno.EPIPE, "the terminal is closed") from error
        self._trouble = error.strerror or str(error)
        duplicate = os.dup(self._stream.fileno())
        try:
            self._to_nowhere()
        finally:
            os.dup2(duplicate, self._stream.fileno())
            os.close(duplicate)

    def _to_nowhere(self) -> None:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        self._stream.flush()
