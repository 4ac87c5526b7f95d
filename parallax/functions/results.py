"""What a step returns, of all workers: means of scalars, the rows of all in order, sums where the script says so.

Each worker has the result of its rows. A scalar of a floating type is taken for a mean over the batch, a tensor whose
first dimension is open for one of the batch's rows; of all others the script says which they are. Means are marked
while the step is traced (reports.py), so that each is what one process returns.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from parallax.errors import ConfigError, GraphError, SessionError
from parallax.functions.reports import reported_value
from parallax.functions.shares import OTHER_INPUT, Share
from parallax.graph.batches import ADDED, mark_reported
from parallax.runtime.worker.barrier import barrier
from parallax.types import Array, Comm, Graph, Nest, Tensor, Value

RULES = ("mean", "sum", "rows", "same")
_RULES_TEXT = (
    "'mean' over the batch, 'sum' over it, 'rows' of it in order, or 'same' on all workers: "
    'parallax.function(step, returns={"loss": "mean", "correct": "sum"})'
)


def rules_of(results: Nest, returns: Nest) -> tuple[str, ...]:
    """How each tensor that a step returns is put together, flat.

    Args:
        results: the structure of tensors that the traced step returns.
        returns: what the script says: one of RULES for all, or a structure of them like the results'; None for what is
            plain of itself.

    Raises:
        ConfigError: `returns` has another structure, or another word.
        GraphError: a tensor might be one or the other, or is a mean of whole numbers.
    """
    flat = [one for one in tf.nest.flatten(results) if one is not None]
    for one in flat:
        if not isinstance(one, tf.Tensor):
            raise GraphError(f"A step returns dense tensors, not {one}. Make it dense, or leave it out.")
    if returns is None:
        return tuple(_rule_of(one) for one in flat)
    said = _words(returns, len(flat))
    whole = [one.dtype.name for one, word in zip(flat, said, strict=False) if word == "mean" and not _is_real(one)]
    if whole:
        raise GraphError(
            f"A mean over the batch is of a floating type, and a step returns one of {whole[0]}, whose shares would be "
            "rounded. Cast it first: tf.cast(value, tf.float32)."
        )
    if len(said) != len(flat) or any(one not in RULES for one in said):
        raise ConfigError(
            f"`returns` has one word for each tensor that the step returns, {len(flat)} here, and is {returns!r}. The "
            f"words are {_RULES_TEXT}."
        )
    return tuple(said)


def marked_means(results: Nest, returns: Nest) -> Nest:
    """What a step that is being traced returns, with its means over the batch marked as reported; as in `rules_of`."""
    flat = tf.nest.flatten(results)
    waiting = iter(_words(returns, sum(one is not None for one in flat)))
    words = [None if one is None else next(waiting, None) for one in flat]
    marked = [
        reported_value(one)
        if isinstance(one, tf.Tensor) and (word or _plain_rule(one)) == "mean" and _is_real(one)
        else one
        for one, word in zip(flat, words, strict=True)
    ]
    return tf.nest.pack_sequence_as(results, marked)


def mark_sums(graph: Graph, fetches: Nest, rules: Sequence[str]) -> tuple[Nest, tuple[str, ...]]:
    """The results of a step, and their rules: sums over the batch are all-reduced in the step, and then the same.

    Args:
        graph: that has the step.
        fetches: the step's results.
        rules: of each, flat.
    """
    flat = tf.nest.flatten(fetches)
    waiting = iter(rules)
    with graph.as_default(), graph.name_scope("results/"):
        found = [_mark_sum(one) if one is not None and next(waiting) == "sum" else one for one in flat]
    return tf.nest.pack_sequence_as(fetches, found), tuple("same" if rule == "sum" else rule for rule in rules)


def _mark_sum(tensor: Tensor) -> Tensor:
    added = tf.identity(tensor)
    mark_reported(added, ADDED)
    return added


def _is_real(tensor: Tensor) -> bool:
    return bool(tensor.dtype.is_floating)


def _words(returns: Nest, count: int) -> list[str]:
    if returns is None:
        return []
    return [returns] * count if isinstance(returns, str) else tf.nest.flatten(returns)


def _plain_rule(tensor: Tensor) -> str:
    """What a tensor is plainly of itself; empty where it might be one or the other."""
    if tensor.shape.rank == 0 and tensor.dtype.is_floating:
        return "mean"
    if tensor.shape.rank and tensor.shape[0] is None:
        return "rows"
    return ""


def _rule_of(tensor: Tensor) -> str:
    if rule := _plain_rule(tensor):
        return rule
    shape = "" if tensor.shape.rank is None else str(list(tensor.shape))
    raise GraphError(
        f"A step returns means over the batch (floating scalars) and rows of it, and {tensor.name!r} is "
        f"{tensor.dtype.name}{shape}. Say what it is: {_RULES_TEXT}."
    )


def joined(values: Sequence[Value], rules: Sequence[str], share: Share, digest: int, comm: Comm) -> list[Array]:
    """The results of the global batch; every worker must call it.

    Args:
        values: what the step gave for this worker's share, flat.
        rules: of each.
        share: this worker's.
        digest: of this worker's whole input, below 2**16.
        comm: communicator of the workers.

    Raises:
        SessionError: on all workers, when their inputs differ, or what is the same does not.
    """
    size = comm.Get_size()
    if size == 1:
        return [np.asarray(value) for value in values]
    marks = [digest, *(_digest(value) for value, rule in zip(values, rules, strict=True) if rule == "same")]
    added = [
        np.ravel(value).astype(np.float64) if share.rows or rule == "mean" else np.zeros(np.size(value))
        for value, rule in zip(values, rules, strict=True)
        if rule in ("mean", "sum")
    ]
    own = np.concatenate([np.asarray([*marks, *(mark * mark for mark in marks)], np.float64), *added])
    whole = np.empty_like(own)
    barrier(comm)  # who waits there leaves its core to others
    comm.Allreduce(own, whole)
    alike = [size * whole[len(marks) + i] == whole[i] ** 2 for i in range(len(marks))]
    if not alike[0]:
        raise SessionError(OTHER_INPUT)
    if not all(alike):
        raise SessionError(f"What a step returns as 'same' differs between workers. Say what it is: {_RULES_TEXT}.")
    place, found = 2 * len(marks), []
    for value, rule in zip(values, rules, strict=True):
        value = np.asarray(value)
        if rule in ("mean", "sum"):
            part = whole[place : place + value.size].reshape(value.shape) / (size if rule == "mean" else 1)
            place += value.size
            found.append(part.astype(value.dtype))
        else:
            found.append(value if rule == "same" else _rows(value, share, comm))
    return found


def _rows(value: Array, share: Share, comm: Comm) -> Array:
    given = 1 if share.is_stand_in else share.rows
    if len(value) != given:
        raise SessionError(
            f"A step returns a tensor of {len(value)} rows for {given} rows of the batch. Say what it is: "
            f"{_RULES_TEXT}."
        )
    return np.concatenate(comm.allgather(value[: share.rows]))


def _digest(value: Value) -> int:
    return zlib.crc32(np.ascontiguousarray(value).tobytes()) & 0xFFFF
