"""Selects the Open MPI all-reduce algorithm that sends the fewest bytes out of a host, given the workers per host.

A ring sends 2(W-1)/W of the reduced bytes from each worker to the next one, so the same out of each host, whatever its
number of workers (Patarasuk and Yuan 2009). Recursive halving and doubling exchanges with a worker at distance 1, 2, 4
and so on, half as much each time, and the reverse on the way back (Rabenseifner 2004). Neighbours share a host, so the
large exchanges stay within it: of H hosts with equally many workers each sends 2(H-1)/H, the least possible. It
requires 2^k workers.
"""

from __future__ import annotations

from collections.abc import Sequence


def halves(workers_by_host: Sequence[int]) -> bool:
    """Whether halving and doubling sends less out of the busiest host than a ring.

    Args:
        workers_by_host: in the order of ranks.
    """
    workers = sum(workers_by_host)
    return workers & (workers - 1) == 0 and _of_halving(workers_by_host) < _of_ring(workers_by_host)


def sent_out_of_host(workers_by_host: Sequence[int]) -> float:
    """The bytes that the busiest host sends out in an all-reduce, relative to the reduced bytes; 0 for one host."""
    return _of_halving(workers_by_host) if halves(workers_by_host) else _of_ring(workers_by_host)


def _of_ring(workers_by_host: Sequence[int]) -> float:
    workers, hosts = sum(workers_by_host), sum(count > 0 for count in workers_by_host)
    return 2 * (workers - 1) / workers if hosts > 1 else 0.0


def _of_halving(workers_by_host: Sequence[int]) -> float:
    host_of = [host for host, count in enumerate(workers_by_host) for _ in range(count)]
    sent = [0.0] * len(workers_by_host)
    distance, part = 1, 0.5
    while distance < len(host_of):
        for rank, host in enumerate(host_of):
            if host_of[rank ^ distance] != host:
                sent[host] += 2 * part  # in both directions of the algorithm
        distance, part = 2 * distance, part / 2
    return max(sent)
