"""Deduplicates the ids that a worker requests from owners: the ids of all lookups of an exchange, in send order.

Requests travel in hops (transports.py). In each hop equal keys are deduplicated and ordered by their next destination.
Rows return on the same route, and gradient rows are sent forward on it, with equal ones summed before each hop. A
pattern of P slots maps each row to its owner and its local row (parallax/graph/ownership.py). Tables of equal width,
type and pattern whose owners are workers share one exchange: their row numbers are concatenated, each table starting at
a multiple of P, so that one map holds for all of them together.

Bytes between workers are those of analysis/routes/cost.py: the push sends no ids, because the owner stores those of the
pull. Where gradients are accumulated over several batches (passes/accumulate.py) the push has its own rows, and sends
their ids.

Equal gradient rows are summed at the worker that sends them, and at the owner that receives them from several workers.
Without the latter, an optimizer that does not coalesce rows itself would apply two partial updates instead of one
(rewrites.Push.merge), and Adagrad, for example, would compute another row than one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import Tensor
from parallax.transform.building.all_to_all import Hop, LookupIds
from parallax.transform.building.collectives import open_end
from parallax.transform.building.transports import TableRows, Transport, table_of

INT32_ROWS = 2**31


@dataclass(frozen=True, slots=True)
class DeduplicatedIds:
    """The rows of tables that some ids select, deduplicated and ordered for the first hop.

    Attributes:
        first: the hop; its keys are row numbers of all tables concatenated.
        positions: for each piece of ids, its positions in `first.keys`, `[n]` int32.
        bases: the round of the pattern at which each table begins, and at which the last one ends.
        distinct: `[tables]` int64, the number of distinct rows, by table.
        id_cuts: the tensors of each piece of ids, which may be fed.
    """

    first: Hop
    positions: tuple[Tensor, ...]
    bases: tuple[int, ...]
    distinct: Tensor
    id_cuts: tuple[Tensor, ...]


def id_bytes(rows: list[int], slots: int) -> int:
    """Bytes of one id on the wire for tables of these many rows sharing an exchange."""
    return 4 if sum(slots * -(-r // slots) for r in rows) < INT32_ROWS else 8


def deduplicate_ids(
    tables: list[TableRows], lookups: list[tuple[int, Tensor]], transport: Transport, from_end: Sequence[bool] = ()
) -> DeduplicatedIds:
    """Deduplicates ids and orders them by their first destination.

    Args:
        tables: of equal width and type; only one where the owners are servers.
        lookups: (table index, ids of any shape).
        transport: the transport to the owners.
        from_end: for each lookup whether negative ids are counted from the table's end; empty for none.

    Returns:
        The deduplicated ids. An id outside its table ends the run with an error that names the table and the id, before
        anything is sent.
    """
    bases = [0]
    for table in tables:
        bases.append(bases[-1] + -(-table.rows // transport.slots))
    key_type = tf.int32 if bases[-1] * transport.slots < INT32_ROWS else tf.int64
    cuts = [open_end(tf.reshape(ids, [-1]), [None]) for _, ids in lookups]
    requested = [
        LookupIds(_of_a_key_type(cut), tables[t].name, tables[t].rows, bases[t] * transport.slots, counts_back)
        for cut, (t, _), counts_back in zip(cuts, lookups, from_end or [False] * len(lookups), strict=True)
    ]
    first = transport.first_hop(requested, key_type)
    pieces = tf.split(first.positions, [tf.size(cut) for cut in cuts]) if len(cuts) > 1 else [first.positions]
    table_of_distinct = table_of(first.keys // transport.slots, bases) if len(tables) > 1 else None
    count = (
        tf.size(first.keys, out_type=tf.int64)[None]
        if table_of_distinct is None
        else tf.math.bincount(table_of_distinct, minlength=len(tables), maxlength=len(tables), dtype=tf.int64)
    )
    return DeduplicatedIds(first, tuple(pieces), tuple(bases), count, tuple(cuts))


def gather_looked_up(pulled: Tensor, positions: Tensor, ids: Tensor, row_shape: tuple[int, ...]) -> Tensor:
    """The result of one lookup, `[ids.shape..., row_shape...]`.

    Args:
        pulled: `[u, width]`, the pulled rows.
        positions: the positions of the lookup's rows in them, `[n]`.
        ids: of the lookup.
        row_shape: of one row.
    """
    rows = tf.gather(pulled, positions)
    static = ids.shape.as_list() if ids.shape.rank is not None else None
    if static is not None and static.count(None) <= 1:
        # Constants where the values are known: an empty lookup that is fed then fails only if it is read.
        return tf.reshape(rows, [-1 if d is None else d for d in static] + list(row_shape))
    return tf.reshape(rows, tf.concat([tf.shape(ids), tf.constant(row_shape, tf.int32)], 0))


def locate_ids(deduplicated: DeduplicatedIds, table: int, ids: Tensor, slots: int) -> Tensor:
    """The positions of some ids of a table in the keys of the first hop, `[n]` int32; every id must be among them."""
    keys = deduplicated.first.keys
    searched_keys = tf.cast(ids, keys.dtype) + tf.constant(deduplicated.bases[table] * slots, keys.dtype)
    order = tf.argsort(keys)
    return tf.gather(order, tf.searchsorted(tf.gather(keys, order), searched_keys))


def _of_a_key_type(ids: Tensor) -> Tensor:
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def merge_equal_rows(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Sums the values `[n, width]` of equal indices `[n]`; the indices of the result are distinct."""
    distinct, inverse = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, inverse, tf.size(distinct)), distinct


def merge_rows_of_equal_keys(keys: Tensor, values: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Sums rows `[n, width]` of equal keys `[n]`; returns (values, row numbers), one for each key."""
    distinct, place = tf.unique(keys)
    count = tf.size(distinct)
    return tf.math.unsorted_segment_sum(values, place, count), tf.math.unsorted_segment_max(numbers, place, count)


def merged_rows(deduplicated: DeduplicatedIds, values: list[Tensor], positions: list[Tensor]) -> Tensor:
    """Gradient rows `[u, width]` in the order of the first hop's keys, with equal ones of this worker summed.

    Args:
        deduplicated: the rows.
        values: pieces `[n, width]`.
        positions: for each piece, the positions of its rows among the keys, `[n]`.
    """
    return tf.math.unsorted_segment_sum(tf.concat(values, 0), tf.concat(positions, 0), tf.size(deduplicated.first.keys))
