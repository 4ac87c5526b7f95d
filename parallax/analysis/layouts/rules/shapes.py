"""Layout rules of ops that read or compute shapes: a shape is per-worker where its tensor is sharded."""

from __future__ import annotations

from parallax.analysis.layouts.rules.facts import LENGTHS, REPLICATED, Fact
from parallax.analysis.layouts.rules.plain import is_plain
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.analysis.layouts.rules.values import reduced_axes
from parallax.graph.lengths import ONE, Length, multiply
from parallax.plans.layouts import RowEnds


def read_shape(step: StepWalk, node: str) -> list[Fact] | None:
    """Shape, ShapeN and Size: lengths, which are per-worker ones where the input is sharded."""
    op, facts = step.view.op(node), []
    step.keep_local(node)
    for tensor, fact in zip(step.view.outputs(node), step.inputs(node), strict=True):
        layout = LENGTHS if fact.part is not None or isinstance(fact.layout, RowEnds) else REPLICATED
        value: Length | tuple[Length | None, ...] | None = fact.dims
        if fact.is_lengths and (fact.dims is not None or op != "Size") and not _is_fixed(step, fact):
            layout, value = LENGTHS, None  # its shape is given by lengths, which are per-worker
        if op == "Size" and value is not None:
            value = multiply(fact.dims or ())
        facts.append(step.fact(tensor, layout, () if op == "Size" else None, value))
    return facts


def _is_fixed(step: StepWalk, fact: Fact) -> bool:
    """Whether a tensor's shape is known to be equal everywhere, or to follow from batch lengths."""
    return fact.dims is not None and all(one.number is not None or step.has_batch(one) for one in fact.dims)


def read_rank(step: StepWalk, node: str) -> list[Fact] | None:
    """Rank is the same everywhere."""
    rank = step.inputs(node)[0].rank
    step.keep_local(node)
    return step.all_outputs(node, REPLICATED, (), None if rank is None else Length.of(rank))


def find_broadcast_axes(step: StepWalk, node: str) -> list[Fact] | None:
    """BroadcastGradientArgs: the axes follow from lengths in the program of one process."""
    one, other = step.inputs(node)
    if not is_plain((one, other)):
        return None
    values = reduced_axes(one, other, step.batch_of)
    takers = (edge.node for tensor in step.view.outputs(node) for edge in step.view.consumers(tensor))
    if not _can_be_local(step, one, other) or any(step.view.op(taker) != "Sum" for taker in takers):
        step.replicate(node)  # per-worker lengths may differ from the global ones next to them
    step.keep_local(node)
    return [
        step.fact(tensor, REPLICATED, (Length.of(len(value)),) if isinstance(value, tuple) else None, value)
        for tensor, value in zip(step.view.outputs(node), values, strict=True)
    ]


def _can_be_local(step: StepWalk, one: Fact, other: Fact) -> bool:
    """Whether two per-worker shapes are compatible if those of one process are: a batch with itself, or with 1."""
    left, right = one.values(), other.values()
    if left is None or right is None:
        return False
    for a, b in zip(reversed(left), reversed(right), strict=False):
        if a is None or b is None:
            return False
        is_one_batch = (a == b or step.batch_of(a) == step.batch_of(b) is not None) and one.layout == other.layout
        if (step.has_batch(a) or step.has_batch(b)) and ONE not in (a, b) and not is_one_batch:
            return False
    return True


def compute_concat_offsets(step: StepWalk, node: str) -> list[Fact] | None:
    """ConcatOffset: the offset of each of several concatenated tensors."""
    facts = step.inputs(node)
    along, shapes = facts[0].numbers(), [fact.values() for fact in facts[1:]]
    if not is_plain(facts):
        return None
    layout = LENGTHS if all(f.is_lengths for f in facts[1:]) else REPLICATED
    if layout == REPLICATED:
        step.replicate(node)  # per-worker lengths are not those of the full tensor next to them
    step.keep_local(node)
    offsets, begin = list[Fact](), Length()
    for tensor, shape, fact in zip(step.view.outputs(node), shapes, facts[1:], strict=True):
        length = shape[along[0]] if shape is not None and along is not None else None
        if shape is None or along is None or length is None:
            return step.all_outputs(node, layout)
        value = tuple(begin if n == along[0] else Length() for n in range(len(shape)))
        offsets.append(step.fact(tensor, layout, fact.dims, value))
        begin = begin + length
    return offsets
