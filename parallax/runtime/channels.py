"""Gives every exchange of a worker's graph a communicator of its own, by which its node reaches the other workers."""

from __future__ import annotations

import ctypes
from typing import Any

from parallax.runtime.members import Members
from parallax.transform.exchange_op import ALL_TO_ALL, HOST, library


def open_channels(graph_def: Any, members: Members) -> None:
    """Opens the exchanges of a graph; every worker must call it with the same ones."""
    exchanges = sorted((node.name, node.attr["among"].s.decode()) for node in graph_def.node if node.op == ALL_TO_ALL)
    if not exchanges:
        return
    opened = ctypes.CDLL(str(library())).parallax_open
    for name, among in exchanges:  # in one order on all workers: making a communicator is a collective itself
        communicator = (members.host_workers if among == HOST else members.workers).Dup()
        opened(name.encode(), ctypes.c_int(communicator.py2f()))
