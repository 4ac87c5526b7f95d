"""Gives every exchange and all-reduce of a worker's graph a communicator of its own, by which its node meets others.

An all-reduce has memory too, which the workers of a host share, for as much of a message as is put together at a time.
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
"""The most of a message that is in shared memory at a time."""
SHARED_BYTES_OF_SOME = 1 << 16
"""The same of runs that need some of a message's members, which are rare, and where its length is not known before."""


def open_channels(
    graph_def: GraphDef, teams: Teams, known: Sequence[SumRules] = (), unknown_bytes: int = SHARED_BYTES_OF_SOME
) -> None:
    """Opens what is not open yet of a graph's exchanges and all-reduces; all workers must call it with the same ones.

    Args:
        graph_def: a worker's graph.
        teams: of the workers.
        known: the methods by which all-reduces put messages together, as measured.
        unknown_bytes: of messages of a length that is not known before, that are in shared memory at a time.
    """
    meetings = {n.name: n for n in graph_def.node if n.op in (ALL_TO_ALL, ALL_REDUCE)}
    unshared = ""
    for name, node in sorted(meetings.items()):  # in one order on all workers: making a communicator is a collective
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
            f"Workers of this host share no memory, as {unshared}. They add up gradients over MPI, which takes longer."
        )


def _message_bytes(node: NodeDef) -> int | None:
    """Of an all-reduce, at most as many as are shared at a time; None where it is not known."""
    elements = node.attr["elements"].i
    if elements < 0:
        return None
    padding = 64 * node.attr["N"].i
    return int(min(elements * tf.as_dtype(node.attr["T"].type).size + padding, SHARED_BYTES))


def open_stages(peers: Comm) -> Comm:
    """Opens the way between the stages of a replica; gives another one, for what their scripts have fetched.

    Args:
        peers: communicator of its workers, ranked by stage; all of them must call it.
    """
    native = ctypes.CDLL(str(library()))
    native.parallax_open_stages(ctypes.c_int(peers.Dup().py2f()))
    return peers.Dup()


def close_stages() -> None:
    """Leaves MPI with the messages between stages; no run follows."""
    ctypes.CDLL(str(library())).parallax_close_stages()
