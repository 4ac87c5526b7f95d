"""Relays the output of all ranks, each line prefixed with its rank, and keeps each rank's last lines on stderr.

TensorFlow's startup messages go to the files alone (`framework_log`). Colours go to terminals only, and not if the
environment has NO_COLOR. Text that has no newline yet is not lost: on a terminal one such text is shown in place (a
progress bar, a prompt). Elsewhere a progress bar is printed as a line at most every few seconds, and other text when
its line ends.

Escape sequences that set colours or move a terminal's cursor are removed (`TerminalFilter`). A reader that is gone, or
a terminal that was closed, ends the job. A full disk does not; output that it rejects is lost, because nothing can
buffer it.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from parallax.runtime.launcher.output.output_files import OutputFiles
from parallax.runtime.supervisor.framework_log import is_hidden
from parallax.settings.environment import FRAMEWORK_QUIET, wants_colours

BAR_EVERY_S = 5.0
TAIL_LINES = 50

_ENDS = re.compile(r"([\r\n])")
_CLEAR_LINE = b"\r\x1b[K"


@dataclass(slots=True)
class _Line:
    """The line that a rank is writing to one of its streams.

    Attributes:
        text: its current content.
        returned: the last character was a carriage return, so the next text overwrites the line.
        is_bar: it has been overwritten at least once.
        shown: the text that was last printed of it, if any.
        shown_s: when that was printed, or when its first text arrived.
        is_hidden: it has ended, and is TensorFlow's own (framework_log.py).
        after_hidden: the line before it was hidden.
    """

    text: str = ""
    returned: bool = False
    is_bar: bool = False
    shown: str | None = None
    shown_s: float = 0.0
    is_hidden: bool = False
    after_hidden: bool = False


class Relay:
    """Prints to the two given streams, each a terminal or not. `files` get everything, by rank.

    All methods that print raise BrokenPipeError when the stream has no reader. Output that a full disk rejects is lost,
    which is reported on the other stream; the job goes on.
    """

    def __init__(
        self,
        stdout: BinaryIO,
        stderr: BinaryIO,
        label_of: Callable[[int], str] = str,
        files: OutputFiles | None = None,
        framework_log: int = FRAMEWORK_QUIET,
    ) -> None:
        self._label_of = label_of
        self._files = files
        self._framework_log = framework_log
        self._sinks = {"stdout": Sink(stdout), "stderr": Sink(stderr)}
        self._terminals = {name: sink.isatty() for name, sink in self._sinks.items()}
        self._has_colours = wants_colours()
        self._filters: dict[tuple[int, str], tuple[TerminalFilter, TerminalFilter]] = {}
        self._lines: dict[tuple[int, str], _Line] = {}
        self._tails: dict[int, deque[str]] = {}
        self._status: tuple[int, str] | None = None  # the rank whose unfinished line is on the terminal

    def write(self, rank: int, stream: str, text: str, now_s: float) -> None:
        """Processes a piece of the output of `rank` to `stream`, split anywhere."""
        plain, shown = self._without_colours(rank, stream, text)
        if self._files is not None and (trouble := self._files.write(rank, stream, plain)):
            self.say(trouble)
        line = self._lines.setdefault((rank, stream), _Line(shown_s=now_s))
        for piece in _ENDS.split(shown):
            if piece == "\n":
                self._finish(rank, stream, line)
                line = self._lines[rank, stream] = _Line(shown_s=now_s, after_hidden=line.is_hidden)
            elif piece == "\r":
                line.returned = line.is_bar = True
            elif piece:
                line.text = piece if line.returned else line.text + piece
                line.returned = False
        # One line for all: the bars of several ranks would flicker, so only the lowest rank's is shown.
        if line.text and self._terminals[stream] and (self._status is None or (rank, stream) <= self._status):
            self._show_status(rank, stream)
        self.tick(now_s)

    def keep(self, rank: int, text: str) -> None:
        """Adds text that is reported about a rank elsewhere to the file of its stderr."""
        if self._files is not None and (trouble := self._files.write(rank, "stderr", text)):
            self.say(trouble)

    def say(self, text: str) -> None:
        """Prints lines that belong to no rank on stderr."""
        for line in text.splitlines():
            # A message may contain characters that cannot be encoded.
            self._print("stderr", line.encode("utf-8", "backslashreplace"))
        self._flush()

    def tick(self, now_s: float) -> None:
        """Prints the progress bars that are due, and flushes."""
        for (rank, stream), line in self._lines.items():
            due = line.is_bar and line.text.rstrip() != line.shown and now_s - line.shown_s >= BAR_EVERY_S
            if due and not self._terminals[stream]:
                self._print_line(rank, stream, line)
                line.shown, line.shown_s = line.text.rstrip(), now_s
        self._flush()

    def close(self) -> None:
        """Prints all unfinished lines, by rank."""
        self._hide_status()
        for (rank, stream), line in sorted(self._lines.items(), key=lambda item: item[0]):
            if line.text.strip():
                self._finish(rank, stream, line)
        self._lines.clear()
        self._flush()
        if self._files is not None:
            self._files.close()

    def tail(self, rank: int) -> list[str]:
        """The last lines that `rank` wrote to stderr, oldest first."""
        return list(self._tails.get(rank, ()))

    def _without_colours(self, rank: int, stream: str, text: str) -> tuple[str, str]:
        """Returns a piece of text as written to files, and as written to this process's own stream."""
        is_terminal = self._terminals[stream]
        if (rank, stream) not in self._filters:
            self._filters[rank, stream] = TerminalFilter(), TerminalFilter(is_terminal)
        of_files, of_stream = self._filters[rank, stream]
        plain = of_files.plain(text)
        if not is_terminal:
            return plain, plain
        return plain, text if self._has_colours else of_stream.plain(text)

    def _finish(self, rank: int, stream: str, line: _Line) -> None:
        line.is_hidden = stream == "stderr" and is_hidden(line.text, self._framework_log, line.after_hidden)
        if line.is_hidden:
            if self._status == (rank, stream):
                self._hide_status()
            return
        if stream == "stderr":
            self._tails.setdefault(rank, deque(maxlen=TAIL_LINES)).append(line.text.rstrip())
        if self._status == (rank, stream):
            self._hide_status()
        if not line.is_bar or line.text.rstrip() != line.shown:
            self._print_line(rank, stream, line)

    def _print_line(self, rank: int, stream: str, line: _Line) -> None:
        text = line.text.rstrip() if line.is_bar else line.text  # bars overwrite the end of the old text with spaces
        self._print(stream, f"[{self._label_of(rank)}] {text}".encode("utf-8", "surrogateescape"))

    def _print(self, stream: str, line: bytes) -> None:
        status = self._status
        if self._terminals[stream]:
            self._hide_status()
        self._sinks[stream].write(line + b"\n")
        if self._terminals[stream] and status is not None:
            self._sinks[stream].flush()
            self._show_status(*status)

    def _show_status(self, rank: int, stream: str) -> None:
        self._hide_status()
        width = shutil.get_terminal_size().columns - 1
        text = f"[{self._label_of(rank)}] {self._lines[rank, stream].text}"[:width]
        self._sinks[stream].write(text.encode("utf-8", "surrogateescape"))
        self._status = (rank, stream)

    def _hide_status(self) -> None:
        if self._status is not None:
            sink = self._sinks[self._status[1]]
            sink.write(_CLEAR_LINE)
            sink.flush()
            self._status = None

    def drop_unread(self) -> None:
        """Redirects output buffered for a lost reader to /dev/null, so that Python's flush at exit keeps the status."""
        for sink in self._sinks.values():
            sink.drop_unread()

    def _flush(self) -> None:
        for sink in self._sinks.values():
            sink.flush()
        for name, other in (("stdout", "stderr"), ("stderr", "stdout")):
            if trouble := self._sinks[name].new_trouble():
                self._sinks[other].write(
                    f"parallax: {name} cannot be written: {trouble}. What does not fit is lost.\n".encode()
                )
                self._sinks[other].flush()


