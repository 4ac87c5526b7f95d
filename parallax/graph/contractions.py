"""Names the axes of matrix products and of Einsum by letters: axes whose letter the result lacks are summed over."""

from __future__ import annotations

import string
from collections.abc import Sequence

from parallax.graph.view import GraphView

MATRIX_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
CONTRACTIONS = (*MATRIX_PRODUCTS, "Einsum")
_ELLIPSIS = "..."


def find_letters(view: GraphView, node: str, ranks: Sequence[int | None]) -> Sequence[str] | None:
    """The letters of the axes of each input of a contraction, and then of its result; None where these are unknown.

    Args:
        view: the graph.
        node: one of `CONTRACTIONS`.
        ranks: of its inputs.
    """
    if view.op(node) == "Einsum":
        equation = view.nodes[node].attr["equation"].s.decode().replace(" ", "")
        operands, _, result = equation.partition("->")
        return _spell_out((*operands.split(","), result), ranks)
    if None in ranks:
        return None
    left = "km" if view.flag(node, "transpose_a") or view.flag(node, "adj_x") else "mk"
    right = "nk" if view.flag(node, "transpose_b") or view.flag(node, "adj_y") else "kn"
    return _spell_out([f"{_ELLIPSIS}{term}" for term in (left, right, "mn")], ranks)


def _spell_out(terms: Sequence[str], ranks: Sequence[int | None]) -> list[str] | None:
    """The terms with a letter for each axis of an ellipsis, aligned from the right; None for an unknown rank.

    Args:
        terms: of the inputs, and of the result.
        ranks: of the inputs.
    """
    if not any(_ELLIPSIS in term for term in terms):
        return list(terms)
    hidden = list[int]()
    for term, rank in zip(terms, ranks, strict=False):
        if rank is None:
            return None
        hidden.append(rank - len(term.replace(_ELLIPSIS, "")))
    most = max(hidden)
    unused = sorted(set(string.ascii_letters) - set("".join(terms)))[:most]
    return [
        term.replace(_ELLIPSIS, "".join(unused[most - count :]))
        for term, count in zip(terms, [*hidden, most], strict=True)
    ]
