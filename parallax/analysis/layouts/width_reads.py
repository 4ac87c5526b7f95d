"""Ops whose results depend on the width of a per-worker batch, which one process has after it pads the global batch.

Workers may pad their batches to different widths, as to the longest of their texts. Where masks remove the padding, N
workers compute what one process computes on batches of one width. A mean over the padded axis, or any other number
computed from its length, has another value. Whether widths differ is known in a run (batch_comparison.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from parallax.analysis.layouts.rules.facts import Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.graph.lengths import Length, split_symbol


def find_width_reads(step: StepWalk, order: Iterable[str]) -> tuple[str, ...]:
    """The ops that average over an axis of open length, or make a float of one, except the axes of batches.

    Args:
        step: the traversal, which has ended.
        order: the nodes of the step.
    """
    found = []
    for node in order:
        op = step.view.op(node)
        if op not in ("Cast", "Mean") or any(one not in step.facts for one in step.view.inputs(node)):
            continue
        if op == "Mean":
            is_read = _averages_over_width(*step.inputs(node))
        else:
            is_read = tf.as_dtype(step.view.dtype(f"{node}:0")).is_floating and _is_width(step.inputs(node)[0])
        if is_read:
            found.append(node)
    return tuple(found)


def _averages_over_width(fact: Fact, axes: Fact) -> bool:
    picked = axes.numbers()
    if fact.dims is None or picked is None:
        return False
    over = {axis % len(fact.dims) for axis in picked} - {fact.axis} if fact.dims else set[int]()
    return any(_has_width(fact.dims[axis]) for axis in over)


def _is_width(fact: Fact) -> bool:
    values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
    return any(value is not None and _has_width(value) for value in values)


def _has_width(length: Length) -> bool:
    return any(split_symbol(symbol)[1] is not None for symbols, _ in length.terms for symbol in symbols)