def bytes_of(stream: TextIO) -> BinaryIO:
    """Returns the byte stream below a text stream; a notebook's has none, so its text is written instead."""
    below: BinaryIO | None = getattr(stream, "buffer", None)
    return below if below is not None else cast(BinaryIO, _ByteStream(stream))


class _ByteStream:
    """The part of a byte stream's interface that a relay needs, over a text stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        self._stream.write(self._decoder.decode(data))

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False


_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_COLOUR = re.compile(r"\x1b\[[0-?]*m")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[ -/]*)\Z")
_HELD = 256
"""The longest unfinished escape sequence that is buffered; longer text is no sequence."""


class TerminalFilter:
    """Removes escape sequences from a text that arrives in pieces, split anywhere.

    Args:
        is_terminal: whether the text goes to a terminal without colours: all other sequences then stay.
    """

    def __init__(self, is_terminal: bool = False) -> None:
        self._pattern = _COLOUR if is_terminal else _SEQUENCE
        self._held = ""

    def plain(self, piece: str) -> str:
        """Returns the text that is now known to be no escape sequence."""
        if not self._held and "\x1b" not in piece:
            return piece
        text = self._held + piece
        unfinished = _UNFINISHED.search(text)
        end = unfinished.start() if unfinished is not None and len(unfinished[0]) <= _HELD else len(text)
        self._held = text[end:]
        return self._pattern.sub("", text[:end])


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
