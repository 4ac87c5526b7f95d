"""Assigns a communicator to each exchange and all-reduce of a worker's graph, the same for a node on all workers.

An all-reduce also has memory that the workers of a host share, for the part of a message that is summed at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import tensorflow as tf

from parallax.base.types import Comm, GraphDef, NodeDef
from parallax.plans.sum_methods import SumRules
from parallax.report.logger import log
from parallax.runtime.worker.teams import Teams
from parallax.transform.building.all_to_all import ALL_REDUCE, ALL_TO_ALL, library

SHARED_BYTES = 1 << 22
"""The largest part of a message that is in shared memory at a time."""
SHARED_BYTES_OF_SOME = 1 << 16
"""The same for runs that need some members of a message, which are rare, and for messages of unknown length."""


def open_channels(
    graph_def: GraphDef, teams: Teams, known: Sequence[SumRules] = (), unknown_bytes: int = SHARED_BYTES_OF_SOME
) -> None:
    """Opens the unopened channels of a graph's exchanges and all-reduces; all workers must call it with the same ones.

    Args:
        graph_def: a worker's graph.
        teams: the teams of the workers.
        known: the measured methods of all-reduces.
        unknown_bytes: the part of a message of unknown length that is in shared memory at a time.
    """
    meetings = {n.name: n for n in graph_def.node if n.op in (ALL_TO_ALL, ALL_REDUCE)}
    unshared = ""
    for name, node in sorted(meetings.items()):  # in one order on all workers: creating a communicator is a collective
        among = node.attr["among"].s.decode()
        if teams.is_open(name):
            continue
        if node.op == ALL_TO_ALL:
            teams.open(name, among)
            continue
        whole = _message_bytes(node)
        unshared = teams.open_sums(name, among, unknown_bytes if whole is None else whole, known) or unshared
        if node.attr["N"].i > 1:  # for runs that need some of its members
            teams.open_sums(f"{name}:parts", among, SHARED_BYTES_OF_SOME, known)
    if unshared:
        log.warning(
            f"Workers of this host cannot share memory: {unshared}. They reduce gradients over MPI, which is slower."
        )


def _message_bytes(node: NodeDef) -> int | None:
    """Bytes of an all-reduce's message in shared memory at a time; None where the length is unknown."""
    elements = node.attr["elements"].i
    if elements < 0:
        return None
    padding = 64 * node.attr["N"].i
    return int(min(elements * tf.as_dtype(node.attr["T"].type).size + padding, SHARED_BYTES))


def open_stages(peers: Comm) -> Comm:
    """Opens the channel between the stages of a replica; returns another communicator, for values that scripts fetch.

    Args:
        peers: communicator of its workers, ranked by stage; all of them must call it.
    """
    native = ctypes.CDLL(str(library()))
    native.parallax_open_stages(ctypes.c_int(peers.Dup().py2f()))
    return peers.Dup()


def close_stages() -> None:
    """Shuts down the messages between stages; no run follows."""
    ctypes.CDLL(str(library())).parallax_close_stages()
