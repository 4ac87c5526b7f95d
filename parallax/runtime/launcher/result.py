"""Puts together what a job gives back: rank 0 sends it in pieces, and it counts when the last one has come."""

from __future__ import annotations

from parallax.runtime.supervisor.frames import ResultPart


class ResultCollector:
    """The result of one job as far as it has come; a gigabyte is kept once."""

    def __init__(self) -> None:
        self._data: bytearray | None = None
        self._received_bytes = 0

    def take(self, part: ResultPart) -> None:
        """Takes in a piece; pieces come in order."""
        if self._data is None:
            self._data = bytearray(part.total_bytes)
        end = self._received_bytes + len(part.data)
        self._data[self._received_bytes : end] = part.data
        self._received_bytes = end

    @property
    def result(self) -> memoryview | None:
        """All of it, for reading only; None while bytes are missing, or when nothing is sent."""
        if self._data is None or self._received_bytes < len(self._data):
            return None
        return memoryview(self._data).toreadonly()
