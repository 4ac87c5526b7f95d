"""Finds the constants by which sums over a fixed batch are divided, and decides which are computed from its length.

A divisor of a sum over the batch that equals the batch length is taken to be that length: a trained loss is a mean over
examples. So are the numbers of pairs, and one less than the length. A divisor of a mean over the batch is an unrelated
constant; a large one of a term of the loss is undecided. The same holds for gradients of a sum or a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from tensorflow.python.framework import op_def_registry

from parallax.analysis.reading.batches.batch_degrees import BatchDegrees, DeliveredGradient, FindResults
from parallax.analysis.reading.batches.batch_lengths import add_length
from parallax.analysis.reading.batches.batch_numbers import IntegerClassifier, LengthForm, is_weight
from parallax.analysis.reading.batches.unclassified_constants import DIVIDES, MULTIPLIES, SHIFTS
from parallax.base.types import GraphDef
from parallax.graph.view import GraphView, node_of

_RATES, _GRADIENTS = ("alpha", "lr"), ("delta", "grad")
"""The names of inputs of ops that update variables."""
_NONE: Mapping[str, DeliveredGradient] = MappingProxyType({})


class BatchDivisors:
    """The divisors of one graph.

    Args:
        view: the graph for the fixed batch.
        forward: the nodes outside autodiff and outside initial values.
        losses: those of them that are differentiated.
        length: of the batch.
        numbers: the classification of integers.
        find_results: the degrees of functions' results.
        delivered: tensor -> its origin in autodiff.

    Attributes:
        are_classified: whether all factors of gradients could be classified.
    """

    def __init__(
        self,
        view: GraphView,
        forward: Set[str],
        losses: Set[str],
        length: int,
        numbers: IntegerClassifier,
        find_results: FindResults,
        delivered: Mapping[str, DeliveredGradient] = _NONE,
    ) -> None:
        self._view, self._forward, self._losses = view, forward, losses
        self._length, self._numbers = length, numbers
        self._find_results, self._delivered = find_results, delivered
        self._divided: dict[str, tuple[int, float]] = {}
        self._known: dict[tuple[GraphView, int, Any], BatchDegrees] = {}
        self.are_classified = True

    def find_degrees(
        self, inferred: GraphView, arguments: Mapping[str, float | None] = MappingProxyType({})
    ) -> BatchDegrees:
        """The degrees of the tensors of a graph, with the divisors that were found to be the batch length.

        Args:
            inferred: the graph with an open batch.
            arguments: tensor -> degree, for the arguments of a function whose body the graph is.
        """
        key = inferred, len(self._divided), tuple(arguments.items())
        if key not in self._known:
            parts = self._forward, self._losses, self._delivered, self._divided
            self._known = {key: BatchDegrees(self._view, inferred, *parts, self._find_results, arguments)}
        return self._known[key]

    def find_form(self, inferred: GraphView, node: str) -> tuple[int, LengthForm] | None:
        """(the input by which a node divides a sum, or shifts a number of the batch; what it is), if any."""
        if inferred.op(node) in SHIFTS:
            return self._find_form_of_shift(inferred, node)
        slot = self._find_divisor(inferred, node)
        number = self._find_scalar_factor(inferred, node, slot)
        is_other = number != self._length and inferred.op(node) in MULTIPLIES and is_weight(number)
        if not number or is_other:
            return None
        degree = self.find_degrees(inferred).find_degree(inferred.inputs(node)[1 - slot])
        form = self._numbers.find_form_of_divisor(number, degree) if degree is not None and degree >= 1 else None
        if form is None:
            return None
        self._divided[node] = 1 - slot, form.degree
        return slot, form

    def _find_form_of_shift(self, inferred: GraphView, node: str) -> tuple[int, LengthForm] | None:
        for slot, tensor in enumerate(inferred.inputs(node)):
            value = inferred.constant(tensor)
            if value is not None and value.size == 1 and value.dtype.kind == "f":
                form = self._numbers.find_form_of_shift(float(value.item()))
                is_of_batch = self.find_degrees(inferred).is_of_batch(inferred.inputs(node)[1 - slot])
                return (slot, form) if form is not None and is_of_batch else None
        return None

    def open_divisors(
        self, inferred: GraphView, opened: GraphDef, find_batch: Callable[[str], str], outside: Set[str]
    ) -> None:
        """Replaces the fixed length in divisors of gradients of a sum over the batch with the open one.

        Args:
            inferred: the graph with an open batch, without some nodes.
            opened: the graph with an open batch, which is modified.
            find_batch: node -> a batch tensor of open length; empty if there is none.
            outside: the nodes that are missing in `inferred`.
        """
        by_name = {one.name: one for one in opened.node}
        self.are_classified &= not self._has_sums_of_means(inferred, outside)
        scaled = {node: found for node in self._view.nodes if node in outside and (found := self._find_scaling(node))}
        degrees = self.find_degrees(inferred).derive_for(outside) if scaled else None
        for node, (slot, factor) in scaled.items():
            degree = degrees.find_degree(self._view.inputs(node)[slot]) if degrees else None
            if degree is None or degree < 1:
                continue
            is_certain = factor and self._view.op(node) in DIVIDES  # a rate may equal the inverse of the length
            batch = find_batch(node) if is_certain else ""
            if not batch:
                self.are_classified = False
                continue
            dtype, divisor = self._view.dtype(f"{node}:0"), self._view.inputs(node)[1]
            by_name[node].input[1] = add_length(opened, batch, node, dtype, divisor, factor)

    def _has_sums_of_means(self, inferred: GraphView, outside: Set[str]) -> bool:
        """Whether a gradient of a mean, or its part of an example, is multiplied by a possible batch length."""
        of_gradients = self._view.reach(set(map(node_of, self._delivered)), outside)
        multiplies = [
            (node, slot)
            for node in of_gradients & outside
            if self._view.op(node) in MULTIPLIES
            for slot, tensor in enumerate(self._view.inputs(node))
            if (value := self._view.constant(tensor)) is not None and value.size == 1 and value.item() == self._length
        ]
        if not multiplies:
            return False
        degrees = self.find_degrees(inferred).derive_for(outside)
        found = (degrees.find_degree(self._view.inputs(node)[1 - slot]) for node, slot in multiplies)
        return any(degree is not None and degree <= 0 for degree in found)

    def _find_scaling(self, node: str) -> tuple[int, int] | None:
        """(the input that a node divides by a possible multiple of the batch length; the factor of that, or 0)."""
        op, inputs = self._view.op(node), self._view.inputs(node)
        if found := _find_rate(op):
            rate, gradient = found
            value = self._view.constant(inputs[rate])
            is_share = value is not None and value.size == 1 and self._numbers.is_share(float(value.item()))
            return (gradient, 0) if is_share else None
        for slot, value in enumerate(map(self._view.constant, inputs) if op in (*DIVIDES, *MULTIPLIES) else ()):
            if value is None or value.size != 1 or (op in DIVIDES and not slot):
                continue
            number, divisor = float(value.item()), self._invert(float(value.item()), op in MULTIPLIES)
            is_rate = op in MULTIPLIES and is_weight(number) and divisor != self._length
            if self._numbers.is_length_or_twice(divisor) and not is_rate:
                return 1 - slot, divisor // self._length
            if self._numbers.is_share(number if op in MULTIPLIES else 1 / (number or 1)):
                return 1 - slot, 0
        return None

    def _find_divisor(self, inferred: GraphView, node: str) -> int:
        """The input of a node that may be a divisor, or in a product the reciprocal of one."""
        is_first = inferred.op(node) in MULTIPLIES and inferred.constant(inferred.inputs(node)[0]) is not None
        return 0 if is_first else 1

    def _find_scalar_factor(self, inferred: GraphView, node: str, slot: int) -> int:
        """The integer by which a node divides its other input; else 0."""
        value, is_product = inferred.constant(inferred.inputs(node)[slot]), inferred.op(node) in MULTIPLIES
        if value is None or value.size != 1 or (is_product and np.issubdtype(value.dtype, np.integer)):
            return 0
        return self._invert(float(value.item()), is_product)

    def _invert(self, number: float, is_product: bool) -> int:
        factor = 1 / number if is_product and number else number
        return round(factor) if np.isfinite(factor) and np.isclose(factor, np.round(factor), rtol=1e-6) else 0


@cache
def _find_rate(op: str) -> tuple[int, int] | None:
    """(the input of an op that is a learning rate, the gradient that it multiplies)."""
    definition = op_def_registry.get(op) if "Apply" in op else None
    names = [one.name for one in definition.input_arg] if definition is not None else []
    found = [next((slot for slot, name in enumerate(names) if name in some), None) for some in (_RATES, _GRADIENTS)]
    return None if found[0] is None or found[1] is None else (found[0], found[1])
