"""Pass: makes random ops draw other numbers on every worker, reproducibly from one seed; initial values are equal.

Worker 0 keeps the user's own seeds, so a single worker draws the numbers of a single process. The seed of a stateless
op is computed in the graph and equal on all workers: other workers fold their number into it. All stateless ops have
the same number folded in, as some draw again what another has drawn by the same seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2

from parallax.base.types import GraphDef, NodeDef
from parallax.graph.ops import seed_slots, takes_functions, takes_seeds
from parallax.transform.building.editor import SCOPE, Worker


def set_seeds(graph_def: GraphDef, initial: frozenset[str], worker: Worker) -> None:
    """Sets the seeds of every random op, `seed` and `seed2` or the inputs of a stateless one; in functions too.

    Args:
        graph_def: modified in place.
        initial: names of the random ops that draw equal values on all workers, as those of initial values do, and of
            ops that call functions with such.
        worker: the worker whose graph it is.
    """
    for node in graph_def.node:
        _set(node, node.name, node.name in initial, worker)
    equal_draws = _called_alike_only(graph_def, initial)
    for function in graph_def.library.function:
        for node in function.node_def:
            name = f"{function.signature.name}/{node.name}"
            _set(node, name, function.signature.name in equal_draws, worker)
    if worker.rank and not worker.equal_randomness:
        number = mix_seed(worker.seed, "stateless", worker.rank)
        _fold(graph_def.node, number, initial, f"{SCOPE}/seed_", "")
        for function in graph_def.library.function:
            if function.signature.name not in equal_draws:
                _fold(function.node_def, number, frozenset(), f"{SCOPE}_seed_", ":z:0")


def seeds_of(node: NodeDef, name: str, initial: bool, worker: Worker) -> tuple[int, int]:
    """The `seed` and `seed2` of a worker's random op.

    Args:
        node: of the user's graph, with both attributes.
        name: of the node; within a function, prefixed by the function's name.
        initial: whether it draws initial values.
        worker: the worker whose graph it is.
    """
    seeds = (node.attr["seed"].i, node.attr["seed2"].i)
    rank = 0 if initial or worker.equal_randomness else worker.rank
    if seeds == (0, 0):
        return worker.seed, mix_seed(worker.seed, name, rank)
    return (seeds[0], mix_seed(seeds[1], name, rank)) if rank else seeds


def _set(node: NodeDef, name: str, initial: bool, worker: Worker) -> None:
    if takes_seeds(node):
        node.attr["seed"].i, node.attr["seed2"].i = seeds_of(node, name, initial, worker)


def _fold(nodes: Any, number: int, equal_draws: frozenset[str], prefix: str, output: str) -> None:
    """Folds a number into each integer of the seeds and keys of stateless random ops."""
    for node in list(nodes):
        slots = seed_slots(node.op)
        if not slots or node.name in equal_draws:
            continue
        slot = slots[0]
        dtype = node.attr["Tseed"].type if "Tseed" in node.attr else types_pb2.DT_UINT64
        name = f"{prefix}{len(nodes)}"
        constant = tf.make_tensor_proto(number, tf.as_dtype(dtype), [])
        other = nodes.add(name=f"{name}/number", op="Const", device=node.device)
        other.attr["dtype"].type = dtype
        other.attr["value"].tensor.CopyFrom(constant)
        folded = nodes.add(name=name, op="BitwiseXor", device=node.device)
        folded.attr["T"].type = dtype
        folded.input.extend([node.input[slot], f"{name}/number" + (":output:0" if output else "")])
        node.input[slot] = f"{name}{output}"


def _called_alike_only(graph_def: GraphDef, equal_draws: frozenset[str]) -> set[str]:
    """The functions that are called only by nodes with equal draws, and the functions that these call."""
    called = {f.signature.name: _functions_of(f.node_def) for f in graph_def.library.function}
    others = _find_reached(called, _functions_of(n for n in graph_def.node if n.name not in equal_draws))
    return called.keys() - others


def _find_reached(called: Mapping[str, set[str]], names: set[str]) -> set[str]:
    reached, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += called.get(name, ())
    return reached


def _functions_of(nodes: Iterable[NodeDef]) -> set[str]:
    """The names of the functions that nodes call."""
    values = [value for node in nodes if takes_functions(node.op) for value in node.attr.values()]
    return {f.name for value in values for f in (value.func, *value.list.func)} - {""}


def mix_seed(seed: int, name: str, rank: int) -> int:
    """A positive 31-bit number; never 0, which means unseeded."""
    digest = hashlib.sha256(f"{seed}/{name}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % (2**31 - 1) + 1
