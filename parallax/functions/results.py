"""What a step returns, of all workers: means of scalars, the rows of all in order, sums where the script says so.

Each worker has the result of its rows, and serving.py puts them together. A scalar of a floating type is taken for a
mean over the batch, a tensor whose first dimension is open for one of the batch's rows; of all others the script says
which they are. Means are marked while the step is traced (reports.py), so that each is what one process returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from parallax.errors import ConfigError, GraphError
from parallax.functions.reports import reported_value
from parallax.graph.batches import ADDED, mark_reported
from parallax.types import Graph, Nest, Tensor

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
    if isinstance(returns, str):
        return [returns] * count
    return [one for one in tf.nest.flatten(returns) if one is not None]


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
