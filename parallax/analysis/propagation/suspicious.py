"""Says what of a graph is allowed and yet may not be meant: what trains nothing, or trains otherwise than it looks.

A loss is found where autodiff began, and followed back to what sums it up: through sums, products with what no batch
has a part in, and quotients. A mean, or a sum over the batch that is divided by its size, is what Parallax takes losses
for; a sum that is not divided, or is divided by what the batch holds (a mask's sum), is told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from parallax.analysis.propagation.train_ops import train_ops
from parallax.analysis.reading.capture import Captured
from parallax.analysis.reading.gradients import RECORDED, gradient_updates
from parallax.graph.spec import GradientSource, GraphSpec, VariableClass
from parallax.graph.view import GraphView, once_per_view, split_tensor

_SHOWN = 5
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
_DATA = (*_PLACEHOLDERS, "PlaceholderWithDefault", "IteratorGetNext", "OneShotIterator")
_DATA_BEGINS = ("QueueDequeue", "ReaderRead")
_OF_SHAPE = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_PASSES_ON = ("Identity", "StopGradient", "Reshape", "Squeeze", "ExpandDims", "Cast", "CheckNumerics", "Neg")
_ADDS = ("Add", "AddV2", "AddN", "Sub")
_DIVIDES = ("RealDiv", "Div", "DivNoNan")
_CURVES = ("Sqrt", "Rsqrt", "Log", "Log1p", "Exp", "Square", "Pow", "Maximum", "Minimum", "Abs", "Relu", "Softplus")
_TAKES_ALL = ("Sum", "L2Loss", "EuclideanNorm")
_REDUCES = (*_TAKES_ALL, "Mean", "Max", "Min", "Prod", "All", "Any")
_MOVES_AXES = ("Transpose", "ReverseV2", "Pack", "Tile", "Unique", "UniqueV2")
_MEAN_TOLERANCE = 1e-3
"""A constant that is the inverse of a number of elements is so within the rounding of the script's own types."""


class Suspicion(NamedTuple):
    """Something that may not be meant; `is_note` where it is only good to know."""

    text: str
    is_note: bool = False


def suspicions(captured: Captured, spec: GraphSpec, sources: tuple[GradientSource, ...]) -> list[Suspicion]:
    """What may not be meant in a graph.

    Args:
        captured: the graph.
        spec: what it is.
        sources: where autodiff delivers its gradients.
    """
    updates = gradient_updates(captured, sources)
    step = captured.view.ancestors(updates)
    found = [*_of_updates(captured, sources), *_of_variables(spec)]
    losses = (sums_of_losses(captured.view, divided) for divided in (False, True))
    found += [Suspicion(text) for of_losses in losses for text in of_losses]
    parts = sorted({s.part for s in sources if s.found_by != RECORDED})
    if parts:
        found.append(
            Suspicion(
                f"The gradients of {_some(parts)} were not recorded while the graph was built, and are found by names. "
                "Import parallax after TensorFlow and before the model is built."
            )
        )
    return [*found, *_of_step(captured.view, step)]


def random_ops(view: GraphView, nodes: Iterable[str]) -> list[str]:
    """Those of some nodes that draw random numbers from their own state, sorted."""
    return sorted(n for n in nodes if "seed" in view.nodes[n].attr and "seed2" in view.nodes[n].attr)


def data_ops(view: GraphView, nodes: Iterable[str]) -> list[str]:
    """Those of some nodes that give batches which nobody feeds: iterators, queues and readers, sorted."""
    kinds = tuple(kind for kind in _DATA if "Placeholder" not in kind)
    return sorted(n for n in nodes if view.op(n) in kinds or view.op(n).startswith(_DATA_BEGINS))


def _of_updates(captured: Captured, sources: tuple[GradientSource, ...]) -> list[Suspicion]:
    found = train_ops(captured, sources)
    if len(found) < 2:
        return []
    names = [f"{op.name} ({len(op.variables)} variables)" for op in found]
    return [Suspicion(f"Several ops train, none of which depends on another: {_some(names)}.", is_note=True)]


def _of_variables(spec: GraphSpec) -> list[Suspicion]:
    found = []
    unused = [v.name for v in spec.variables if v.trainable and not v.gradients]
    if unused:
        found.append(
            Suspicion(
                f"Trainable variables without a gradient that updates them: {_some(unused)}. Does the loss not depend "
                "on them? trainable=False says that it is meant."
            )
        )
    own = [v.name for v in spec.variables if v.cls == VariableClass.LOCAL]
    if own:
        found.append(Suspicion(f"Every worker keeps its own value of {_some(own)} (class local).", is_note=True))
    for variable in spec.variables:
        if variable.cls == VariableClass.NOT_SHARDABLE:
            text = f"The rows of {variable.name} cannot be spread over owners: {variable.reason or 'no rule'}."
            found.append(Suspicion(text, is_note=True))
    return found


