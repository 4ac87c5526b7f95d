"""Gives every exchange of a worker's graph a communicator of its own, by which its node reaches the other workers."""

from __future__ import annotations

import ctypes

from parallax.transform.building.all_to_all import ALL_TO_ALL, HOST, library
from parallax.types import Comm, GraphDef


def open_channels(graph_def: GraphDef, workers: Comm, host_workers: Comm = None) -> None:
    """Opens the exchanges of a graph that are not open yet; every worker must call it with the same ones.

    Args:
        graph_def: a worker's graph.
        workers: communicator of all workers.
        host_workers: of those of this host, where there are exchanges among them.
    """
    exchanges = sorted((node.name, node.attr["among"].s.decode()) for node in graph_def.node if node.op == ALL_TO_ALL)
    if not exchanges:
        return
    native = ctypes.CDLL(str(library()))
    for name, among in exchanges:  # in one order on all workers: making a communicator is a collective itself
        if not native.parallax_is_open(name.encode()):
            communicator = (host_workers if among == HOST else workers).Dup()
            native.parallax_open(name.encode(), ctypes.c_int(communicator.py2f()))
