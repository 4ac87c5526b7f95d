"""Defines the measurements: ranks, operation, and number of bytes. Plain values; nothing is measured here.

An operation is measured among members on separate hosts (`across`), the first 2, 4, 8, ... and all of them, and among
the workers of one host (`within`), on all hosts concurrently. Bytes are those of the busiest link in its busier
direction, as in `parallax.cluster.profiles.AlphaBeta`, exactly: for n members

    all-reduce of w bytes          2 (n - 1) / n w      around a ring
    all-to-all, k bytes to each    (n - 1) k
    allgather of w bytes           (n - 1) w            around a ring
    pull, push of k bytes to each  (n - 1) k            from or to a server on each member's host

Where all are on one host there is one server, and its bytes, n k, are the busiest process's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ACROSS, WITHIN = "across", "within"

ROW_WIDTH = 64
"""Number of float32 elements per row in exchanges, pulls and pushes."""

SERVER_ROWS = 32768
"""Rows of the partition on each server."""

ELEMENT_BYTES = 4
ROW_BYTES = ROW_WIDTH * ELEMENT_BYTES
PULL_ID_BYTES = 4
PUSH_ID_BYTES = 8

_COLLECTIVES = ("allreduce", "alltoall", "allgather")
_OF_SERVERS = ("pull", "push")

_MOST_S = 0.03  # on the link, of the largest size: its latency is small in comparison
_LEAST_TOP_BYTES, _MOST_TOP_BYTES = 1 << 16, 1 << 22
_WITHIN_TOP_BYTES = 1 << 20
_SIZES, _STEP = 5, 4
_QUICK_SIZES, _QUICK_STEP = 4, 8


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that are measured together.

    Attributes:
        where: ACROSS or WITHIN.
        members: how many take part in an operation.
        teams: the ranks of each operation; within hosts there is a team on each, and all run concurrently.
        servers: how many servers take part in a pull or push, the first ones; 0 if these are not measured.
    """

    where: str
    members: int
    teams: tuple[tuple[int, ...], ...]
    servers: int

    def team_of(self, rank: int) -> int | None:
        """The number of a rank's team; None when it is in none."""
        return next((number for number, team in enumerate(self.teams) if rank in team), None)


@dataclass(frozen=True, slots=True)
class Point:
    """One operation of one size.

    Attributes:
        where: ACROSS or WITHIN.
        members: how many take part.
        operation: one of `parallax.cluster.profiles.OPERATIONS`.
        count: elements of a member (all-reduce, allgather), or rows from a member to each other, or to each server.
        link_bytes: of the busiest link in its busier direction.
        is_held_out: excluded from the fit, and used to report the prediction error.
    """

    where: str
    members: int
    operation: str
    count: int
    link_bytes: float
    is_held_out: bool = False


def first_worker_by_host(hosts: Sequence[int]) -> tuple[int, ...]:
    """The first worker of each host, given the host of each worker."""
    return tuple(hosts.index(host) for host in dict.fromkeys(hosts))


def groups_of(hosts: Sequence[int], quick: bool) -> tuple[Group, ...]:
    """The groups that are measured together.

    Args:
        hosts: the host number of each worker, ascending; on each host there is a server.
        quick: only two members and all of them.
    """
    leads = first_worker_by_host(hosts)
    groups = [Group(ACROSS, n, (leads[:n],), n) for n in _subsets(len(leads), quick)]
    by_host = [tuple(rank for rank, host in enumerate(hosts) if host == one) for one in dict.fromkeys(hosts)]
    for n in _subsets(max(map(len, by_host)), quick):
        teams = tuple(ranks[:n] for ranks in by_host if len(ranks) >= n)
        # With several hosts, requests to a server mostly cross links: that is measured across.
        groups.append(Group(WITHIN, n, teams, 1 if len(by_host) == 1 else 0))
    return tuple(groups)


def _subsets(most: int, quick: bool) -> list[int]:
    """2, 4, 8, ... and `most`; at least two different ones if possible, to fit the latency of a further member."""
    if most < 2:
        return []
    powers = [1 << k for k in range(1, most.bit_length()) if 1 << k < most]
    return [*(powers[:1] if quick else powers), most]


def points_of(group: Group, rate_bytes_per_s: float | None, quick: bool) -> tuple[Point, ...]:
    """The points of a group: each operation by sizes that take a link up to some hundredths of a second.

    Args:
        group: the ranks.
        rate_bytes_per_s: of the slowest link among them; None within a host.
        quick: fewer sizes.
    """
    top = _WITHIN_TOP_BYTES
    if rate_bytes_per_s is not None:
        top = min(max(1 << round(rate_bytes_per_s * _MOST_S).bit_length() - 1, _LEAST_TOP_BYTES), _MOST_TOP_BYTES)
    step, count = (_QUICK_STEP, _QUICK_SIZES) if quick else (_STEP, _SIZES)
    point_by_size: dict[tuple[str, int], Point] = {}
    for operation in (*_COLLECTIVES, *(_OF_SERVERS if group.servers else ())):
        for target_bytes, is_held_out in [*((top // step**k, False) for k in range(count)), (top // 2, True)]:
            size = _count(group, operation, target_bytes)
            sent = _link_bytes(group, operation, size)
            point_by_size.setdefault(
                (operation, size), Point(group.where, group.members, operation, size, sent, is_held_out)
            )
    return tuple(point_by_size.values())


def _count(group: Group, operation: str, wanted_bytes: int) -> int:
    """The count of a point whose bytes are about `wanted_bytes`; at least 1."""
    one = _link_bytes(group, operation, 1)
    most = SERVER_ROWS if operation in _OF_SERVERS else wanted_bytes
    return min(max(round(wanted_bytes / one), 1), most)


def _link_bytes(group: Group, operation: str, count: int) -> float:
    n = group.members
    peers = n if operation in _OF_SERVERS and group.where == WITHIN else n - 1
    each = {
        "allreduce": 2 / n * ELEMENT_BYTES,
        "alltoall": ROW_BYTES,
        "allgather": ELEMENT_BYTES,
        "pull": ROW_BYTES + PULL_ID_BYTES,
        "push": ROW_BYTES + PUSH_ID_BYTES,
    }[operation]
    return peers * each * count
