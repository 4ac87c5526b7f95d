"""Factors the values that an update adds to rows into functions of single gradient rows and shared row factors.

lr * g / root[row]      is    (g) times lr / root[row]
(c[row] * g)^2          is    (g^2) times c[row] * c[row]
g - lr * g * g          is    (g) and (g^2) times -lr
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from parallax.analysis.reading.lazy.elementwise import LARGEST_SUM
from parallax.analysis.reading.lazy.group import source_of, takes_rows
from parallax.analysis.reading.lazy.handles import LOOKUP
from parallax.graph.view import GraphView, node_of, split_tensor

_DIVISIONS = ("RealDiv", "Div")
_MOST_TERMS = 8
Powers = tuple[tuple[str, int], ...]
"""A product of tensors of gradient rows: each with its power, in the order of their names."""
Gates = tuple[tuple[str, int], ...]
"""The conditionals into which a tensor was passed: the predicate of each, and the branch, outer ones first."""


class NotLinearError(Exception):
    """A value is not linear in functions of single gradient rows."""


@dataclass(frozen=True, slots=True)
class RowTerm:
    """A product of gradient rows and of factors.

    Attributes:
        powers: the rows; empty where there are none.
        factors: tensors that multiply it: with one element, or rows gathered from a full table.
        divisors: tensors that divide it.
        is_negative: whether it is subtracted.
    """

    powers: Powers = ()
    factors: tuple[str, ...] = ()
    divisors: tuple[str, ...] = ()
    is_negative: bool = False

    def times(self, other: RowTerm) -> RowTerm:
        """The product of two terms."""
        powers = Counter(dict(self.powers)) + Counter(dict(other.powers))
        return RowTerm(
            tuple(sorted(powers.items())),
            (*self.factors, *other.factors),
            (*self.divisors, *other.divisors),
            self.is_negative != other.is_negative,
        )

    def negative(self) -> RowTerm:
        """The term with the opposite sign."""
        return replace(self, is_negative=not self.is_negative)


class RowTerms:
    """The terms of tensors that are aligned with one gradient's row numbers.

    Args:
        view: the graph.
        indices: the row numbers `[n]`, as seen where the tensors are.
        row_shape: of the table.

    Rows that were led into branches of conditionals are named as outside of them.

    Attributes:
        visited_nodes: the nodes that compute with gradient rows and factors, and those that gather rows of full tables.
    """

    def __init__(self, view: GraphView, indices: str, row_shape: tuple[int, ...]) -> None:
        self._view, self._indices, self._row_shape = view, indices, row_shape
        self._gates = find_origin(view, indices)[1]
        self._known: dict[str, tuple[RowTerm, ...]] = {}
        self.visited_nodes: dict[str, None] = {}

    def of(self, tensor: str) -> tuple[RowTerm, ...]:
        """The terms of which a tensor `[n, row...]` is the sum.

        Raises:
            NotLinearError: it is not such a sum.
        """
        tensor = source_of(self._view, tensor)
        if tensor not in self._known:
            self._known[tensor] = self._find(tensor)
        return self._known[tensor]

    def _find(self, tensor: str) -> tuple[RowTerm, ...]:
        view, node = self._view, node_of(tensor)
        if is_single(view, tensor):
            return (RowTerm(factors=(tensor,)),)
        if takes_rows(view, tensor, self._indices):
            if view.op(node) == LOOKUP:
                raise NotLinearError
            self.visited_nodes[node] = None
            return (RowTerm(factors=(tensor,)),)
        if not self._has_rows(tensor):
            raise NotLinearError
        if not all(is_single(view, one) or self._has_rows(one) for one in view.inputs(node)):
            return self._rows(tensor)
        return self._find_terms(tensor, node)

    def _rows(self, tensor: str) -> tuple[RowTerm, ...]:
        """Gradient rows that are treated as opaque."""
        source, gates = find_origin(self._view, tensor)
        if gates != self._gates:
            raise NotLinearError  # computed in a branch
        return (RowTerm(((source, 1),)),)

    def _find_terms(self, tensor: str, node: str) -> tuple[RowTerm, ...]:
        op, inputs = self._view.op(node), self._view.inputs(node)
        if op in ("Mul", "Square"):
            terms = self._product(*(inputs * 2)[:2])
        elif op in _DIVISIONS:
            terms = self._quotient(*inputs)
        elif op == "Neg":
            terms = tuple(one.negative() for one in self.of(inputs[0]))
        elif op in ("Add", "AddV2", "Sub") or (op == "AddN" and len(inputs) <= LARGEST_SUM):
            last = self.of(inputs[-1])
            last = tuple(one.negative() for one in last) if op == "Sub" else last
            terms = (*(term for one in inputs[:-1] for term in self.of(one)), *last)
        else:
            terms = ()
        if not terms or not all(one.powers for one in terms) or len(terms) > _MOST_TERMS:
            if terms and not any(one.powers for one in terms) and len(terms) == 1:
                self.visited_nodes[node] = None
                return terms  # a product of factors alone
            return self._rows(tensor)
        self.visited_nodes[node] = None
        return terms

    def _product(self, first: str, second: str) -> tuple[RowTerm, ...]:
        return tuple(one.times(other) for one in self.of(first) for other in self.of(second))

    def _quotient(self, first: str, second: str) -> tuple[RowTerm, ...]:
        below = self.of(second)
        if len(below) != 1 or below[0].powers:
            return ()
        inverse = RowTerm(factors=below[0].divisors, divisors=below[0].factors, is_negative=below[0].is_negative)
        return tuple(one.times(inverse) for one in self.of(first))

    def _has_rows(self, tensor: str) -> bool:
        """Whether a tensor consists of rows like the table's."""
        shape = self._view.shape(tensor)
        return shape is not None and len(shape) == len(self._row_shape) + 1 and shape[1:] == self._row_shape


def find_origin(view: GraphView, tensor: str) -> tuple[str, Gates]:
    """The origin of a tensor that was copied, and passed into branches."""
    gates: list[tuple[str, int]] = []
    while True:
        tensor = source_of(view, tensor)
        node, branch = split_tensor(tensor)
        if view.op(node) != "Switch":
            return tensor, tuple(gates)
        tensor, predicate = view.inputs(node)
        gates.insert(0, (source_of(view, predicate), branch))


def is_single(view: GraphView, tensor: str) -> bool:
    """Whether a tensor has one element."""
    shape = view.shape(tensor)
    return shape is not None and all(length == 1 for length in shape)
