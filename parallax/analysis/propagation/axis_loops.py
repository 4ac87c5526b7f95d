"""Along which axis what comes out of loops and conditionals is joined: of both kinds, with arrays of tensors in them.

A loop's variables are assumed to be as they start; the body says what they are afterwards. Where both agree under the
assumption, it is proven by induction over the iterations; where they do not, the next assumption is what both are. The
condition must be alike on all workers, so that they and the one process run as many iterations. An array of tensors is
joined along the axis along which its elements are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from parallax.analysis.propagation.axis_part import ALIKE, MIXED, AxisPart
from parallax.analysis.propagation.states import LOCAL, SAME, State
from parallax.analysis.reading.bodies import ARGUMENT, Body
from parallax.analysis.reading.functions import is_stateful
from parallax.graph.control_flow import SWITCHES, is_loop_merge, predicate_of
from parallax.graph.view import NEXT_ITERATIONS, GraphView, Shape, split_tensor

if TYPE_CHECKING:
    from parallax.analysis.propagation.batch_axis import BatchAxes

Parts = list[AxisPart | None]
_READS = "ReadVariableOp ResourceGather ResourceGatherNd VariableShape TensorArrayV3 Assert Print PrintV2 NoOp".split()
"""Stateful ops that give the same for the same inputs, as long as the variable that they read is alike."""


def states_within(body: Body, parts: Sequence[AxisPart | None]) -> dict[str, State]:
    """How workers hold a body's tensors: alike where only what is alike goes in, and nothing is drawn or read."""
    states: dict[str, State] = {
        t: SAME if part == ALIKE else LOCAL for t, part in zip(body.arguments, parts, strict=True)
    }
    for node in body.view.topological_order():
        if body.view.op(node) != ARGUMENT:
            alike = all(states[t] == SAME for t in body.view.inputs(node)) and gives_the_same(body.view.op(node))
            states.update(dict.fromkeys(body.view.outputs(node), SAME if alike else LOCAL))
    return states


def gives_the_same(op: str) -> bool:
    """Whether an op gives all workers the same for the same inputs."""
    return op in _READS or not is_stateful(op)


def agreed(first: AxisPart | None, second: AxisPart | None, shape: Shape) -> AxisPart | None:
    """What a tensor is that is one or the other; what is alike is taken for joined where it is as long as the batch."""
    if first == second:
        return first
    parts = {first, second} - {ALIKE}
    if len(parts) != 1 or None in parts or shape is None:
        return None
    (part,) = parts
    if part is None or part.axis == MIXED:
        return None
    is_list = shape == ()
    return part if is_list or (part.axis < len(shape) and shape[part.axis] not in (None, 1)) else None


def _settled(starts: Parts, shapes: Sequence[Shape], after: Callable[[Parts], Parts | None]) -> Parts:
    """What a loop's variables are in every iteration; `after` says what the body makes, None where workers part."""
    parts = list(starts)
    while True:
        made = after(parts)
        if made is None:
            return [None] * len(parts)
        both = [agreed(a, b, shape) for a, b, shape in zip(parts, made, shapes, strict=True)]
        if both == parts:
            return parts
        parts = both


def old_loop(axes: BatchAxes, merge: str) -> dict[str, AxisPart | None]:
    """The variables of a loop of the old kind, by the outputs of all Merges of its frame."""
    view = axes.view
    merges = [node for node in view.nodes if _frame(view, node) == _frame(view, merge)]
    variables = [f"{node}:0" for node in merges]
    starts, nexts = [], []
    for node in merges:
        enters, later = sorted(view.inputs(node), key=lambda t: view.op(split_tensor(t)[0]).endswith("NextIteration"))
        starts.append(axes.part(view.inputs(split_tensor(enters)[0])[0]))
        nexts.append(view.inputs(split_tensor(later)[0])[0])
    conditions = {
        predicate_of(view, e.node) for v in variables for e in view.consumers(v) if view.op(e.node) in SWITCHES
    }

    def after(parts: Parts) -> Parts | None:
        supposed = axes.supposing(dict(zip(variables, parts, strict=True)))
        if not all(supposed.is_equal(condition) for condition in sorted(conditions)):
            return None
        return [supposed.part(tensor) for tensor in nexts]

    settled = _settled(starts, [axes.shape(v) for v in variables], after)
    return dict(zip(variables, settled, strict=True))


def _frame(view: GraphView, node: str) -> str:
    """The frame whose variable a Merge is; empty for other nodes."""
    if not view.op(node).endswith("Merge") or not is_loop_merge(view, node):
        return ""
    enters = [n for t in view.inputs(node) if (n := split_tensor(t)[0]) and view.op(n).endswith("Enter")]
    return str(view.nodes[enters[0]].attr["frame_name"].s.decode()) if len(enters) == 1 else node


