"""Chooses a variable's number of partitions on servers, and the server of each partition.

A partition is a share of the rows, so large variables use the links of all servers and small ones need one request.
Partitions are placed in descending order of the bytes that a step moves through them. Each goes to the server with the
fewest partitions of that variable, and then with the lowest load. A plan without a variable on servers has no servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parallax.base.errors import PlanError
from parallax.graph.spec import VariableSpec

PARTITION_BYTES = 256 << 10
"""A variable gets one additional partition for each started multiple of these bytes: the minimum partition size of
TensorFlow's own partitioner of variables on servers (MinSizePartitioner). Far below it a request costs more than its
bytes.
"""


@dataclass(frozen=True, slots=True)
class _Share:
    """One partition: bytes that a step moves through it, and its key (variable, part, partition)."""

    load_bytes: float
    name: str
    part: int
    partition: int


def partition_count(variable: VariableSpec, part: int, servers: int, requested: int | None) -> int:
    """The number of partitions of one part of a variable: the user's, else one for each started PARTITION_BYTES.

    There are never more than servers or rows. A variable that the script has partitioned itself keeps its parts.

    Raises:
        PlanError: more were requested than there are rows.
    """
    rows = variable.parts[part].rows
    if requested is not None:
        if not 1 <= requested <= rows:
            owner_text = f"{variable.name!r} has" if len(variable.parts) == 1 else f"a part of {variable.name!r} has"
            what = f"{owner_text} {rows} rows"
            raise PlanError(
                f"The number of partitions must be between 1 and the number of rows: {what}, got {requested}."
            )
        return requested
    if len(variable.parts) > 1 or not variable.shape:
        return 1
    return max(1, min(servers, rows, -(-variable.value_bytes // PARTITION_BYTES)))


def place(
    variables: list[VariableSpec], loads: Mapping[str, float], servers: int, requested: Mapping[str, int]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Places all partitions on servers.

    Args:
        variables: the variables on servers.
        loads: variable name -> bytes that a step moves for it.
        servers: the number of servers.
        requested: variable name -> requested number of partitions.

    Returns:
        Variable name -> for each part the server of each of its partitions.
    """
    shares, counts = [], {}
    for variable in variables:
        for part in range(len(variable.parts)):
            count = partition_count(variable, part, servers, requested.get(variable.name))
            counts[variable.name, part] = count
            of_part = loads[variable.name] * variable.parts[part].rows / max(variable.rows, 1)
            shares += [_Share(of_part / count, variable.name, part, p) for p in range(count)]
    shares.sort(key=lambda s: (-s.load_bytes, s.name, s.part, s.partition))
    carried = [0.0] * servers
    load_by_server: dict[tuple[str, int], int] = {}
    server_by_partition: dict[tuple[str, int, int], int] = {}
    for share in shares:
        server = min(range(servers), key=lambda s: (load_by_server.get((share.name, s), 0), carried[s], s))
        server_by_partition[share.name, share.part, share.partition] = server
        load_by_server[share.name, server] = load_by_server.get((share.name, server), 0) + 1
        carried[server] += share.load_bytes
    return {
        v.name: tuple(
            tuple(server_by_partition[v.name, part, p] for p in range(counts[v.name, part]))
            for part in range(len(v.parts))
        )
        for v in variables
    }
