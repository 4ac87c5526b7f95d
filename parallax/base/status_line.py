"""A terminal status line that shows what the program waits for, and is erased before other output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ERASE = "\r\x1b[K"


class _StatusLine:
    """The status line of this process."""

    def __init__(self) -> None:
        self.is_enabled = self._is_shown = False

    def show(self, text: str) -> None:
        if self.is_enabled and sys.stderr.isatty():
            self._is_shown = True
            sys.stderr.write(f"{_ERASE}{text} ...")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write(_ERASE)
            sys.stderr.flush()


_line = _StatusLine()


@contextmanager
def status_line(is_enabled: bool = True) -> Iterator[None]:
    """Context in which `show_status` shows a line if stderr is a terminal; the line is erased at the end.

    Args:
        is_enabled: whether it shows anything.
    """
    before, _line.is_enabled = _line.is_enabled, is_enabled
    try:
        yield
    finally:
        _line.clear()
        _line.is_enabled = before


def show_status(text: str) -> None:
    """Replaces the text about what the program waits for."""
    _line.show(text)


def clear_status() -> None:
    """Erases the line, before other text is written."""
    _line.clear()
