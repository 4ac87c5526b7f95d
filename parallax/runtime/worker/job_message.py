"""What the launcher sends to every rank: the plan, the graph and its classes, the seed, and who is where.

It travels on standard input: the launcher writes it to mpirun, which passes its input to rank 0, and rank 0 sends it to
the others with MPI. So no folder must be seen by all hosts.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass, field
from typing import BinaryIO

from parallax.errors import LaunchError

_MAGIC = b"PRLX1\n"
_LENGTHS = struct.Struct(">QQ")


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

    def to_bytes(self) -> bytes:
        """The parcel on the wire: a mark, two lengths, and what they are of: compressed JSON, then the graph."""
        values = asdict(self)
        graph: bytes = values.pop("graph")
        body = zlib.compress(json.dumps(values).encode("utf-8"))
        return _MAGIC + _LENGTHS.pack(len(body), len(graph)) + body + graph


def read_parcel(stream: BinaryIO) -> JobMessage:
    """Reads one parcel from `stream`, and not a byte more.

    Raises:
        LaunchError: the stream ends too early, or carries something else.
    """
    head = _read(stream, len(_MAGIC) + _LENGTHS.size)
    if not head.startswith(_MAGIC):
        raise LaunchError(
            f"A worker is started by Parallax's launcher, which sends it the plan on its standard input; there was "
            f"{head[:20]!r}. Start the script itself, or `parallax run`."
        )
    return parcel_from_bytes(head + _read(stream, sum(_LENGTHS.unpack(head[len(_MAGIC) :]))))


def parcel_from_bytes(data: bytes) -> JobMessage:
    """The parcel whose `to_bytes` are `data`."""
    begin = len(_MAGIC) + _LENGTHS.size
    end = begin + _LENGTHS.unpack(data[len(_MAGIC) : begin])[0]
    raw = json.loads(zlib.decompress(data[begin:end]))
    ports = raw["ports"]
    lists = {name: tuple(raw[name]) for name in ("hosts", "servers", "addresses")}
    return JobMessage(**{**raw, **lists, "graph": data[end:], "ports": None if ports is None else (ports[0], ports[1])})


def _read(stream: BinaryIO, size: int) -> bytes:
    pieces: list[bytes] = []
    left = size
    while left:
        data = stream.read(left)
        if not data:
            raise LaunchError(
                f"A worker gets the plan from its launcher, and {size - left} of {size} bytes came: the launcher has "
                "ended, or mpirun was told not to pass on its input."
            )
        pieces.append(data)
        left -= len(data)
    return b"".join(pieces)
