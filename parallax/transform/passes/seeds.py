"""Pass: random ops draw other numbers on every worker, repeatably from one seed; initial values the same on all.

Worker 0 keeps the user's own seeds, so one worker draws what a single process would.
"""

from __future__ import annotations

import hashlib

from parallax.transform.building.editor import Worker
from parallax.types import GraphDef, NodeDef


def set_seeds(graph_def: GraphDef, initial: frozenset[str], worker: Worker) -> None:
    """Sets `seed` and `seed2` of every random op, in functions too.

    Args:
        graph_def: changed in place.
        initial: names of the random ops that give initial values.
        worker: whose graph it is.
    """
    for node in graph_def.node:
        _set(node, node.name, node.name in initial, worker)
    for function in graph_def.library.function:
        for node in function.node_def:
            _set(node, f"{function.signature.name}/{node.name}", False, worker)


def seeds_of(node: NodeDef, name: str, initial: bool, worker: Worker) -> tuple[int, int]:
    """The `seed` and `seed2` that a worker's random op has.

    Args:
        node: of the user's graph, with both attributes.
        name: of the node; within a function, the function's name before it.
        initial: whether it gives initial values.
        worker: whose graph it is.
    """
    seeds = (node.attr["seed"].i, node.attr["seed2"].i)
    rank = 0 if initial or worker.equal_randomness else worker.rank
    if seeds == (0, 0):
        return worker.seed, mixed(worker.seed, name, rank)
    return (seeds[0], mixed(seeds[1], name, rank)) if rank else seeds


def _set(node: NodeDef, name: str, initial: bool, worker: Worker) -> None:
    if "seed" in node.attr and "seed2" in node.attr:
        node.attr["seed"].i, node.attr["seed2"].i = seeds_of(node, name, initial, worker)


def mixed(seed: int, name: str, rank: int) -> int:
    """A positive 31-bit number; never 0, which means unseeded."""
    digest = hashlib.sha256(f"{seed}/{name}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % (2**31 - 1) + 1