def _of_step(view: GraphView, step: set[str]) -> list[Suspicion]:
    found = []
    fixed = sorted(n for n in step if view.op(n) in _PLACEHOLDERS and _fixed_rows(view, n) > 1)
    if fixed:
        text = f"Placeholders have a fixed batch: {_some(fixed)}. `parallax verify` then needs --joined-args."
        found.append(Suspicion(text, is_note=True))
    drawn = random_ops(view, step)
    if drawn:
        text = f"Random ops are part of a step: {_some(drawn)}. Each worker draws its own numbers; where their shape "
        found.append(Suspicion(f"{text}depends on the batch, `parallax verify` cannot compare.", is_note=True))
    return found


def sums_of_losses(view: GraphView, divided: bool = False) -> list[str]:
    """What is to be said of losses that are sums over the batch, once for each loss.

    Args:
        view: the graph.
        divided: whether to speak of sums that are divided by what the batch determines, in place of those that are not.
    """
    found = []
    for loss, sums in _sums_by_loss(view):
        if divided:
            found += [
                f"The loss {loss} is a sum over the batch ({node}), divided by {divisor}, which the batch determines: "
                "one process would divide by that of all workers' batches together. Where they differ between workers, "
                "losses must be weighed."
                for node, divisor in sums
                if divisor
            ]
        elif plain := sorted(node for node, divisor in sums if not divisor):
            found.append(
                f"The loss {loss} is a sum over the batch ({_some(plain)}) and not a mean: gradients are the mean over "
                "the workers, so one process would take steps as many times as large as there are workers. "
                "Use reduce_mean."
            )
    return found


@once_per_view
def _sums_by_loss(view: GraphView) -> list[tuple[str, list[tuple[str, str]]]]:
    content = _after(view, [n for n in view.nodes if _gives_data(view, n)], frozenset(_OF_SHAPE))
    fixed = _along_fixed_batches(view, content)
    return [(loss, sorted(_sums(view, loss, content, fixed))) for loss in _losses(view)]


def _losses(view: GraphView) -> list[str]:
    """The ops at which `tf.gradients` began: those whose gradient functions take its first gradients.

    What only leads to a gradient that another loss is made of, as a penalty for its length is, is none.
    """
    found: dict[str, str] = {}
    for node in view.nodes:
        begins = re.fullmatch(r"(.*/)?grad_ys_\d+", node)
        for edge in view.consumers(f"{node}:0") if begins else ():
            scope = begins[1] or "" if begins else ""
            forward = re.match(rf"{re.escape(scope)}(.+?)_grad/", edge.node)
            if forward and forward[1] in view.nodes:
                found[forward[1]] = node
    return [loss for loss in found if not any(found[loss] in view.ancestors([o]) for o in found if o != loss)]


def _sums(view: GraphView, loss: str, content: set[str], fixed: set[str]) -> set[tuple[str, str]]:
    """(sum over the batch, what the batch determines and it is divided by, or empty) that a loss is made of."""
    found: set[tuple[str, str]] = set()
    waiting: list[tuple[str, str, tuple[float, ...]]] = [(loss, "", ())]
    seen = set()
    while waiting:
        node, divisor, factors = waiting.pop()
        if node in seen or node not in content:
            continue
        seen.add(node)
        tensors = view.inputs(node)
        needs = [split_tensor(t)[0] for t in tensors]
        op = view.op(node)
        if op in _PASSES_ON or (op in ("Sum", "Mean") and _is_one(view, tensors[0])):
            waiting.append((needs[0], divisor, factors))
        elif op in _ADDS or op in _CURVES:
            waiting += [(n, divisor, factors) for n in needs]
        elif op == "Mul":
            pairs = ((needs[0], tensors[1]), (needs[1], tensors[0]))
            waiting += [
                (n, divisor, (*factors, _number(view, by)))
                for n, by in pairs
                if split_tensor(by)[0] not in content and not _is_of_length(view, by, content)
            ]
        elif op in _DIVIDES and needs[1] in content:
            waiting.append((needs[0], needs[1], factors))
        elif op in _TAKES_ALL and _is_open(view, tensors[0]):
            if not _is_divided_by_length(view, needs[0], content):
                found.add((node, divisor))
        elif op in _TAKES_ALL and tensors[0] in fixed and _takes_first_axis(view, node):
            if not _is_mean(view, tensors[0], factors):
                found.add((node, divisor))
    return found


