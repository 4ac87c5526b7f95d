"""What the launcher sends to every rank: the plan, the graph and its classes, the seed, and who is where.

It travels on standard input: the launcher writes it to mpirun, which passes its input to rank 0, and rank 0 sends it to
the others with MPI. So no folder must be seen by all hosts.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field, fields, replace
from typing import BinaryIO

from parallax.errors import LaunchError
from parallax.types import Buffer

_MAGIC = b"PRLX2\n"
_RAW = ("graph", "function", "attachment")
"""The attributes that travel as they are, without being copied: some have gigabytes."""
_SHOWN_BYTES = 20  # of what is no parcel; every parcel has more
_LENGTHS = struct.Struct(f">{1 + len(_RAW)}Q")


@dataclass(frozen=True, slots=True)
class JobMessage:
    """The launcher's decisions.

    Attributes:
        plan: JSON of the plan.
        graph: the graph as the launcher built it, packed (analysis/reading/launcher_graph.py).
        seed: of all random numbers that the script does not seed.
        hosts: the number of the host that each worker is on, by rank.
        servers: the number of the host that each server is on.
        addresses: the address of each host, as the resource file gives it.
        ports: first and last port that servers may listen on; None for any.
        cluster: JSON of the cluster profile, where the job may look for a better plan; else empty.
        cluster_name: of the file that it came from.
        spec: JSON of the graph's spec and of where its gradients come from (parallax/graph/spec_json.py).
        function: what workers call where they do not run a script, pickled (worker/called.py); else empty.
        attachment: what the launching process gives to the workers, in a form that both know; often empty.
    """

    plan: str
    graph: bytes = field(repr=False)
    seed: int
    hosts: tuple[int, ...]
    servers: tuple[int, ...] = ()
    addresses: tuple[str, ...] = ()
    ports: tuple[int, int] | None = None
    cluster: str = ""
    cluster_name: str = ""
    spec: str = ""
    function: Buffer = field(default=b"", repr=False)
    attachment: Buffer = field(default=b"", repr=False)

    def pieces(self) -> tuple[Buffer, ...]:
        """The parcel on the wire: a mark, lengths, and what they are of: compressed JSON, then the bytes of `_RAW`."""
        raw: list[Buffer] = [getattr(self, name) for name in _RAW]
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _RAW}
        body = zlib.compress(json.dumps(values).encode("utf-8"))
        return (_MAGIC + _LENGTHS.pack(len(body), *(memoryview(data).nbytes for data in raw)), body, *raw)

    def without_raw(self) -> JobMessage:
        """The parcel for a process that needs neither function nor attachment."""
        return replace(self, function=b"", attachment=b"")


def read_parcel(stream: BinaryIO) -> JobMessage:
    """Reads one parcel from `stream`, and not a byte more.

    Raises:
        LaunchError: the stream ends too early, or carries something else.
    """
    head = _read(stream, _SHOWN_BYTES)
    if not head.startswith(_MAGIC):
        raise LaunchError(
            f"A worker is started by Parallax's launcher, which sends it the plan on its standard input; there was "
            f"{bytes(head)!r}. Start the script itself, or `parallax run`."
        )
    head += _read(stream, len(_MAGIC) + _LENGTHS.size - len(head))
    size, *sizes = _LENGTHS.unpack_from(head, len(_MAGIC))
    values = json.loads(zlib.decompress(_read(stream, size)))
    values |= {name: tuple(values[name]) for name in ("hosts", "servers", "addresses")}
    values["ports"] = None if values["ports"] is None else tuple(values["ports"])
    graph, function, attachment = (_read(stream, size) for size in sizes)
    return JobMessage(**values, graph=bytes(graph), function=function, attachment=attachment)


def _read(stream: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = stream.readinto(left)  # type: ignore[attr-defined]  # typeshed's BinaryIO has none, every stream has
        if not count:
            raise LaunchError(
                f"A worker gets the plan from its launcher, and {size - len(left)} of {size} bytes came: the launcher "
                "has ended, or mpirun was told not to pass on its input."
            )
        left = left[count:]
    return data
