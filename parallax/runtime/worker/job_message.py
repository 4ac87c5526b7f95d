"""The launcher's message to every rank: the plan, the graph and its classes, the seed, and the placement of ranks.

The launcher writes it to the standard input of mpirun, which passes its input to rank 0, and rank 0 broadcasts it with
MPI. So no folder must be visible to all hosts.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field, fields, replace
from typing import Any, BinaryIO, get_type_hints

import msgspec

from parallax.base.errors import LaunchError
from parallax.base.strict import Count
from parallax.base.types import Buffer
from parallax.runtime.supervisor.control import checksum

VERSION = 3
"""Version of the message format; a format change needs a new number."""

_MARK = b"PRLX"
_MAGIC = _MARK + b"%d\n" % VERSION
_RAW = ("graph", "function", "attachment")
"""The attributes that are sent without conversion or copying: some have gigabytes."""
_PARTS = ("values", *_RAW)
_SHOWN_BYTES = 20  # of bytes that are no message; every message is longer
_LENGTHS = struct.Struct(f">{len(_PARTS)}Q{len(_PARTS)}I")
"""The length of each part in bytes, and its CRC-32C."""
_CRC = struct.Struct(">I")
_HEAD_BYTES = len(_MAGIC) + _LENGTHS.size + _CRC.size


@dataclass(frozen=True, slots=True)
class JobMessage:
    """The launcher's decisions.

    Attributes:
        plan: JSON of the plan.
        graph: the graph as the launcher built it, packed (analysis/reading/construction/launcher_graph.py).
        seed: of all random numbers that the script does not seed.
        hosts: the host number of each worker, by rank.
        servers: the host number of each server.
        addresses: the address of each host, as in the resource file.
        ports: first and last port that servers may listen on; None for any.
        cluster: JSON of the cluster profile, if the job may search for a better plan; else empty.
        cluster_name: of the file that it came from.
        spec: JSON of the graph's spec and of its gradient sources (parallax/graph/spec.py).
        function: the function of workers that do not run a script, pickled (worker/function_package.py); else empty.
        attachment: data from the launching process to the workers, in a form that both know; often empty.
    """

    plan: str
    graph: bytes = field(repr=False)
    seed: Count
    hosts: tuple[Count, ...]
    servers: tuple[Count, ...] = ()
    addresses: tuple[str, ...] = ()
    ports: tuple[Count, Count] | None = None
    cluster: str = ""
    cluster_name: str = ""
    spec: str = ""
    function: Buffer = field(default=b"", repr=False)
    attachment: Buffer = field(default=b"", repr=False)

    def pieces(self) -> tuple[Buffer, ...]:
        """The encoded message: a head, compressed JSON, then the bytes of `_RAW`.

        The head is a mark with the version, the length and the checksum of each part, and its own checksum.
        """
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _RAW}
        parts: list[Buffer] = [zlib.compress(json.dumps(values).encode("utf-8"))]
        parts += [getattr(self, name) for name in _RAW]
        lengths = [memoryview(data).nbytes for data in parts]
        head = _MAGIC + _LENGTHS.pack(*lengths, *map(checksum, parts))
        return (head + _CRC.pack(checksum(head)), *parts)

    def without_raw(self) -> JobMessage:
        """The message for a process that needs neither function nor attachment."""
        return replace(self, function=b"", attachment=b"")


_Values: Any = msgspec.defstruct(
    "_Values",
    [(name, kind) for name, kind in get_type_hints(JobMessage, include_extras=True).items() if name not in _RAW],
    forbid_unknown_fields=True,
)
"""The attributes that are sent as JSON, with their types: all are required."""


def read_parcel(stream: BinaryIO) -> JobMessage:
    """Reads one message from `stream`, and not a byte more.

    Raises:
        LaunchError: the stream ends too early, or contains something else, another version's, or damaged bytes.
    """
    lengths, checksums = _read_head(stream)
    parts = []
    for name, size, crc in zip(_PARTS, lengths, checksums, strict=True):
        data = _read(stream, size)
        if checksum(data) != crc:
            raise _make_damage_error(
                f"its {name} ({size} bytes) have the checksum {checksum(data):08x}, and {crc:08x} was sent"
            )
        parts.append(data)
    values, graph, function, attachment = parts
    try:
        values_by_field = msgspec.structs.asdict(msgspec.convert(json.loads(zlib.decompress(values)), _Values))
    except (zlib.error, ValueError, RecursionError) as error:  # ValidationError is a ValueError
        raise _make_damage_error(f"its values are not those of version {VERSION}: {error}") from error
    return JobMessage(**values_by_field, graph=bytes(graph), function=function, attachment=attachment)


def _read_head(stream: BinaryIO) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(bytes of each part, checksum of each part)."""
    head = _read(stream, _SHOWN_BYTES)
    if not head.startswith(_MAGIC):
        version, newline, _ = head.removeprefix(_MARK).partition(b"\n")
        if head.startswith(_MARK) and newline and version.isdigit():
            raise LaunchError(
                "A worker must have the same version of Parallax as its launcher: the job's message has version "
                f"{int(version)}, and this worker reads {VERSION}. Install one version everywhere (`parallax doctor`)."
            )
        raise LaunchError(
            "A worker is started by Parallax's launcher, which sends it the plan on its standard input, got "
            f"{bytes(head)!r}. Start the script itself, or `parallax run`."
        )
    head += _read(stream, _HEAD_BYTES - len(head))
    (crc,) = _CRC.unpack_from(head, _HEAD_BYTES - _CRC.size)
    if checksum(head[: -_CRC.size]) != crc:
        raise _make_damage_error(f"its head is {head.hex()}, which does not have the checksum that it names")
    numbers = _LENGTHS.unpack_from(head, len(_MAGIC))
    return numbers[: len(_PARTS)], numbers[len(_PARTS) :]


def _make_damage_error(how: str) -> LaunchError:
    return LaunchError(
        f"A worker must get the job's message as the launcher sent it, and {how}. Start the job again; if that "
        "repeats, test the memory of the launcher's host and of worker 0's."
    )


def _read(stream: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = stream.readinto(left)  # type: ignore[attr-defined]  # typeshed's BinaryIO has none, every stream has
        if not count:
            raise LaunchError(
                f"A worker gets the plan from its launcher, but {size - len(left)} of {size} bytes arrived: the "
                "launcher has ended, or mpirun was told not to pass on its input."
            )
        left = left[count:]
    return data
