"""What the analysis says of single tensors of a program; parallax/runtime/verify/claims.py says what that is."""

from __future__ import annotations

from collections.abc import Sequence

from parallax.analysis.propagation.walk import Walk
from parallax.runtime.verify.claims import Claim, Claims, Values, false_claim


def first_false(walk: Walk, expected: Values, by_worker: Sequence[Values], tolerance: float) -> Claim | None:
    """The first claim that does not hold in a run.

    Args:
        walk: that has the claims.
        expected: what the one process has, in topological order.
        by_worker: what each worker has.
        tolerance: of the size of a value, or of the terms of a sum.
    """
    claims = Claims(walk)
    for tensor, value in expected.items():
        tried = claims.check_claim(tensor, value, by_worker)
        if tried is not None and not tried.gap <= tolerance:
            return false_claim(claims, tensor, tried)
    return None
