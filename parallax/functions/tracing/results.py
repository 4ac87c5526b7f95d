"""Combines the results of a step over all workers into those that one process returns.

Each worker has the result of its rows, and serve_driver.py combines these: floating scalars are averaged, tensors with
an open first dimension are concatenated, and the layout engine replicates everything else within the step. `returns` of
parallax.function overrides that. Results are marked during the trace and in the graph of the step, so that the layout
engine knows which form is combined.

Values that a step logs about the batch itself are marked too (`reported_value`), so that workers' logs equal those of
one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from parallax.base.errors import ConfigError, GraphError
from parallax.base.types import Graph, Nest, Tensor
from parallax.graph.batches import ADDED, ROWS, SAME, VALUE, WHOLE, mark_reported

RULES = ("mean", "sum", "rows", "same")
_KIND_OF_RULE = {"sum": ADDED, "rows": ROWS, "whole": WHOLE, "same": SAME}
_RULES_TEXT = (
    "'mean' over the batch, 'sum' over it, 'rows' of it in order, or 'same' on all workers: "
    'parallax.function(step, returns={"loss": "mean", "correct": "sum"})'
)


def rules_of(results: Nest, returns: Nest) -> tuple[str, ...]:
    """The rules by which the tensors that a step returns are combined, flat.

    Args:
        results: the structure of tensors that the traced step returns.
        returns: the script's argument: one of RULES for all, or a structure of them like the results'; None for the
            defaults.

    Raises:
        ConfigError: `returns` has another structure, or an unknown rule.
        GraphError: a result is not a tensor, or is a mean of integers.
    """
    flat = [one for one in tf.nest.flatten(results) if one is not None]
    for one in flat:
        if not isinstance(one, tf.Tensor):
            raise GraphError(f"A step must return dense tensors, got {one}. Make it dense, or do not return it.")
    if returns is None:
        return tuple(default_rule(one) for one in flat)
    requested = _list_rules(returns, len(flat))
    whole = [one.dtype.name for one, word in zip(flat, requested, strict=False) if word == "mean" and not _is_real(one)]
    if whole:
        raise GraphError(
            f"A mean over the batch must have a floating-point type, but the step returns one of {whole[0]}, whose "
            "shares would be rounded. Cast it first: tf.cast(value, tf.float32)."
        )
    if len(requested) != len(flat) or any(one not in RULES for one in requested):
        raise ConfigError(
            f"`returns` must have one word for each of the {len(flat)} tensors that the step returns, got "
            f"{returns!r}. The words are {_RULES_TEXT}."
        )
    return tuple(requested)


def mark_means(results: Nest, returns: Nest) -> Nest:
    """The results of a step in its trace, with means over the batch marked as reported; arguments as in `rules_of`."""
    flat = tf.nest.flatten(results)
    waiting = iter(_list_rules(returns, sum(one is not None for one in flat)))
    words = [None if one is None else next(waiting, None) for one in flat]
    marked = [
        reported_value(one)
        if isinstance(one, tf.Tensor) and (word or default_rule(one)) == "mean" and _is_real(one)
        else one
        for one, word in zip(flat, words, strict=True)
    ]
    return tf.nest.pack_sequence_as(results, marked)


def default_rule(tensor: Tensor) -> str:
    """The default rule of a result: "mean", "rows", or "whole" for one that the step replicates."""
    if tensor.shape.rank == 0 and _is_real(tensor):
        return "mean"
    return "rows" if tensor.shape.rank and tensor.shape[0] is None else "whole"


def add_summaries(rules: Iterable[str], summaries: Sequence[Tensor]) -> list[str]:
    """The rules of results, followed by those of summaries, which the step replicates."""
    return [*rules, *["whole"] * len(summaries)]


def mark_results(graph: Graph, fetches: Nest, rules: Sequence[str]) -> tuple[Nest, tuple[str, ...]]:
    """Marks the results of a step; returns them and their rules. Sums are all-reduced in the step, and then the same.

    Args:
        graph: the graph of the step.
        fetches: the step's results.
        rules: for each result, flat; empty for one that stays unchanged.
    """
    flat = tf.nest.flatten(fetches)
    waiting = iter(rules)
    with graph.as_default(), graph.name_scope("results/"):
        marked = [one if one is None else _mark_result(one, next(waiting)) for one in flat]
    return tf.nest.pack_sequence_as(fetches, marked), tuple("same" if rule == "sum" else rule for rule in rules)


def _mark_result(tensor: Tensor, rule: str) -> Tensor:
    if rule not in _KIND_OF_RULE:
        return tensor
    marked = tf.identity(tensor)
    mark_reported(marked, _KIND_OF_RULE[rule])
    return marked


def _is_real(tensor: Tensor) -> bool:
    return bool(tensor.dtype.is_floating)


def _list_rules(returns: Nest, count: int) -> list[str]:
    if returns is None:
        return []
    if isinstance(returns, str):
        return [returns] * count
    return [one for one in tf.nest.flatten(returns) if one is not None]


def reported_value(value: Tensor) -> Tensor:
    """A scalar of the batch that a step logs, marked as reported."""
    reported = tf.identity(value, name=f"reported_{VALUE}")
    mark_reported(reported, VALUE)
    return reported
