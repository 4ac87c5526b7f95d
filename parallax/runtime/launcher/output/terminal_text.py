"""Text without the sequences by which programs set colours and move a terminal's cursor."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_COLOUR = re.compile(r"\x1b\[[0-?]*m")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[ -/]*)\Z")
_HELD = 256
"""Characters of an unfinished sequence that are held back; what is longer is none."""


class TerminalFilter:
    """Takes sequences out of a text that comes in pieces, cut anywhere.

    Args:
        is_terminal: whether the text goes to a terminal that shall show no colours: all other sequences then stay.
    """

    def __init__(self, is_terminal: bool = False) -> None:
        self._pattern = _COLOUR if is_terminal else _SEQUENCE
        self._held = ""

    def plain(self, piece: str) -> str:
        """What of the text is known now to be no sequence."""
        if not self._held and "\x1b" not in piece:
            return piece
        text = self._held + piece
        unfinished = _UNFINISHED.search(text)
        end = unfinished.start() if unfinished is not None and len(unfinished[0]) <= _HELD else len(text)
        self._held = text[end:]
        return self._pattern.sub("", text[:end])
