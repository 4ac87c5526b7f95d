"""The all-to-all exchange in plain TensorFlow ops: rows pulled from their owners, gradient rows pushed to them.

Row r of a table lives on worker r % W as local row r // W, which balances a vocabulary sorted by frequency. Tables of
equal width and type share one exchange: their row numbers are laid one after the other, each table starting at a
multiple of W, so that owner and local row of any of them are again the rest and quotient by W.

Bytes each way, worker and step, for u distinct rows of width d, e bytes an element and i bytes an id:
(W-1)/W * u * (i + 2de), the ids and rows in the pull and the gradients in the push; the push needs no ids because the
owner remembers them from the pull.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parallax.transform.collectives import all_to_all, open_end

INT32_ROWS = 2**31


@dataclass(frozen=True, slots=True)
class TableRows:
    """One table of an exchange: its op, its variable, whole rows, and the local rows as handle or tensor."""

    name: str
    variable: str
    rows: int
    local: Any
    dtype: Any
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull leaves for its lookups and pushes.

    Attributes:
        rows: `[u, width]`, the distinct rows in the order in which they were asked for (by owner).
        keys: `[u]`, their row numbers, of all tables laid together.
        positions: for each lookup, where in `rows` its ids are, `[n]` int32.
        splits: `[W]`, how many rows were asked of each owner.
        asked: `[m]`, row numbers (of all tables laid together, divided by W) that others asked of this worker.
        table_of_asked: `[m]`, which table each belongs to; None when there is one table only.
        bases: first local row number of each table.
        distinct: `[tables]` int64, distinct rows asked for, by table.
        id_cuts: the tensors that carry each lookup's ids, which may be fed.
    """

    rows: Any
    keys: Any
    positions: tuple[Any, ...]
    splits: Any
    asked: Any
    table_of_asked: Any
    bases: tuple[int, ...]
    distinct: Any
    id_cuts: tuple[Any, ...]


