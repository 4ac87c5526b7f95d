"""What must come into a loop or a branch complete, so that nothing in it needs another layout.

A body stays as it is: where one of its ops needs a length of the global batch, or a reduction over all workers, and
the body has it from outside, it can come so.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from parallax.analysis.layouts.facts import LENGTHS, REPLICATED
from parallax.analysis.layouts.step_walk import StepWalk, is_partial
from parallax.graph.view import split_tensor


def find_completions(inner: StepWalk, starts: Set[str], wanted: Iterable[str] = ()) -> set[str] | None:
    """What must come in replicated; None where that does not help.

    Args:
        inner: a walk over a body.
        starts: the tensors that come in.
        wanted: tensors of the body that must not be lengths of what a worker has.
    """
    changes = [key for key, edges in inner.changes.items() if edges]
    lengths = [(tensor, REPLICATED) for tensor in wanted if inner.facts[tensor].is_lengths]
    found = set[str]()
    for tensor, layout in (*changes, *lengths):
        sources = find_incomplete(inner, starts, tensor)
        if layout != REPLICATED or not sources:
            return None
        found |= sources
    return None if replace(inner, changes={}).needs_changes else found


def find_incomplete(inner: StepWalk, starts: Set[str], tensor: str) -> set[str]:
    """Of what comes in, the lengths and parts of reductions of which a tensor is computed."""
    view, waiting, seen, found = inner.view, [tensor], {tensor}, set[str]()
    while waiting:
        one = waiting.pop()
        fact = inner.facts.get(one)
        if fact is None or not (fact.layout == LENGTHS or is_partial(fact)):
            continue
        if one in starts:
            found.add(one)
            continue
        fresh = [taken for taken in view.inputs(split_tensor(one)[0]) if taken not in seen]
        seen |= set(fresh)
        waiting += fresh
    return found
