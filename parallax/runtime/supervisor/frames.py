"""Carries ranks' output and messages through mpirun: one sealed line each, and removes mpirun's tags again.

With `--tag-output` mpirun reads up to 4096 bytes of a rank at a time and writes `[job,rank]<stdout>:` before each such
piece and after each newline inside it. Pieces of different ranks may be interleaved in the middle of a line, so a line
is assembled from the pieces of its rank. No frame contains `<`, hence nothing a user prints can look like a tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from parallax.runtime.supervisor.control import DamagedMessage, check_beat, check_message, read_sealed, seal

_TAG = re.compile(rb"\[\d+,(\d+)\]<(?:stdout|stderr|stddiag)>:")
# A prefix of a tag that may be completed when more bytes arrive.
_TAG_BEGIN = re.compile(rb"\[(?:\d+(?:,(?:\d+(?:\](?:<(?:[a-z]*>?)?)?)?)?)?)?\Z")

StreamName = Literal["stdout", "stderr"]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, Meta(ge=0, le=1e15)]
_Status = Annotated[int, Meta(ge=-(2**31), le=2**31)]


@dataclass(frozen=True, slots=True)
class Start:
    """A rank's supervisor has started its worker.

    Attributes:
        rank: the rank.
        agent_pid: process id of the supervisor, on its own host.
        worker_pid: process id of the worker, which also leads the worker's process group.
        host: where they run.
        scratch: patterns of Open MPI's temporary files for the job on that host, which stay there when it is killed.
    """

    rank: _Count
    agent_pid: _Count
    worker_pid: _Count
    host: str
    scratch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a rank's output on `stdout` or `stderr`; bytes that are not UTF-8 are surrogate escapes."""

    rank: _Count
    stream: StreamName
    text: str


@dataclass(frozen=True, slots=True)
class Control:
    """A worker's message to its launcher (`parallax.runtime.supervisor.control`)."""

    rank: _Count
    message: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Exit:
    """A rank's worker has ended.

    Attributes:
        rank: the rank.
        status: the worker's exit status, or minus the number of the signal that ended it.
        told: the supervisor had been requested to end it, so the status is expected.
        by: the signal that requested the end, if it was not mpirun's SIGTERM; else 0.
    """

    rank: _Count
    status: _Status
    told: bool = False
    by: _Count = 0


@dataclass(frozen=True, slots=True)
class Pulse:
    """A rank's supervisor is alive; reports the state of its worker.

    Attributes:
        rank: the rank.
        stopped_s: how long the worker has been stopped by a signal; 0 when it is not.
        quiet_s: how long it has shown no sign of life: no heartbeat, no processor time; 0 for programs that never send
            heartbeats.
        doing: its last heartbeat: `runs` completed, the `fetch` in progress (empty outside `session.run`) and its
            `seconds`.
    """

    rank: _Count
    stopped_s: _Seconds = 0.0
    quiet_s: _Seconds = 0.0
    doing: Mapping[str, object] = field(default_factory=dict)


Frame = Start | Text | Control | Exit | Pulse
_CLASS_BY_KIND: dict[str, Any] = {"start": Start, "text": Text, "control": Control, "exit": Exit, "pulse": Pulse}
_KIND_BY_CLASS = {kind: name for name, kind in _CLASS_BY_KIND.items()}


def encode_frame(frame: Frame) -> bytes:
    """Encodes `frame` as a sealed line: ASCII, ended by a newline, without the character `<`."""
    kind = _KIND_BY_CLASS[type(frame)]
    # JSON itself has no `<`, so each one is inside a string and may be written as its escape.
    return seal(json.dumps({"frame": kind, **asdict(frame)}).replace("<", "\\u003c").encode("ascii"))


def read_frame(line: bytes) -> Frame:
    """Decodes the frame in `line`.

    Raises:
        DamagedMessage: the line is no frame of this version, or is corrupted; says how.
    """
    raw = read_sealed(line)
    kind = _CLASS_BY_KIND.get(str(raw.pop("frame", ""))) if isinstance(raw, dict) else None
    if kind is None or raw.keys() != {one.name for one in fields(kind)}:
        raise DamagedMessage(f"a frame must be one of {', '.join(_CLASS_BY_KIND)}, with the fields of its kind")
    try:
        frame: Frame = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise DamagedMessage(f"a frame must have values of the types of its kind: {error}") from error
    if isinstance(frame, Control):
        check_message(frame.message)
    elif isinstance(frame, Pulse):
        check_beat(frame.doing)
    return frame


class Demultiplexer:
    """Splits the bytes of one of mpirun's streams into whole lines, each with the rank that wrote it.

    The rank of a line is None for mpirun's own output: text that follows a newline without a tag. mpirun reserves as
    many bytes for tags as for text in a piece, so lines shorter than a tag could lose theirs; every frame is longer.
    """

    def __init__(self) -> None:
        self._input = b""
        self._rank: int | None = None
        self._unfinished: dict[int | None, list[bytes]] = {}

    def feed(self, data: bytes) -> Iterator[tuple[int | None, bytes]]:
        """Yields (rank, line without its newline) for every line that `data` completes, in the order of their ends."""
        self._input += data
        end = 0
        for tag in _TAG.finditer(self._input):
            yield from self._demultiplex(self._input[end : tag.start()])
            self._rank = int(tag.group(1))
            end = tag.end()
        rest = self._input[end:]
        partial_tag = _TAG_BEGIN.search(rest)
        cut = partial_tag.start() if partial_tag else len(rest)
        self._input = rest[cut:]
        yield from self._demultiplex(rest[:cut])

    def close(self) -> Iterator[tuple[int | None, bytes]]:
        """Yields text that was never ended by a newline, by rank, mpirun's own first."""
        yield from self._demultiplex(self._input)
        self._input = b""
        for rank in sorted(self._unfinished, key=lambda rank: -1 if rank is None else rank):
            line = b"".join(self._unfinished[rank])
            if line:
                yield rank, line
        self._unfinished.clear()

    def _demultiplex(self, data: bytes) -> Iterator[tuple[int | None, bytes]]:
        while data:
            line, newline, data = data.partition(b"\n")
            pieces = self._unfinished.setdefault(self._rank, [])
            pieces.append(line)
            if newline:
                yield self._rank, b"".join(pieces)
                pieces.clear()
                self._rank = None