def id_bytes(rows: list[int], workers: int) -> int:
    """Bytes of one id on the wire for tables of these many rows sharing an exchange."""
    return 4 if sum(workers * -(-r // workers) for r in rows) < INT32_ROWS else 8


def pull(tables: list[TableRows], lookups: list[tuple[int, Any]], workers: int) -> Pulled:
    """Fetches the rows of some ids from their owners.

    Args:
        tables: of equal width and type.
        lookups: (which table, ids of any shape).
        workers: W.

    Returns:
        Pulled. An id outside its table ends the run with an error that names the table and the id, before anything
        is sent.
    """
    import tensorflow as tf

    bases = [0]
    for table in tables:
        bases.append(bases[-1] + -(-table.rows // workers))
    id_type = tf.int32 if bases[-1] * workers < INT32_ROWS else tf.int64
    cuts = [open_end(tf.reshape(ids, [-1]), [None]) for _, ids in lookups]
    keys = [
        tf.cast(_checked(cut, tables[t]), id_type) + tf.constant(bases[t] * workers, id_type)
        for cut, (t, _) in zip(cuts, lookups, strict=True)
    ]
    distinct, inverse = tf.unique(tf.concat(keys, 0))
    owner = tf.cast(distinct % workers, tf.int32)
    by_owner = tf.concat(tf.dynamic_partition(tf.range(tf.size(distinct)), owner, workers), 0)
    splits = tf.math.bincount(owner, minlength=workers, maxlength=workers, dtype=tf.int32)
    by_owner_keys = tf.gather(distinct, by_owner)
    wanted = by_owner_keys // workers
    asked, asked_splits = all_to_all(wanted, splits)
    table_of_asked = _table_of(asked, bases)
    rows, _ = all_to_all(_local_rows(tables, asked, table_of_asked, bases), asked_splits)
    place = tf.math.invert_permutation(by_owner)
    sizes = [tf.size(key) for key in keys]
    positions = tf.gather(place, inverse)
    pieces = tf.split(positions, sizes) if len(keys) > 1 else [positions]
    table_of_distinct = _table_of(wanted, bases)
    count = (
        tf.size(distinct, out_type=tf.int64)[None]
        if table_of_distinct is None
        else tf.math.bincount(table_of_distinct, minlength=len(tables), maxlength=len(tables), dtype=tf.int64)
    )
    return Pulled(
        rows, by_owner_keys, tuple(pieces), splits, asked, table_of_asked, tuple(bases[:-1]), count, tuple(cuts)
    )


def looked_up(pulled: Pulled, number: int, ids: Any, row_shape: tuple[int, ...]) -> Any:
    """The result of one lookup, `[ids.shape..., row_shape...]`."""
    import tensorflow as tf

    rows = tf.gather(pulled.rows, pulled.positions[number])
    static = ids.shape.as_list() if ids.shape.rank is not None else None
    if static is not None and static.count(None) <= 1:
        # Written as constants where they are known: a fed-in empty lookup then fails only if somebody reads it.
        return tf.reshape(rows, [-1 if d is None else d for d in static] + list(row_shape))
    return tf.reshape(rows, tf.concat([tf.shape(ids), tf.constant(row_shape, tf.int32)], 0))


def found_at(pulled: Pulled, table: int, ids: Any, workers: int) -> Any:
    """Where in `pulled.rows` some ids of a table are, `[n]` int32; every id must have been pulled."""
    import tensorflow as tf

    wanted = tf.cast(ids, pulled.keys.dtype) + tf.constant(pulled.bases[table] * workers, pulled.keys.dtype)
    order = tf.argsort(pulled.keys)
    return tf.gather(order, tf.searchsorted(tf.gather(pulled.keys, order), wanted))


def push(pulled: Pulled, values: list[Any], positions: list[Any], tables: int) -> list[tuple[Any, Any]]:
    """Sends gradient rows to their owners, equal rows of this worker added up first.

    Args:
        pulled: the pull in which the rows were looked up.
        values: pieces `[n, width]`.
        positions: for each piece, where its rows are in `pulled.rows`, `[n]`.
        tables: how many tables share the exchange.

    Returns:
        For each table the rows that came `[m, width]` and their local row numbers `[m]`; a row comes at most once from
        each worker.
    """
    import tensorflow as tf

    rows = tf.math.unsorted_segment_sum(tf.concat(values, 0), tf.concat(positions, 0), tf.shape(pulled.rows)[0])
    received, _ = all_to_all(rows, pulled.splits)
    if tables == 1:
        return [(received, pulled.asked)]
    local = pulled.asked - tf.gather(tf.constant(pulled.bases, pulled.asked.dtype), pulled.table_of_asked)
    received_by_table = tf.dynamic_partition(received, pulled.table_of_asked, tables)
    local_by_table = tf.dynamic_partition(local, pulled.table_of_asked, tables)
    return list(zip(received_by_table, local_by_table, strict=True))


def merge_equal_rows(values: Any, indices: Any) -> tuple[Any, Any]:
    """Adds up the values `[n, width]` of equal indices `[n]`; each index comes once in the result."""
    import tensorflow as tf

    distinct, inverse = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, inverse, tf.size(distinct)), distinct


def _checked(ids: Any, table: TableRows) -> Any:
    import tensorflow as tf

    inside = tf.logical_and(ids >= 0, ids < tf.constant(table.rows, ids.dtype))
    outside = tf.gather_nd(ids, tf.where(tf.logical_not(inside)))
    message = f"An id must be a row of its table: {table.name} has rows 0 to {table.rows - 1}, and was asked for"
    check = tf.raw_ops.Assert(condition=tf.reduce_all(inside), data=[message, outside], summarize=5)
    with tf.control_dependencies([check]):
        return tf.identity(ids)


def _table_of(keys: Any, bases: list[int]) -> Any:
    """Which table each local row number belongs to; None when there is one table."""
    import tensorflow as tf

    if len(bases) == 2:
        return None
    return tf.searchsorted(tf.constant(bases[1:-1], keys.dtype), keys, side="right")


def _local_rows(tables: list[TableRows], asked: Any, table_of_asked: Any, bases: list[int]) -> Any:
    import tensorflow as tf

    if table_of_asked is None:
        return _gather(tables[0], asked)
    count = len(tables)
    numbers = tf.dynamic_partition(asked, table_of_asked, count)
    places = tf.dynamic_partition(tf.range(tf.size(asked)), table_of_asked, count)
    rows = [_gather(t, n - tf.constant(b, n.dtype)) for t, n, b in zip(tables, numbers, bases, strict=False)]
    return tf.dynamic_stitch(places, rows)


def _gather(table: TableRows, local: Any) -> Any:
    import tensorflow as tf

    width = 1
    for length in table.row_shape:
        width *= length
    if table.local.dtype == tf.resource:
        rows = tf.raw_ops.ResourceGather(resource=table.local, indices=local, dtype=table.dtype)
    else:
        rows = tf.gather(table.local, local)
    return tf.reshape(rows, [-1, width])
