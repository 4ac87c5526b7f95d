"""Layout rules of matrix products and other contractions: MatMul, Einsum."""

from __future__ import annotations

from parallax.analysis.layouts.rules.facts import REPLICATED, SUM, Dims, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.graph.contractions import find_letters
from parallax.graph.lengths import Length
from parallax.plans.layouts import Sharded


def matrix_product(step: StepWalk, node: str) -> list[Fact] | None:
    """MatMul, and batched matrix products."""
    letters = find_letters(step.view, node, [fact.rank for fact in step.inputs(node)])
    return contract(step, node, *letters) if letters is not None else None


def einsum(step: StepWalk, node: str) -> list[Fact] | None:
    """Einsum of two tensors, or of one, without a letter twice in a term."""
    letters = find_letters(step.view, node, [fact.rank for fact in step.inputs(node)])
    if letters is None or any(len(set(term)) < len(term) for term in letters) or len(letters) > 3:
        return None
    *terms, result_letters = letters
    if len(terms) == 2:
        return contract(step, node, terms[0], terms[1], result_letters)
    fact = step.inputs(node)[0]
    if fact.is_sum:
        return step.all_outputs(node, fact.layout)
    if fact.part is None or fact.axis is None:
        return None
    letter = terms[0][fact.axis]
    layout = Sharded(result_letters.index(letter), fact.part) if letter in result_letters else SUM
    return step.all_outputs(node, layout)


def contract(step: StepWalk, node: str, left: str, right: str, result: str) -> list[Fact] | None:
    """A product of two tensors whose axes have letters; those that are not in the result are summed over.

    Args:
        step: the traversal.
        node: the op.
        left: the letters of the first input's axes.
        right: those of the second.
        result: those of the result.
    """
    facts = step.inputs(node)
    dims = _find_dims_by_letter(facts, left, right, result)
    if any(map(is_partial, facts)):
        sums, others = [f.is_sum for f in facts], [f for f in facts if not is_partial(f)]
        if sum(sums) == 1 and others and others[0].part is None:
            step.replicate(node, [sums.index(False)])
            return step.all_outputs(node, facts[sums.index(True)].layout, dims)
        facts = [step.require_layout(node, slot, REPLICATED) if is_partial(f) else f for slot, f in enumerate(facts)]
    facts = [step.require_layout(node, slot, REPLICATED) if f.is_lengths else f for slot, f in enumerate(facts)]
    letters = [
        letters[f.axis] if f.axis is not None and f.axis < len(letters) else ""
        for f, letters in zip(facts, (left, right), strict=True)
    ]
    if letters == ["", ""]:
        return step.all_outputs(node, REPLICATED, dims) if all(f.is_same for f in facts) else None
    first = 0 if letters[0] else 1
    if all(letters) and (letters[0] != letters[1] or facts[0].part != facts[1].part):
        other = 1  # each example is compared with its rows
        step.mixing[node] = [step.view.inputs(node)[other]]
        step.require_layout(node, other, REPLICATED)
        first, facts[other] = 1 - other, Fact(REPLICATED, facts[other].dims)
    letter, part = letters[first], facts[first].part
    if part is None:
        return None
    for slot, term in enumerate((left, right)):
        if slot != first and letter in term and not _is_broadcast(facts[slot], term.index(letter)):
            step.require_layout(node, slot, Sharded(term.index(letter), part))
    return step.all_outputs(node, Sharded(result.index(letter), part) if letter in result else SUM, dims)


def _is_broadcast(fact: Fact, axis: int) -> bool:
    return fact.dims is not None and fact.dims[axis].number == 1


def _find_dims_by_letter(facts: list[Fact], left: str, right: str, result: str) -> Dims | None:
    lengths: dict[str, Length] = {}
    for fact, letters in zip(facts, (left, right), strict=True):
        if fact.dims is None or len(fact.dims) != len(letters):
            return None
        for letter, length in zip(letters, fact.dims, strict=True):
            if letter not in lengths or lengths[letter].number == 1:
                lengths[letter] = length
    return tuple(lengths[letter] for letter in result)
