"""How ranks' output and messages travel through mpirun: one JSON object a line, and mpirun's tags taken off again.

With `--tag-output` mpirun reads up to 4096 bytes of a rank at a time and writes `[job,rank]<stdout>:` before each such
piece and after each newline inside it. Pieces of different ranks may meet in the middle of a line, so a line is put
together from the pieces of its rank. No frame contains `<`, hence nothing a user prints can look like a tag.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_TAG = re.compile(rb"\[\d+,(\d+)\]<(?:stdout|stderr|stddiag)>:")
# What may become a tag when more bytes arrive.
_TAG_BEGIN = re.compile(rb"\[(?:\d+(?:,(?:\d+(?:\](?:<(?:[a-z]*>?)?)?)?)?)?)?\Z")


@dataclass(frozen=True, slots=True)
class Start:
    """A rank's supervisor has started its worker.

    Attributes:
        rank: the rank.
        agent_pid: process id of the supervisor, on its own host.
        worker_pid: process id of the worker, which also leads the worker's process group.
        host: where they run.
        scratch: patterns of what Open MPI keeps on that host for the job, and leaves there when it is killed.
    """

    rank: int
    agent_pid: int
    worker_pid: int
    host: str
    scratch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of what a rank wrote to `stdout` or `stderr`; bytes that are not UTF-8 are surrogate escapes."""

    rank: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Control:
    """What a worker told its launcher (`parallax.runtime.supervisor.control`)."""

    rank: int
    message: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Exit:
    """A rank's worker has ended.

    Attributes:
        rank: the rank.
        status: the worker's exit status, or minus the number of the signal that ended it.
        told: the supervisor had been told to end it, so the status is no news.
        by: the signal that told the supervisor, when it was not mpirun's SIGTERM; else 0.
    """

    rank: int
    status: int
    told: bool = False
    by: int = 0


@dataclass(frozen=True, slots=True)
class Pulse:
    """A rank's supervisor is alive; this is how its worker is.

    Attributes:
        rank: the rank.
        stopped_s: how long the worker has been stopped by a signal; 0 when it is not.
        quiet_s: how long it has given no sign of life: no beat, no processor time; 0 for programs that never beat.
        doing: its last beat: `runs` made, the `fetch` in progress (empty outside `session.run`) and its `seconds`.
    """

    rank: int
    stopped_s: float = 0.0
    quiet_s: float = 0.0
    doing: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResultPart:
    """A piece of what the job gives back; the pieces come in order.

    Attributes:
        rank: who sends it: rank 0.
        total_bytes: of the whole result.
        data: the piece.
    """

    rank: int
    total_bytes: int
    data: bytes = field(repr=False)


Frame = Start | Text | Control | Exit | Pulse | ResultPart


def encode_frame(frame: Frame) -> bytes:
    """The line of `frame`: ASCII, one JSON object, ended by a newline, without the character `<`."""
    body: dict[str, object]
    if isinstance(frame, ResultPart):  # base64 needs no escapes, and a result may have gigabytes
        head = f'{{"rank": {frame.rank}, "total": {frame.total_bytes}, "data": "'.encode("ascii")
        return b"".join([head, b2a_base64(frame.data, newline=False), b'"}\n'])
    if isinstance(frame, Start):
        body = {
            "start": {
                "agent_pid": frame.agent_pid,
                "worker_pid": frame.worker_pid,
                "host": frame.host,
                "scratch": list(frame.scratch),
            }
        }
    elif isinstance(frame, Text):
        body = {"stream": frame.stream, "text": frame.text}
    elif isinstance(frame, Control):
        body = {"control": frame.message}
    elif isinstance(frame, Pulse):
        body = {"pulse": {"stopped_s": frame.stopped_s, "quiet_s": frame.quiet_s, "doing": frame.doing}}
    else:
        body = {"exit": frame.status, "told": frame.told, "by": frame.by}
    # JSON itself has no `<`, so each one is inside a string and may be written as its escape.
    return json.dumps({"rank": frame.rank, **body}).replace("<", "\\u003c").encode("ascii") + b"\n"


def decode_frame(line: bytes) -> Frame | None:
    """The frame in `line`, or None when the line is no frame (words of mpirun itself)."""
    try:
        body = json.loads(line)
        rank = body["rank"]
        if "text" in body:
            return Text(rank, body["stream"], body["text"])
        if "control" in body:
            return Control(rank, dict(body["control"]))
        if "exit" in body:
            return Exit(rank, body["exit"], body["told"], body["by"])
        if "total" in body:
            return ResultPart(rank, body["total"], a2b_base64(body["data"]))
        if "pulse" in body:
            return Pulse(rank, **body["pulse"])
        return Start(rank, **{**body["start"], "scratch": tuple(body["start"]["scratch"])})
    except (ValueError, KeyError, TypeError):
        return None


class Demultiplexer:
    """Takes the bytes of one of mpirun's streams as they come and gives whole lines with the rank that wrote them.

    The rank of a line is None for mpirun's own words: what follows a newline without a tag. mpirun makes room for as
    many bytes of tags as of text in a piece, so lines shorter than a tag could lose theirs; every frame is longer.
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
            yield from self._take(self._input[end : tag.start()])
            self._rank = int(tag.group(1))
            end = tag.end()
        rest = self._input[end:]
        held = _TAG_BEGIN.search(rest)
        cut = held.start() if held else len(rest)
        self._input = rest[cut:]
        yield from self._take(rest[:cut])

    def close(self) -> Iterator[tuple[int | None, bytes]]:
        """Yields what was never ended by a newline, by rank, mpirun's own words first."""
        yield from self._take(self._input)
        self._input = b""
        for rank in sorted(self._unfinished, key=lambda rank: -1 if rank is None else rank):
            line = b"".join(self._unfinished[rank])
            if line:
                yield rank, line
        self._unfinished.clear()

    def _take(self, data: bytes) -> Iterator[tuple[int | None, bytes]]:
        while data:
            line, newline, data = data.partition(b"\n")
            pieces = self._unfinished.setdefault(self._rank, [])
            pieces.append(line)
            if newline:
                yield self._rank, b"".join(pieces)
                pieces.clear()
                self._rank = None
