"""The rule for Einsum: the letter of the joined axis says where it is in the result, or that it is summed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallax.analysis.propagation.axis_part import MIXED
from parallax.graph.view import GraphView

if TYPE_CHECKING:
    from parallax.analysis.propagation.batch_axis import BatchAxes


def einsum(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """One letter for the joined axis of all that are joined, which the result has too."""
    joined, out = joined_letters(axes, node, inputs)
    others = [t for t in inputs if axes.known(t) is None]
    if len(joined) != 1 or not all(map(axes.fits, others)):
        return None
    (letter,) = joined
    terms = _equation(axes, node)[0]
    is_elsewhere = any(letter in term for term, t in zip(terms, inputs, strict=True) if t in others)
    return None if is_elsewhere or letter not in out else out.index(letter)


def sums_over_batch(axes: BatchAxes, node: str) -> bool:
    """Whether an Einsum adds up over the joined axis what its operands have for one example: no two examples meet."""
    inputs = axes.view.inputs(node) if axes.view.op(node) == "Einsum" else ()
    if not [t for t in inputs if axes.of(t) is not None]:  # asks of each, and so all are known
        return False
    joined, out = joined_letters(axes, node, inputs)
    others = [(t, term) for t, term in zip(inputs, _equation(axes, node)[0], strict=True) if axes.known(t) is None]
    return len(joined) == 1 and not joined & set(out) and all(axes.fits(t) and not joined & set(x) for t, x in others)


def joined_letters(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> tuple[set[str], str]:
    """(the letters of the joined axes, the letters of the result); none where an ellipsis hides them."""
    terms, out = _equation(axes, node)
    found = set()
    for term, tensor in zip(terms, inputs, strict=True):
        axis = axes.known(tensor)
        if axis is None:
            continue
        if axis == MIXED or "." in term + out or axis >= len(term):
            return set(), out
        found.add(term[axis])
    return found, out


def terms_of(view: GraphView, node: str) -> list[str]:
    """The letters of each operand."""
    terms, _, _ = view.nodes[node].attr["equation"].s.decode().replace(" ", "").partition("->")
    return [str(term) for term in terms.split(",")]


def _equation(axes: BatchAxes, node: str) -> tuple[list[str], str]:
    terms = terms_of(axes.view, node)
    return terms, axes.view.nodes[node].attr["equation"].s.decode().replace(" ", "").partition("->")[2]
