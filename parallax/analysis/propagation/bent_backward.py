"""Finds gradients that are bent on their way back through a batch, as a custom gradient may do.

What autodiff makes itself is some times as large where what comes back from the loss is. A mean over the batch sends
back less to each example the more examples there are (degrees.py): where a custom gradient clips that, takes its sign,
or divides it by its length, a worker gives its variables another gradient than one process would. What is divided by
the number of examples afterwards is well again.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.degrees import (
    ADDS,
    COMPARES,
    DIVISIONS,
    KEEPS,
    OF_SHAPE,
    POWERS,
    PRODUCTS,
    degree_of,
    divides_by_length,
    fixed_means,
)
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.analysis.reading.recorded import Record
from parallax.graph.view import Shape

_BY_SIGN = frozenset(("Abs", "Relu", "LeakyRelu", "Max", "Min", "EuclideanNorm", "ComplexAbs"))
_BY_SIZE = frozenset(("Maximum", "Minimum", "SquaredDifference"))
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "EuclideanNorm", "L2Loss")


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of gradients that are bent before they are delivered to what is trained."""
    records = _trained(walk)
    if not any(_may_bend(walk, record) for record in records):
        return ()
    axes, order, notes = BatchAxes(walk.view, walk.states), walk.view.topological_order(), dict[str, None]()
    for record in records:
        nodes = [node for node in order if node in record.ops]
        if not _Backward(axes, record, None).bends(nodes):
            continue
        fixed = fixed_means(axes, autodiff_ops(walk.known.captured))
        if said := _Backward(axes, record, fixed).follow(nodes):
            notes[said] = None
    return tuple(notes)


def _trained(walk: Walk) -> list[Record]:
    """The calls of autodiff that delivered gradients which variables are trained with."""
    trained = {source.values for source in walk.known.sources}
    return [r for r in walk.known.captured.records if any(values in trained for _, values, _ in r.gradients)]


def _may_bend(walk: Walk, record: Record) -> bool:
    return any(_is_of_bending_op(walk.view.op(node)) for node in record.ops)


def _is_of_bending_op(op: str) -> bool:
    """Whether an op gives something else than so many times what it takes, whatever it takes."""
    if op in POWERS or op in COMPARES or op in _BY_SIGN or op in _BY_SIZE:
        return True
    return op in FORWARD_ELEMENTWISE and op not in KEEPS | PRODUCTS | ADDS | set(DIVISIONS) | set(OF_SHAPE)


class _Backward:
    """Follows what comes back from a loss through the nodes of one call of autodiff.

    Args:
        axes: how tensors lie along the batch.
        record: the call.
        fixed: what means over batches of fixed length divide by (degrees.py); None to take every division by a number
            for one by a length, which is soon known.
    """

    def __init__(self, axes: BatchAxes, record: Record, fixed: dict[Shape, set[float]] | None) -> None:
        self._axes, self._view, self._fixed = axes, axes.view, fixed
        self._delivered = {values for _, values, _ in record.gradients}
        self._degrees: dict[str, float] = {}
        self._bent: dict[str, str] = {}
        self._whole = set[str]()

    def follow(self, nodes: list[str]) -> str:
        """What the plan says, if anything."""
        for node in nodes:
            if said := self._visit(node):
                return said
        return next(self._wrongly_delivered(self._delivered), "")

    def bends(self, nodes: list[str]) -> bool:
        """Whether anything may be bent."""
        return bool(self.follow(nodes) or self._bent or self._whole)

    def _is_divided(self, node: str) -> bool:
        if self._fixed is not None:
            return divides_by_length(self._axes, node, self._fixed)
        return self._view.op(node) in DIVISIONS and self._view.shape(self._view.inputs(node)[1]) == ()

    def _wrongly_delivered(self, tensors: Set[str]) -> Iterator[str]:
        """What is said of tensors that are no longer some times as large as what came back from the loss."""
        for tensor in sorted(tensors):
            if tensor in self._bent and self._degrees[tensor] != 1.0:
                yield self._said_of(self._bent[tensor])

    def _visit(self, node: str) -> str:
        view, op, inputs = self._view, self._view.op(node), self._view.inputs(node)
        own = [t for t in inputs if t in self._degrees]
        is_divided = self._is_divided(node)
        if op in OF_SHAPE or not (own or is_divided):
            return ""
        if self._meets(op, own):
            return (
                f"{op} {node!r} takes together, on their way back, gradients of all examples of a worker's batch: one "
                "process would take together those of all workers' batches"
            )
        bent = next((self._bent[t] for t in own if t in self._bent), "")
        if self._is_linear(op, inputs, own):
            degree = max((self._degrees[t] for t in own), default=0.0)
            said = "" if _is_known(op) else next(self._wrongly_delivered(set(own)), "")
        else:
            power, bent = degree_of(self._axes, node, lambda tensor: self._degrees.get(tensor, 0.0)), bent or node
            degree, said = power or 0.0, self._said_of(node) if power is None else ""
        if said:
            return said
        if is_divided:
            degree = degree + 1.0 if bent else 1.0
        self._degrees.update(dict.fromkeys(view.outputs(node), degree))
        self._bent.update(dict.fromkeys(view.outputs(node) if bent else (), bent))
        is_reduced = op in _REDUCTIONS and self._reduces_first(node) and bool(bent or op == "Mean")
        self._whole.update(view.outputs(node) if is_reduced or set(own) & self._whole else ())
        return ""

    def _said_of(self, node: str) -> str:
        return (
            f"{self._view.op(node)} {node!r} bends gradients on their way back through a worker's batch: those of a "
            "mean are smaller the more examples there are, and one process would bend those of a mean over all "
            "workers' batches"
        )

    def _meets(self, op: str, own: list[str]) -> bool:
        """Whether what is made of all examples goes back into single ones."""
        whole = sum(t in self._whole for t in own)
        return op in PRODUCTS | ADDS | set(DIVISIONS) and 0 < whole < len(own)

    def _is_linear(self, op: str, inputs: tuple[str, ...], own: list[str]) -> bool:
        """Whether a node gives so many times what it takes; ops of autodiff that are not known do."""
        if op in PRODUCTS:
            return len(own) == 1
        if op in DIVISIONS:
            return inputs[1] not in own
        if op.startswith("Select"):
            return inputs[0] not in own
        return not _is_of_bending_op(op)

    def _reduces_first(self, node: str) -> bool:
        """Whether a reduction takes a first axis together, that may be the batch's."""
        inputs = self._view.inputs(node)
        shape = self._axes.shape(inputs[0])
        if len(inputs) == 1:
            return True
        over = self._axes.constant(inputs[1])
        if over is None or not shape:
            return False
        return shape[0] != 1 and 0 in {int(axis) % len(shape) for axis in over.reshape(-1)}


def _is_known(op: str) -> bool:
    return op in KEEPS | PRODUCTS | ADDS | set(DIVISIONS)
