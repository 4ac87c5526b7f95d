"""Checks the analysis's claims about single tensors; parallax/runtime/verify/claims.py defines these claims."""

from __future__ import annotations

from collections.abc import Sequence

from parallax.analysis.propagation.walk import Walk
from parallax.runtime.verify.claims import Claim, Claims, Values, false_claim


def first_false(walk: Walk, expected: Values, by_worker: Sequence[Values], tolerance: float) -> Claim | None:
    """Returns the first claim that is false in a run; None if there is none.

    Args:
        walk: makes the claims.
        expected: the values of the one process, in topological order.
        by_worker: the values of each worker.
        tolerance: relative to the size of a value, or of the terms of a sum.
    """
    claims = Claims(walk)
    for tensor, value in expected.items():
        tried = claims.check_claim(tensor, value, by_worker)
        if tried is not None and not tried.gap <= tolerance:
            return false_claim(claims, tensor, tried)
    return None