def _is_of_length(view: GraphView, tensor: str, content: set[str]) -> bool:
    """Whether a tensor is computed of the shape of what the batch determines."""
    nodes = view.ancestors([split_tensor(tensor)[0]])
    return any(view.op(n) in _OF_SHAPE and split_tensor(view.inputs(n)[0])[0] in content for n in nodes)


def _is_divided_by_length(view: GraphView, node: str, content: set[str]) -> bool:
    """Whether the elements of a sum are divided by a length, one by one."""
    by = view.inputs(node)[1:2] if view.op(node) in _DIVIDES else view.inputs(node) if view.op(node) == "Mul" else ()
    return any(split_tensor(t)[0] not in content and _is_of_length(view, t, content) for t in by)


def _along_fixed_batches(view: GraphView, content: set[str]) -> set[str]:
    """The tensors whose first axis is that of a fed batch of a fixed length, as far as lengths and ops tell."""
    found: set[str] = set()
    for node in view.topological_order() if any(_fixed_rows(view, n) > 1 for n in content) else ():
        if node not in content:
            continue
        if view.op(node) in _PLACEHOLDERS:
            lengths = {_fixed_rows(view, node)} - {0, 1}
        elif view.op(node) in _MOVES_AXES or (view.op(node) in _REDUCES and _takes_first_axis(view, node)):
            continue
        else:
            taken = tuple(view.inputs(node))
            if view.op(node) in ("MatMul", "BatchMatMulV2"):
                is_turned = view.flag(node, "transpose_a") or view.flag(node, "adj_x")
                taken = () if is_turned else taken[:1]
            lengths = {_rows(view, tensor) for tensor in taken if tensor in found}
        found.update(t for t in view.outputs(node) if _rows(view, t) in lengths)
    return found


def _takes_first_axis(view: GraphView, node: str) -> bool:
    """Whether a reduction is over the first axis too."""
    tensors = view.inputs(node)
    if len(tensors) < 2:
        return True
    axes, shape = view.constant(tensors[1]), view.shape(tensors[0])
    return axes is None or shape is None or any(int(axis) in (0, -len(shape)) for axis in np.ravel(axes))


def _is_mean(view: GraphView, tensor: str, factors: tuple[float, ...]) -> bool:
    """Whether one of the constants that a sum is multiplied by, or all, make it a mean over the first axis or more."""
    shape = [length or 1 for length in view.shape(tensor) or ()]
    numbers = [math.prod(shape[:count]) for count in range(1, len(shape) + 1)]
    tried = (*factors, math.prod(factors))
    return any(abs(abs(factor) * number - 1.0) < _MEAN_TOLERANCE for factor in tried for number in numbers)


def _number(view: GraphView, tensor: str) -> float:
    """The value of a constant of one element; 1 for all other tensors."""
    value = view.constant(tensor)
    return float(np.ravel(value)[0]) if value is not None and np.size(value) == 1 else 1.0


def _rows(view: GraphView, tensor: str) -> int:
    """The static length of the first axis; 0 where there is none."""
    shape = view.shape(tensor)
    return (shape[0] or 0) if shape else 0


def _is_one(view: GraphView, tensor: str) -> bool:
    shape = view.shape(tensor)
    return shape is not None and all(length == 1 for length in shape)


def _is_open(view: GraphView, tensor: str) -> bool:
    """Whether the first dimension of a tensor is that of an open batch."""
    shape = view.shape(tensor)
    return shape is None or (len(shape) > 0 and shape[0] is None)


def _gives_data(view: GraphView, node: str) -> bool:
    return view.op(node) in _DATA or view.op(node).startswith(_DATA_BEGINS)


def _fixed_rows(view: GraphView, placeholder: str) -> int:
    """The static length of a placeholder's batch; 0 for other nodes."""
    return _rows(view, f"{placeholder}:0") if view.op(placeholder) in _PLACEHOLDERS else 0


def _after(view: GraphView, nodes: Iterable[str], stops: frozenset[str]) -> set[str]:
    """Some nodes and what is made of their tensors, but not of what ops of the types `stops` give."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        node = waiting.pop()
        for tensor in view.outputs(node):
            for edge in view.consumers(tensor):
                if edge.node not in found and view.op(edge.node) not in stops:
                    found.add(edge.node)
                    waiting.append(edge.node)
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
