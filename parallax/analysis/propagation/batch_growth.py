"""Finds the power of the batch length by which a front end's tensors grow, from their layouts' axes and lengths.

Unlike BatchDegrees, which completes a graph of a fixed batch, this module guesses nothing: its callers refuse what is
unknown. A sum over the batch has degree 1, a mean has degree 0. A term that is added to a sum and does not depend on
the batch is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallax.analysis.layouts.find_layouts import Layouts
from parallax.analysis.layouts.rules.facts import Fact
from parallax.analysis.reading.batches.batch_degrees import (
    AS_FIRST,
    AS_MOST,
    MEANS,
    POWERS,
    PRODUCTS,
    QUOTIENTS,
    gradients_of,
)
from parallax.analysis.reading.batches.open_lengths import SHAPE_SLOT
from parallax.analysis.reading.capture import CapturedGraph
from parallax.graph.batches import are_elements, batch_by_node
from parallax.graph.control_flow import predicate_of
from parallax.graph.lengths import Length
from parallax.graph.view import node_of
from parallax.plans.layouts import DISTINCT, UNEVEN, PerExample

_NOT_YET = -math.inf
"""The degree of a value that depends on another iteration of a loop."""
_MOST_WALKS = 12
_OF_MATRICES = frozenset(PRODUCTS) - {"Mul", "MulNoNan"}
FLOATS = (1, 2, 14, 19)
"""The floating types of types.proto: float, double, bfloat16, half."""
_Degree = float | None


class BatchGrowth:
    """The degrees of a step's tensors; None where they are unknown.

    Args:
        captured: the graph.
        layouts: of its tensors.
    """

    def __init__(self, captured: CapturedGraph, layouts: Layouts) -> None:
        self._view, self._facts = captured.view, layouts.facts
        self._autodiff = frozenset[str]().union(*(record.ops for record in captured.records))
        self._delivered = gradients_of(captured.records, {})
        self._batches = batch_by_node(self._view)
        self._symbols = frozenset(self._batches.values())
        self._degrees: dict[str, _Degree] = {}
        self._find_all()

    def is_of_batch(self, tensor: str) -> bool:
        """Whether a tensor depends on a batch."""
        return node_of(tensor) in self._batches

    def find_degree(self, tensor: str) -> _Degree:
        """The power of the batch's length by which a tensor grows."""
        return self._degrees.get(tensor)

    def find_loss_degree(self, gradient: str) -> _Degree:
        """The degree of the differentiated tensor; autodiff sums its values over examples."""
        losses = self._delivered[gradient].losses if gradient in self._delivered else ()
        degrees = {self._add_axes(self._degrees.get(loss), loss) for loss in losses}
        return degrees.pop() if len(degrees) == 1 else None

    def losses_of(self, gradient: str) -> tuple[str, ...]:
        """The tensors that were differentiated for a gradient."""
        return self._delivered[gradient].losses if gradient in self._delivered else ()

    def is_of_autodiff(self, node: str) -> bool:
        """Whether autodiff created a node."""
        return node in self._autodiff

    def has_axis(self, tensor: str) -> bool:
        """Whether an axis of a tensor is the batch's, or may be."""
        return self._count_axes(tensor) != 0

    def is_uneven_count(self, tensor: str) -> bool:
        """Whether a scalar counts entries of which examples have unequally many, such as those of ragged rows."""
        fact = self._facts.get(tensor)
        if fact is None or not isinstance(fact.value, Length):
            return False
        symbols = {symbol for product, _ in fact.value.terms for symbol in product}
        return any(one.endswith(UNEVEN) or self.is_of_elements(one) for one in symbols)

    def is_of_elements(self, batch: str) -> bool:
        """Whether a batch's number of entries differs from that of its examples."""
        return batch in self._symbols and are_elements(self._view.nodes[node_of(batch)])

    def find_cause(self, tensor: str) -> str:
        """The first node before a tensor of unknown degree that causes it; empty where there is none."""
        view = self._view
        before = view.computed_of([node_of(tensor)])
        for node in view.topological_order():
            if node in before and node in self._batches and not self.is_of_autodiff(node):
                batch_inputs = [one for one in view.inputs(node) if self.is_of_batch(one)]
                unknown = any(self._degrees.get(one) is None for one in view.outputs(node))
                if unknown and all(self._degrees.get(one) is not None for one in batch_inputs):
                    return node
        return ""

    def _add_axes(self, degree: _Degree, tensor: str) -> _Degree:
        axes = self._count_axes(tensor)
        return None if degree is None or axes is None else degree + axes

    def _find_all(self) -> None:
        order = [node for node in self._view.topological_order() if node in self._batches]
        for walk in range(2 * _MOST_WALKS):
            changes = 0
            for node in order:
                for number, tensor in enumerate(self._view.outputs(node)):
                    before = self._degrees.get(tensor, _NOT_YET)
                    degree = self._find_degree_of(node, tensor, number)
                    if before != degree:  # a value that every iteration of a loop changes has none
                        self._degrees[tensor] = degree if walk < _MOST_WALKS else None
                        changes += self._degrees[tensor] != before
            if not changes:
                return

    def _degree_of(self, tensor: str) -> _Degree:
        return self._degrees.get(tensor, _NOT_YET) if self.is_of_batch(tensor) else 0.0

    def _find_degree_of(self, node: str, tensor: str, number: int) -> _Degree:
        view, op = self._view, self._view.op(node)
        if tensor in self._delivered:
            return self._find_delivered(tensor)
        fact = self._facts.get(tensor)
        if fact is not None and isinstance(fact.value, Length):
            return None if _is_distinct(fact.value) else float(self._power_of(fact.value))
        inputs = view.inputs(node)
        if node in self._autodiff and inputs:
            return None
        if op in ("Shape", "ShapeN") or not inputs:
            return 0.0
        if op in AS_MOST:
            return self._find_common(op, inputs)
        if op in ("Exit", "RefExit") and fact is not None and fact.is_sum and self._has_turn_of_example(inputs[0]):
            of_terms = self._degree_of(inputs[0])
            return None if of_terms is None else of_terms + 1.0
        if op in AS_FIRST or op in MEANS or op == "IdentityN" or (op == "Cumsum" and not self._is_along_batch(node)):
            data = [one for slot, one in enumerate(inputs) if slot != SHAPE_SLOT.get(op)]
            return self._degree_of(data[number if op == "IdentityN" else 0])
        known = [self._degree_of(one) for one in inputs]
        if op in PRODUCTS or op in QUOTIENTS or op in ("FloorDiv", "SquaredDifference", "Pow") or op in POWERS:
            return self._find_product(node, known)
        return self._reduce(node, known[0]) if op == "Sum" else self._find_unlisted(node, tensor)

    def _has_turn_of_example(self, leaves: str) -> bool:
        """Whether a loop, of which a tensor is passed out, has an iteration for each example."""
        decides = self._facts.get(predicate_of(self._view, node_of(leaves)))
        return decides is not None and isinstance(decides.layout, PerExample)

    def _find_delivered(self, tensor: str) -> _Degree:
        """The degree of a gradient: its loss's, and one less for a per-example gradient."""
        losses, target = self._delivered[tensor]
        if _NOT_YET in map(self._degree_of, losses):
            return _NOT_YET
        degree, axes = self.find_loss_degree(tensor), self._count_axes(target) if target else 0
        return None if degree is None or axes is None else degree - axes

    def _find_common(self, op: str, inputs: Sequence[str]) -> _Degree:
        """The common degree of summed or selected inputs, except those that do not depend on a batch."""
        inputs = inputs[1:] if op.startswith("Select") else inputs[:-1] if op == "ConcatV2" else inputs
        known = [self._degree_of(one) for one in inputs if self.is_of_batch(one)]
        degrees = {degree for degree in known if degree != _NOT_YET}
        if not degrees:
            return _NOT_YET if known else 0.0
        return degrees.pop() if len(degrees) == 1 else None

    def _find_product(self, node: str, known: Sequence[_Degree]) -> _Degree:
        view, op = self._view, self._view.op(node)
        degrees = [degree for degree in known if degree is not None]
        if len(degrees) < len(known) or _NOT_YET in degrees:
            return None if len(degrees) < len(known) else _NOT_YET
        if op in QUOTIENTS or op == "FloorDiv":
            return degrees[0] - degrees[1]
        if op == "SquaredDifference":
            common = self._find_common("Sub", view.inputs(node))
            return None if common is None else 2.0 * common
        if op == "Pow":
            power = view.constant(view.inputs(node)[1])
            return degrees[0] * float(power) if power is not None and power.ndim == 0 else self._as_zero(degrees)
        if op == "L2Loss":
            return self._reduce(node, 2.0 * degrees[0])
        if op in POWERS:
            return degrees[0] * POWERS[op]
        return self._contract(node, sum(degrees)) if op in _OF_MATRICES else sum(degrees)

    @staticmethod
    def _as_zero(degrees: Sequence[float]) -> _Degree:
        return None if any(degrees) else 0.0

    def _reduce(self, node: str, degree: _Degree) -> _Degree:
        """The degree of a sum over axes."""
        before, after = self._count_axes(self._view.inputs(node)[0]), self._count_axes(f"{node}:0")
        if degree is None or degree == _NOT_YET:
            return degree
        return self._by_layout(node, degree) if before is None or after is None else degree + before - after

    def _contract(self, node: str, degree: float) -> _Degree:
        """The degree of a product of matrices; one more where they are contracted along the batch."""
        found, after = [self._count_axes(one) for one in self._view.inputs(node)], self._count_axes(f"{node}:0")
        axes = [one for one in found if one is not None]
        if len(axes) < len(found) or after is None:
            return self._by_layout(node, degree)
        if not after:
            return degree + max(axes)
        return degree + (sum(axes) - after) // 2 if min(axes) else degree

    def _by_layout(self, node: str, degree: float) -> _Degree:
        """The degree of a sum over unknown axes, where layouts tell whether it is over the batch."""
        facts = [self._facts.get(one) for one in (f"{node}:0", *self._view.inputs(node))]
        known = [fact for fact in facts if fact is not None]
        if len(known) < len(facts):
            return None
        if known[0].is_sum:
            return degree + (not any(fact.is_sum for fact in known[1:]))
        return degree if known[0].axis is not None else None

    def _find_unlisted(self, node: str, tensor: str) -> _Degree:
        """The degree of the result of an op without a rule that treats each example independently."""
        view = self._view
        data_inputs = [one for one in view.inputs(node) if not self._is_length(one)]
        known = [self._degree_of(one) for one in data_inputs]
        if None in known or any(degree not in (0.0, _NOT_YET) for degree in known):
            return None
        if _NOT_YET in known:
            return _NOT_YET
        axes, left = (list(map(self._count_axes, tensors)) for tensors in (data_inputs, view.outputs(node)))
        if any(one != 0 for one in left) or not any(one != 0 for one in axes):
            return None if self._is_along_batch(node) else 0.0
        fact, facts = self._facts.get(tensor), [self._facts.get(one) for one in data_inputs]
        if fact is not None and fact.is_sum:
            return float(not any(one is not None and one.is_sum for one in facts))
        return None if view.dtype(tensor) in FLOATS else 0.0

    def _is_length(self, tensor: str) -> bool:
        """Whether a tensor is a length."""
        fact = self._facts.get(tensor)
        return fact is not None and self._view.dtype(tensor) not in FLOATS and fact.value is not None

    def _is_along_batch(self, node: str) -> bool:
        """Whether an op acts along the batch, or may."""
        view, op = self._view, self._view.op(node)
        if op not in ("Softmax", "LogSoftmax", "Cumsum", "Cumprod"):
            return False
        dims, axis = self._dims_of(view.inputs(node)[0]), -1
        if op.startswith("Cum"):
            constant = view.constant(view.inputs(node)[1])
            axis = int(constant) if constant is not None else 0
        return dims is None or (bool(dims) and self._power_of(dims[axis]) > 0)

    def _dims_of(self, tensor: str) -> tuple[Length, ...] | None:
        fact: Fact | None = self._facts.get(tensor)
        return None if fact is None else fact.dims

    def _power_of(self, length: Length) -> int:
        """The power of batches' lengths in a length."""
        return max((sum(one in self._symbols for one in product) for product, _ in length.terms), default=0)

    def _count_axes(self, tensor: str) -> int | None:
        """The number of a tensor's axes that are the batch's; None where that is unknown."""
        fact = self._facts.get(tensor)
        if not self.is_of_batch(tensor) or self._view.shape(tensor) == ():
            return 0
        if fact is None or fact.dims is None:
            return None
        powers = [self._power_of(length) for length in fact.dims]
        is_certain = fact.axis is not None or not any(map(self._is_open, fact.dims))
        return sum(powers) if is_certain or any(powers) else None

    def _is_open(self, length: Length) -> bool:
        """Whether a length was computed from lengths by an op, and may be the batch's."""
        symbols = {symbol for product, _ in length.terms for symbol in product} - self._symbols
        return any(self._view.op(name) != "Placeholder" for symbol in symbols if (name := self._maker(symbol)))

    def _maker(self, symbol: str) -> str:
        """The node whose result has an open axis with a symbol as its length; empty for another symbol."""
        name = symbol.rpartition(":")[0] if symbol.endswith("]") else ""
        return name if name in self._view.nodes else ""


def _is_distinct(length: Length) -> bool:
    """Whether a scalar counts distinct ids, which do not grow as their batch does."""
    return any(symbol.endswith(DISTINCT) for product, _ in length.terms for symbol in product)
