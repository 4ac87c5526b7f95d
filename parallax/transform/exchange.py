"""The exchange of rows: rows pulled from their owners, gradient rows pushed to them.

What a worker asks for travels in legs. In each leg equal keys are merged and ordered by where they go next; rows come
back the same way, and gradient rows go forward on it, equal ones added up before each leg. With several workers on a
host the first leg stays within the host (way.py), so that what leaves it are the union's rows. The last leg reaches the
owners: the partitions in the workers, by all-to-all, or those on servers.

Who owns a row, and as which local row, is said by a pattern of P slots (parallax/ownership.py). Tables of equal width,
type and pattern whose owners are workers share one exchange: their row numbers are laid one after the other, each table
starting at a multiple of P, so that the same map holds for all of them together.

Bytes each way, worker and step, for u distinct rows of width d, e bytes an element and i bytes an id, between workers:
(1-s) * u * (i + 2de) where the worker itself owns a share s of the rows (1/W if all own as many), the ids and rows in
the pull and the gradients in the push; the push needs no ids because the owner remembers them from the pull.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parallax.transform.collectives import open_end
from parallax.transform.exchange_op import Leg, Wanted
from parallax.transform.way import TableRows, Trip, Way, table_of

INT32_ROWS = 2**31


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull leaves for its lookups and pushes.

    Attributes:
        rows: `[u, width]`, the distinct rows in the order of `first.keys`.
        first: the first leg, from the lookups on: its keys are row numbers of all tables laid together.
        positions: for each lookup, where in `rows` its ids are, `[n]` int32.
        trip: how the rows came.
        bases: the turn of the pattern at which each table begins.
        distinct: `[tables]` int64, distinct rows asked for, by table.
        id_cuts: the tensors that carry each lookup's ids, which may be fed.
    """

    rows: Any
    first: Leg
    positions: tuple[Any, ...]
    trip: Trip
    bases: tuple[int, ...]
    distinct: Any
    id_cuts: tuple[Any, ...]


def id_bytes(rows: list[int], slots: int) -> int:
    """Bytes of one id on the wire for tables of these many rows sharing an exchange."""
    return 4 if sum(slots * -(-r // slots) for r in rows) < INT32_ROWS else 8


def pull(tables: list[TableRows], lookups: list[tuple[int, Any]], way: Way) -> Pulled:
    """Fetches the rows of some ids from their owners.

    Args:
        tables: of equal width and type; one alone where the owners are servers.
        lookups: (which table, ids of any shape).
        way: to the owners.

    Returns:
        Pulled. An id outside its table ends the run with an error that names the table and the id, before anything
        is sent.
    """
    import tensorflow as tf

    bases = [0]
    for table in tables:
        bases.append(bases[-1] + -(-table.rows // way.slots))
    key_type = tf.int32 if bases[-1] * way.slots < INT32_ROWS else tf.int64
    cuts = [open_end(tf.reshape(ids, [-1]), [None]) for _, ids in lookups]
    wanted = [
        Wanted(_of_a_key_type(cut), tables[t].name, tables[t].rows, bases[t] * way.slots)
        for cut, (t, _) in zip(cuts, lookups, strict=True)
    ]
    first = way.first_leg(wanted, key_type)
    trip = way.pull(first, tables, bases)
    pieces = tf.split(first.positions, [tf.size(cut) for cut in cuts]) if len(cuts) > 1 else [first.positions]
    table_of_distinct = table_of(first.keys // way.slots, bases) if len(tables) > 1 else None
    count = (
        tf.size(first.keys, out_type=tf.int64)[None]
        if table_of_distinct is None
        else tf.math.bincount(table_of_distinct, minlength=len(tables), maxlength=len(tables), dtype=tf.int64)
    )
    return Pulled(trip.rows, first, tuple(pieces), trip, tuple(bases[:-1]), count, tuple(cuts))


def looked_up(pulled: Pulled, number: int, ids: Any, row_shape: tuple[int, ...]) -> Any:
    """The result of one lookup, `[ids.shape..., row_shape...]`."""
    import tensorflow as tf

    rows = tf.gather(pulled.rows, pulled.positions[number])
    static = ids.shape.as_list() if ids.shape.rank is not None else None
    if static is not None and static.count(None) <= 1:
        # Written as constants where they are known: a fed-in empty lookup then fails only if somebody reads it.
        return tf.reshape(rows, [-1 if d is None else d for d in static] + list(row_shape))
    return tf.reshape(rows, tf.concat([tf.shape(ids), tf.constant(row_shape, tf.int32)], 0))


def found_at(pulled: Pulled, table: int, ids: Any, slots: int) -> Any:
    """Where in `pulled.rows` some ids of a table are, `[n]` int32; every id must have been pulled."""
    import tensorflow as tf

    keys = pulled.first.keys
    wanted = tf.cast(ids, keys.dtype) + tf.constant(pulled.bases[table] * slots, keys.dtype)
    order = tf.argsort(keys)
    return tf.gather(order, tf.searchsorted(tf.gather(keys, order), wanted))


def merged_rows(pulled: Pulled, values: list[Any], positions: list[Any]) -> Any:
    """Gradient rows `[u, width]` in the order of `pulled.rows`, equal ones of this worker added up.

    Args:
        pulled: the pull in which the rows were looked up.
        values: pieces `[n, width]`.
        positions: for each piece, where its rows are in `pulled.rows`, `[n]`.
    """
    import tensorflow as tf

    return tf.math.unsorted_segment_sum(tf.concat(values, 0), tf.concat(positions, 0), tf.shape(pulled.rows)[0])


def merge_equal_rows(values: Any, indices: Any) -> tuple[Any, Any]:
    """Adds up the values `[n, width]` of equal indices `[n]`; each index comes once in the result."""
    import tensorflow as tf

    distinct, inverse = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, inverse, tf.size(distinct)), distinct


def _of_a_key_type(ids: Any) -> Any:
    import tensorflow as tf

    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)