def loop(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> Parts:
    """A loop of the new kind."""
    attr = axes.view.nodes[node].attr
    body, condition = axes.body(attr["body"].func.name), axes.body(attr["cond"].func.name)

    def after(parts: Parts) -> Parts | None:
        (goes_on,) = axes.within(condition, parts)
        return axes.within(body, parts) if goes_on == ALIKE else None

    shapes = [axes.shape(tensor) for tensor in axes.view.outputs(node)]
    return _settled([axes.part(tensor) for tensor in inputs], shapes, after)


def conditional(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> Parts:
    """A conditional of the new kind, by a predicate that is alike: what both branches give."""
    outputs = axes.view.outputs(node)
    if not axes.is_equal(inputs[0]):
        return [None] * len(outputs)
    given = [axes.part(tensor) for tensor in inputs[1:]]
    names = [axes.view.nodes[node].attr[branch].func.name for branch in ("then_branch", "else_branch")]
    first, second = (axes.within(axes.body(name), given) for name in names)
    return [agreed(a, b, axes.shape(t)) for a, b, t in zip(first, second, outputs, strict=True)]


def merge(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> Parts:
    """The end of a conditional of the old kind, likewise."""
    predicates = {branch.predicate for tensor in inputs for branch in axes.left_at(node, tensor)}
    parts = [axes.part(tensor) for tensor in inputs]
    if not all(axes.is_equal(predicate) for predicate in sorted(predicates)) or not parts:
        return [None, None]
    found = parts[0]
    for part in parts[1:]:
        found = agreed(found, part, axes.shape(f"{node}:0"))
    return [found, ALIKE]


def identities(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> Parts:
    """IdentityN."""
    return [axes.part(tensor) for tensor in inputs]


def switch(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """A branch that all workers take, or none."""
    return axes.known_part(inputs[0]) if axes.is_equal(inputs[1]) else None


def passes(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Into a loop, on to its next iteration, and out of it; and what is read of an array."""
    return axes.known_part(inputs[0])


def _taken_apart(slot: int, into: int | None = None) -> Callable[[BatchAxes, str, tuple[str, ...]], AxisPart | None]:
    """Input `slot` becomes the elements of an array, beside those of input `into`."""

    def rule(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
        part = axes.part(inputs[slot])
        if part is not None and part != ALIKE:
            part = AxisPart(part.axis - 1) if part.axis > 0 else None
        return part if into is None else agreed(part, axes.part(inputs[into]), ())

    return rule


def _written(slot: int, into: int, at: int | None) -> Callable[[BatchAxes, str, tuple[str, ...]], AxisPart | None]:
    """Input `slot` becomes the element of the array `into` that input `at` says, or the last one."""

    def rule(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
        if at is not None and not axes.is_equal(inputs[at]):
            return None
        item, others = axes.part(inputs[slot]), axes.part(inputs[into])
        if item == ALIKE and others is not None:
            item = agreed(item, others, axes.shape(inputs[slot]))
        return agreed(item, others, ())

    return rule


def _read(array: int, at: int | None) -> Callable[[BatchAxes, str, tuple[str, ...]], AxisPart | None]:
    def rule(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
        return axes.known_part(inputs[array]) if at is None or axes.is_equal(inputs[at]) else None

    return rule


def _put_together(array: int, at: int | None) -> Callable[[BatchAxes, str, tuple[str, ...]], AxisPart | None]:
    """All elements of an array, or those that input `at` says, along a new first axis."""

    def rule(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
        part = axes.known_part(inputs[array])
        if part is None or part.axis == MIXED or (at is not None and not axes.is_equal(inputs[at])):
            return None
        return AxisPart(part.axis + 1)

    return rule


def _turned(axes: BatchAxes, node: str, inputs: Sequence[str]) -> AxisPart | None:
    """Sequences that are turned round as far as each is long."""
    attr, axis = axes.view.nodes[node].attr, axes.known(inputs[0])
    are_own = axes.known(inputs[1]) == 0 or axes.fits(inputs[1])
    return AxisPart(axis) if axis is not None and axis == attr["batch_dim"].i and are_own else None


RULES = {
    **dict.fromkeys(("Enter", "RefEnter", "Exit", "RefExit", *NEXT_ITERATIONS), passes),
    **dict.fromkeys(SWITCHES, switch),
    "TensorArrayScatterV3": _taken_apart(2, 3),
    "TensorArrayWriteV3": _written(2, 3, 1),
    "TensorArrayReadV3": _read(2, 1),
    "TensorArrayGatherV3": _put_together(2, 1),
    "TensorListFromTensor": _taken_apart(0),
    "TensorListSetItem": _written(2, 0, 1),
    "TensorListPushBack": _written(1, 0, None),
    "TensorListPopBack": _read(0, None),
    "TensorListGetItem": _read(0, 1),
    "TensorListStack": _put_together(0, None),
    "ReverseSequence": _turned,
}
"""Op type -> what all outputs of an op are."""
RULES_OF_MANY = {
    **dict.fromkeys(("While", "StatelessWhile"), loop),
    **dict.fromkeys(("If", "StatelessIf"), conditional),
    **dict.fromkeys(("Merge", "RefMerge"), merge),
    "IdentityN": identities,
}
