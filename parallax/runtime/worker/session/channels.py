"""Assigns a communicator to each exchange and all-reduce of a worker's graph, the same for a node on all workers."""

from __future__ import annotations

import ctypes

from parallax.base.types import Comm, GraphDef, NodeDef
from parallax.transform.building.all_to_all import ALL_REDUCE, ALL_TO_ALL, HOST, library


def open_channels(graph_def: GraphDef, workers: Comm, host_workers: Comm = None) -> None:
    """Opens the unopened channels of a graph's exchanges and all-reduces; all workers must call it with the same ones.

    Args:
        graph_def: a worker's graph.
        workers: communicator of all workers.
        host_workers: of those of this host, if there are exchanges among them.
    """
    meetings = sorted((n.name, _is_in_host(n)) for n in graph_def.node if n.op in (ALL_TO_ALL, ALL_REDUCE))
    joined = [n.name for n in graph_def.node if n.op == ALL_REDUCE and n.attr["N"].i > 1]
    meetings += [(f"{name}:parts", False) for name in sorted(joined)]  # for runs that need some of its members
    if not meetings:
        return
    native = ctypes.CDLL(str(library()))
    for name, in_host in meetings:  # in one order on all workers: creating a communicator is a collective itself
        if not native.parallax_is_open(name.encode()):
            communicator = (host_workers if in_host else workers).Dup()
            native.parallax_open(name.encode(), ctypes.c_int(communicator.py2f()))


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


def _is_in_host(node: NodeDef) -> bool:
    return bool(node.op == ALL_TO_ALL and node.attr["among"].s.decode() == HOST)
