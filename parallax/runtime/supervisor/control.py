"""Messages between a worker, its supervisor and the launcher, each sealed with a version and a checksum.

A sealed line is `parallax/VERSION CRC JSON`: one JSON object in ASCII, and the CRC-32C of its bytes. A reader refuses
another version, a wrong checksum, and fields that a message of that kind does not have.

The supervisor of the rank (`parallax.runtime.supervisor.agent`) opens a pipe for the worker's messages and names its
write end in an environment variable. Outside a job the variable is not set and nothing is sent. Rank 0 has a second
pipe, for the bytes that the job returns: those may be many, and must not delay heartbeats.

Every second a worker or server sends a heartbeat, which its supervisor keeps (`runs` completed, the `fetch` in progress
and its `seconds`; of a server only that it is one). A worker sends `in_run` (the fetch, the digest of its collectives,
the seconds so far) repeatedly once a run has lasted two seconds, `run_done`, `finished`, and `failed` with the
traceback. Worker 0 reports each checkpoint (`saved`: its `step`, and whether it was `loaded`, not written), and sends
`preempted` (the `step`) when the state is saved and all workers leave. In a spare job each rank reports when it is
`ready`, and its `bytes` of memory. A worker whose checkpoint folder has not responded for too long reports what is
`overdue`, and the launcher ends the job.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Annotated, Any

import google_crc32c
import msgspec
from msgspec import Meta

CONTROL_FD = "PARALLAX_CONTROL_FD"
PREEMPTION_FD = "PARALLAX_PREEMPTION_FD"
"""Rank 0's pipe by which its supervisor lets it know that the job is preempted: a byte, and reading never waits."""
BEAT = "alive"
SAVED = "saved"
OVERDUE = "overdue"
READY = "ready"
HOST_ADDRESS = "PARALLAX_HOST_ADDRESS"
"""Set by the supervisor of a rank in a job with servers: the address of its host, in digits."""

WIRE_VERSION = 1
"""Of sealed lines; a change needs another number."""

MARK = b"parallax/"
"""Begins every sealed line; the version follows."""
_HEADING_BYTES = len(b"%s%d 01234567 " % (MARK, WIRE_VERSION))
_PIECE_BYTES = 1 << 20
_SHOWN_BYTES = 60

_Number = Annotated[int, Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, Meta(ge=0, le=1e15)]

_one_at_a_time = threading.Lock()


class DamagedMessage(ValueError):
    """Bytes from another process are not what a process of this version sends; says in what way.

    Its text may quote such bytes: control characters are escapes in it.
    """

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__())


class WorkerMessage(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True, omit_defaults=True):
    """What a worker tells; `kind` says which of the classes below it is."""


class AliveMessage(WorkerMessage, frozen=True, tag=BEAT):
    """The worker's beat, which its supervisor keeps."""

    runs: _Number | None = None  # a server has none
    fetch: str = ""
    seconds: _Seconds | None = None
    serves: bool = False


class InRunMessage(WorkerMessage, frozen=True, tag="in_run"):
    """The run that has lasted two seconds or more."""

    fetch: str
    collectives: str
    seconds: _Seconds
    patient: bool = False
    for_all: dict[str, list[str]] = {}
    failures: list[str] = []


class RunDoneMessage(WorkerMessage, frozen=True, tag="run_done"):
    """The run that was told of has ended."""


class FinishedMessage(WorkerMessage, frozen=True, tag="finished"):
    """The worker's loop has ended."""

    runs: _Number


class SavedMessage(WorkerMessage, frozen=True, tag=SAVED):
    """A checkpoint was written, or loaded."""

    step: _Number
    loaded: bool


class ReadyMessage(WorkerMessage, frozen=True, tag=READY):
    """A process of a spare job has imported all."""

    bytes: _Number


class OverdueMessage(WorkerMessage, frozen=True, tag="overdue"):
    """The checkpoint folder has not answered for too long, and the job shall be ended."""

    what: str


class PreemptedMessage(WorkerMessage, frozen=True, tag="preempted"):
    """The state is saved, and all workers leave."""

    step: _Number


class FailedMessage(WorkerMessage, frozen=True, tag="failed"):
    """The script has failed; `what` is the error without its traceback."""

    error: str
    what: str | None = None


