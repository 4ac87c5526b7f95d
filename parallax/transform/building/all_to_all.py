"""Loads the op library (parallax/native), and builds the ops by which workers exchange rows.

Every node of the exchange has its own communicator and thread. So a worker's messages leave as soon as its rows are
ready, and several exchanges are in flight at once, in any order. Horovod, in contrast, negotiates every tensor among
all workers, once a cycle, and processes one after another. The row counts of each peer are exchanged only in the first
all-to-all of a pull. The op is stateful, so TensorFlow neither folds it nor merges two of them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from parallax.base.errors import TransformError
from parallax.base.types import DType, GraphDef, OpLibrary, Tensor
from parallax.cluster.team_names import WORKERS

ALL_TO_ALL, ALL_REDUCE = "ParallaxAllToAll", "ParallaxAllReduce"


def library() -> Path:
    """The path where the setup installs the library: in the environment of this interpreter."""
    return Path(sys.executable).parent.parent / "lib" / "libparallax_exchange.so"


def is_collective(op: str) -> bool:
    """Whether no worker continues before all have arrived, in ops of a type: those of the library, and Horovod's."""
    return op.startswith("Horovod") or op in (ALL_TO_ALL, ALL_REDUCE)


@functools.cache
def native_ops() -> OpLibrary:
    """The ops of the library.

    Raises:
        TransformError: it has not been built.
    """
    if not library().is_file():
        raise TransformError(
            f"Workers draw and exchange rows by ops of {library()}, which does not exist. Build it: `parallax setup`."
        )
    ops = tf.load_op_library(str(library()))
    if not hasattr(ops, "parallax_all_reduce"):
        raise TransformError(f"{library()} is older than Parallax. Build it again: `parallax setup`.")
    return ops


def restrict_to_team(team: str, graph_def: GraphDef) -> None:
    """Restricts collectives of all workers to those of a stage of the model, or of an island; changes the graph."""
    for node in graph_def.node:
        if node.op in (ALL_TO_ALL, ALL_REDUCE) and node.attr["among"].s.decode() == WORKERS:
            node.attr["among"].s = team.encode()


@dataclass(frozen=True, slots=True)
class Hop:
    """Deduplicated keys, ordered by destination.

    Attributes:
        keys: `[m]`, distinct, by destination.
        splits: `[D]` int32, the number of keys for each destination.
        positions: `[n]` int32, the position in `keys` of each input key.
        local: `[m]`, on a hop to owners each key's local row number there (parallax/graph/ownership.py); else `[0]`.
    """

    keys: Tensor
    splits: Tensor
    positions: Tensor
    local: Tensor


@dataclass(frozen=True, slots=True)
class LookupIds:
    """Ids of one lookup `[n]`, which request rows of a table.

    Attributes:
        ids: int32 or int64.
        table: its name, for errors.
        rows: of the table; -1 when the ids have been checked.
        offset: added to an id to form its key.
        from_end: whether a negative id is counted from the table's end.
    """

    ids: Tensor
    table: str = ""
    rows: int = -1
    offset: int = 0
    from_end: bool = False


def prepare_hop(
    requested: Sequence[LookupIds], destinations: Sequence[int], count: int, key_type: DType, to_owners: bool = False
) -> Hop:
    """Deduplicates the keys of lookups and orders them by destination: key k to `destinations[k % len(destinations)]`.

    An id outside its table ends the run with an error that names both (id_errors.py parses it).

    Args:
        requested: the lookups; positions are concatenated over all of them.
        destinations: each below `count`.
        count: the number of destinations.
        key_type: int32 or int64.
        to_owners: whether destinations are the owners of the rows, which receive local row numbers.
    """
    made = native_ops().parallax_leg(
        ids=[one.ids for one in requested],
        Tkeys=key_type,
        tables=[one.table for one in requested],
        rows=[one.rows for one in requested],
        offsets=[one.offset for one in requested],
        from_end=[one.from_end for one in requested],
        destinations=list(destinations),
        count=count,
        to_owners=to_owners,
        name="leg",
    )
    return Hop(made.keys, made.splits, made.positions, made.local)


def all_to_all(tensor: Tensor, splits: Tensor, among: str = WORKERS, arriving: Tensor = None) -> tuple[Tensor, Tensor]:
    """Sends `splits[k]` rows of `tensor` `[n, ...]` to worker k of all, or of this host.

    Args:
        tensor: rows, ordered by destination.
        splits: `[W]` int32.
        among: WORKERS or HOST.
        arriving: `[W]` int32, the number of rows from each worker, where that is known; else the workers exchange it
            first.

    Returns:
        The rows received `[m, ...]`, by sender, and how many came from each worker (int32).

    Raises:
        TransformError: the library has not been built.
    """
    known = [] if arriving is None else [arriving]
    made = native_ops().parallax_all_to_all(rows=tensor, splits=splits, arriving=known, among=among, name="all_to_all")
    return made.received, made.received_splits
