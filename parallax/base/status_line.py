"""A terminal status line that shows what the program waits for, and is erased before other output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ERASE = "\r\x1b[K"


class _StatusLine:
    """The status line of this process."""

    def __init__(self) -> None:
        self.is_wanted = self._is_there = False

    def show(self, text: str) -> None:
        if self.is_wanted and sys.stderr.isatty():
            self._is_there = True
            sys.stderr.write(f"{_ERASE}{text} ...")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._is_there:
            self._is_there = False
            sys.stderr.write(_ERASE)
            sys.stderr.flush()


_line = _StatusLine()


@contextmanager
def status_line(is_wanted: bool = True) -> Iterator[None]:
    """Context in which `show_status` shows a line if stderr is a terminal; the line is erased at the end.

    Args:
        is_wanted: whether it shows anything.
    """
    before, _line.is_wanted = _line.is_wanted, is_wanted
    try:
        yield
    finally:
        _line.clear()
        _line.is_wanted = before


def show_status(text: str) -> None:
    """Replaces the text about what the program waits for."""
    _line.show(text)


def clear_status() -> None:
    """Erases the line, before other text is written."""
    _line.clear()