_AnyMessage = (
    AliveMessage
    | InRunMessage
    | RunDoneMessage
    | FinishedMessage
    | SavedMessage
    | ReadyMessage
    | OverdueMessage
    | PreemptedMessage
    | FailedMessage
)


def check_message(message: object) -> dict[str, Any]:
    """A worker's message with the fields of its kind, each of its type.

    Raises:
        DamagedMessage: it is of no known kind, or a field is missing, unknown, of another type or out of bounds.
    """
    return _convert(message, _AnyMessage)


def check_beat(doing: object) -> dict[str, Any]:
    """The worker's last beat as a pulse carries it; empty before the first.

    Raises:
        DamagedMessage: it is neither empty nor a beat.
    """
    return _convert(doing, AliveMessage) if doing != {} else {}


def _convert(value: object, kind: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.to_builtins(msgspec.convert(value, kind))
    except msgspec.ValidationError as error:
        raise DamagedMessage(f"a message must have the fields of its kind: {error}") from error
    return found


def seal(body: bytes) -> bytes:
    """The line of a message: version, checksum, the body, a newline. The body has no newline."""
    return bytes(b"%s%d %08x %s\n" % (MARK, WIRE_VERSION, google_crc32c.value(body), body))


def unseal(line: bytes) -> bytes:
    """The body of a line that `seal` made, with or without its newline.

    Raises:
        DamagedMessage: the line is none, is of another version, or its checksum is another.
    """
    line = line.removesuffix(b"\n")
    body = line[_HEADING_BYTES:]
    if line + b"\n" == seal(body):
        return body
    version, space, _ = line.removeprefix(MARK).partition(b" ")
    if line.startswith(MARK) and space and version.isdigit() and int(version) != WIRE_VERSION:
        raise DamagedMessage(
            f"it is of version {int(version)} of the messages, and this process reads {WIRE_VERSION}: all hosts must "
            "have one version of Parallax (`parallax doctor`)"
        )
    shown = ascii(line[:_SHOWN_BYTES].decode("ascii", "backslashreplace"))
    raise DamagedMessage(f"its {len(line)} bytes do not have the checksum that they name, or name none: {shown}")


def read_sealed(line: bytes) -> Any:
    """The JSON value of a line that `seal` made.

    Raises:
        DamagedMessage: as `unseal`, or the body is no JSON.
    """
    body = unseal(line)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DamagedMessage(f"its body is no JSON: {error}") from error


def checksum(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C of bytes; no more than a piece of them is copied."""
    view = memoryview(data).cast("B")
    found = 0
    for begin in range(0, view.nbytes, _PIECE_BYTES):
        found = google_crc32c.extend(found, bytes(view[begin : begin + _PIECE_BYTES]))
    return found


def send(message: Mapping[str, object]) -> bool:
    """Sends `message` to the launcher, or does nothing outside a job.

    Args:
        message: what is told; `kind` says which: `alive`, `in_run`, `run_done`, `finished`, `saved`, `ready`,
            `preempted`, `overdue`, `failed`. Its fields are those of the class of that kind.

    Returns:
        Whether it was sent.

    Raises:
        ValueError: `message` has no JSON form.
    """
    number = os.environ.get(CONTROL_FD)
    if not number:
        return False
    line = memoryview(seal(json.dumps(message).encode("ascii")))
    with _one_at_a_time:
        try:
            while line:  # one write, unless a signal cuts it short
                line = line[os.write(int(number), line) :]
        except BrokenPipeError:
            # The supervisor is dead: this process is being ended too, and nobody is left to be told.
            return False
    return True


def is_preempted() -> bool:
    """Whether the supervisor has let this process know since the last call that the job is preempted."""
    number = os.environ.get(PREEMPTION_FD)
    if not number:
        return False
    try:
        return bool(os.read(int(number), 1))
    except BlockingIOError:
        return False


def host_address() -> str:
    """The address on which this rank's TensorFlow server listens, in digits; its supervisor has put it there."""
    return os.environ.get(HOST_ADDRESS) or "127.0.0.1"


def tell_saved(step: int, loaded: bool = False) -> None:
    """Tells the launcher of a checkpoint as soon as it is there: a job that is started again begins with it.

    Args:
        step: of the checkpoint.
        loaded: whether it was read and not written.
    """
    send({"kind": SAVED, "step": step, "loaded": loaded})
