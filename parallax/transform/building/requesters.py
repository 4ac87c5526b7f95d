"""Decides who of the workers on a host asks the owners of rows, for all of them."""

from __future__ import annotations

from collections.abc import Sequence


def requesters(hosts: Sequence[int], host: int, pattern: Sequence[int]) -> tuple[int, ...]:
    """For each slot of a pattern of owners, who of one host's workers asks for its rows.

    Owners on the host ask themselves: what they hold goes no further. The other slots go to whoever has the least to
    ask for so far, of equals to the one that has the owner's place on this host.

    Args:
        hosts: the number of each worker's host.
        host: the number of the host that asks.
        pattern: the owner of each slot.

    Returns:
        `[P]`, places on the host, from 0.
    """
    members = [rank for rank, number in enumerate(hosts) if number == host]
    asks = [pattern.count(rank) for rank in members]
    found = []
    for owner in pattern:
        if owner in members:
            found.append(members.index(owner))
            continue
        near = sum(number == hosts[owner] for number in hosts[:owner]) % len(members)
        found.append(min((asks[place], place != near, place) for place in range(len(members)))[2])
        asks[found[-1]] += 1
    return tuple(found)
