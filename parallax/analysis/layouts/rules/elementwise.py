"""Layout rules of elementwise ops, with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from parallax.analysis.layouts.rules.facts import COUNTED, LENGTHS, REPLICATED, SUM, Dims, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.analysis.layouts.rules.values import compute_value
from parallax.graph.lengths import ONE, Length, broadcast
from parallax.plans.layouts import Layout, RowEnds, Sharded, ShardedAxis

COPIES = ("Identity", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape")
_LINEAR = ("Neg", "Conj", "Real", "Imag")
ADDS = ("Add", "AddV2", "AddN", "Sub", "BiasAdd")
_DIVIDES = ("RealDiv", "Div", "DivNoNan", "Xdivy")
_MULTIPLIES = ("Mul", "MulNoNan")
_OF_OUTPUTS = ("TanhGrad", "SigmoidGrad", "SqrtGrad", "RsqrtGrad", "InvGrad", "ReciprocalGrad")
_OF_GRADIENTS = ("ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad", "SoftplusGrad", "SoftsignGrad")
_LINEAR_IN = {**dict.fromkeys(_OF_OUTPUTS, 1), **dict.fromkeys(_OF_GRADIENTS, 0)}
"""Op -> the one input in which it is linear: the gradient that arrives."""
_CHOOSES = ("Select", "SelectV2")
FLOATS = (1, 2, 14, 19)  # types.proto: float32, float64, bfloat16, float16
INTEGERS = (3, 4, 5, 6, 9, 17, 22, 23)  # types.proto: int32, uint8, int16, int8, int64, uint16, uint32, uint64
_OF_SHAPE_ALONE = ("ZerosLike", "OnesLike")


def elementwise(step: StepWalk, node: str) -> list[Fact] | None:
    """The rule of all elementwise ops; the tables above list the linear ones."""
    op, facts = step.view.op(node), step.inputs(node)
    is_copy = op in COPIES or (op == "Cast" and isinstance(facts[0].layout, RowEnds))
    if is_copy and facts[0].layout not in (REPLICATED, LENGTHS):
        return step.all_outputs(node, facts[0].layout, facts[0].dims, facts[0].value)
    facts = step.read_lengths_alike(node)
    if all(f.is_same or f.is_lengths for f in facts):
        layout = REPLICATED if all(f.is_same for f in facts) else LENGTHS
        return step.all_outputs(node, layout, _broadcast_dims(step, node, facts), compute_value(step.view, node, facts))
    if any(map(is_partial, facts)):
        if op in _OF_SHAPE_ALONE:
            return step.all_outputs(node, REPLICATED, facts[0].dims)
        linear = _find_linear_layout(step, node, facts)
        if linear is not None:
            return step.all_outputs(node, linear, _broadcast_dims(step, node, step.inputs(node)))
        facts = [step.require_layout(node, slot, REPLICATED) if is_partial(f) else f for slot, f in enumerate(facts)]
    facts = [step.require_layout(node, slot, REPLICATED) if f.is_lengths else f for slot, f in enumerate(facts)]
    return _follow_shards(step, node, facts)


def add_up(step: StepWalk, node: str, slots: Sequence[int]) -> Layout:
    """Makes inputs partial sums; a replicated one is counted by one worker alone."""
    facts = step.inputs(node)
    layout = SUM if all(facts[slot].layout == SUM for slot in slots) else COUNTED
    for slot in slots:
        step.require_layout(node, slot, layout)
    return layout


def _find_linear_layout(step: StepWalk, node: str, facts: list[Fact]) -> Layout | None:
    """The layout of a result that is a partial sum as the inputs are; converts the other inputs as needed."""
    op = step.view.op(node)
    sums = [f.is_sum for f in facts]
    if any(is_partial(f) and not f.is_sum for f in facts) or any(f.axis is not None for f in facts):
        return None
    is_rounded = op in _DIVIDES and step.view.dtype(f"{node}:0") in INTEGERS
    if (is_linear(op, sums) and not is_rounded) or (op == "Cast" and _is_real(step, node)):
        if op in _DIVIDES:  # a mean is a sum divided by a length, which may be fed
            batches = sorted(step.lengths)
            for batch in batches if len(batches) == 1 else ():
                step.find_fed_length(ShardedAxis(batch), facts[1].values() or ())
        step.replicate(node, [slot for slot, is_sum in enumerate(sums) if not is_sum])
        return facts[sums.index(True)].layout
    if op in ADDS:
        return add_up(step, node, range(len(facts)))
    if op in _CHOOSES and not sums[0]:
        step.require_layout(node, 0, REPLICATED)
        return add_up(step, node, (1, 2))
    return None


def is_linear(op: str, sums: list[bool]) -> bool:
    """Whether a result is a part of a sum if the given inputs are.

    Args:
        op: the op's type.
        sums: which of its inputs are parts of sums.
    """
    if op in _MULTIPLIES or op in _LINEAR_IN:
        return sum(sums) == 1 and sums[_LINEAR_IN.get(op, sums.index(True))]
    return op in _LINEAR or (op in _DIVIDES and sums == [True, False])


def _is_real(step: StepWalk, node: str) -> bool:
    return step.view.dtype(f"{node}:0") in FLOATS and step.view.dtype(step.view.inputs(node)[0]) in FLOATS


def _follow_shards(step: StepWalk, node: str, facts: list[Fact]) -> list[Fact] | None:
    """The result is sharded as the first of the inputs with the highest rank is; the others are converted to match."""
    sharded = [f for f in facts if f.part is not None]
    if not sharded:
        return step.all_outputs(node, REPLICATED, _broadcast_dims(step, node, facts))
    if any(f.rank is None for f in facts):
        return None
    rank = max(f.rank or 0 for f in facts)
    first = max(sharded, key=lambda f: f.rank or 0)
    from_right, part = (first.rank or 0) - (first.axis or 0), first.part
    if part is None:
        return None
    is_from_left = step.view.op(node) == "Select" and facts[0].rank != facts[1].rank
    found = []
    for slot, fact in enumerate(facts):
        axis = (fact.rank or 0) - from_right
        if is_from_left and slot == 0:
            axis = (first.axis or 0) if fact.rank else -1
        found.append(align(step, node, slot, fact, axis, part))
    return step.all_outputs(
        node, Sharded(rank - from_right, part), _broadcast_dims(step, node, found, part, rank - from_right)
    )


def align(step: StepWalk, node: str, slot: int, fact: Fact, axis: int, part: ShardedAxis) -> Fact:
    """Makes an input sharded along an axis, if it has that axis and is not broadcast along it."""
    if fact.axis == axis and fact.part is not None and (fact.part.batch, fact.part.blocks) == (part.batch, part.blocks):
        return fact  # factors of unknown equality are equal, or the program is faulty
    if axis < 0 or fact.rank is None or axis >= fact.rank:
        return fact if fact.is_same else step.require_layout(node, slot, REPLICATED)
    length = fact.dims[axis] if fact.dims is not None else None
    if length == ONE:
        return fact if fact.is_same else step.require_layout(node, slot, REPLICATED)
    return step.require_layout(node, slot, Sharded(axis, part))


def _broadcast_dims(
    step: StepWalk, node: str, facts: list[Fact], part: ShardedAxis | None = None, axis: int = 0
) -> Dims | None:
    """The broadcast lengths of facts; an undecidable one is a new unknown."""
    known = [f.dims for f in facts if f.dims is not None]
    if len(known) < len(facts):
        return None
    rank = max(len(dims) for dims in known)
    broadcast_lengths: list[Length] = []
    for place in range(rank):
        lengths = [dims[place - rank + len(dims)] for dims in known if place - rank + len(dims) >= 0]
        length: Length | None = lengths[0]
        for other in lengths[1:]:
            length = _broadcast(step, length, other) if length is not None else None
        if part is not None and place == axis:
            length = part.length
        broadcast_lengths.append(Length.of(f"{step.prefix}{node}:0[{place}]") if length is None else length)
    return tuple(broadcast_lengths)


def _broadcast(step: StepWalk, one: Length, other: Length) -> Length | None:
    """The length to which two are broadcast: n, where one is the first n entries of an axis; fewer fit only if one."""
    if step.limits.get(other) == one:
        return one
    return other if step.limits.get(one) == other else broadcast(one, other)
