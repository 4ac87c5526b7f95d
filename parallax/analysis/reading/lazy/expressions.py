"""The expressions by which an update changes an element of its states; equal expressions are one object.

Leaves are the states before the update, the element of the gradient, scalars (tensors of the graph) and constants.
Boolean values are 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

STATE, GRADIENT, SCALAR, CONSTANT = "state", "gradient", "scalar", "constant"
LEAVES = (STATE, GRADIENT, SCALAR, CONSTANT)
_EXACT: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "sqrt": np.sqrt,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
}
"""The ops whose rounding IEEE 754 defines, so that folding them here changes no bit."""


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """An op on expressions, or a leaf; equal expressions are one object.

    Attributes:
        op: its name in program texts, or one of LEAVES.
        inputs: its operands.
        value: of a leaf: the state's variable, the scalar's tensor, the constant, or the index of the gradient.
    """

    op: str
    inputs: tuple[Expression, ...] = ()
    value: Any = None


class Expressions:
    """Creates expressions over one element type.

    Args:
        dtype: numpy's type of the elements.
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = dtype
        self._made: dict[Any, Expression] = {}
        self._without_gradient: dict[Expression, Expression] = {}
        self._copies: dict[Expression, Expression] = {}

    def leaf(self, op: str, value: Any = None) -> Expression:
        """A state, the gradient or a scalar."""
        return self._one(op, (), value)

    def constant(self, value: npt.ArrayLike) -> Expression:
        """A constant, rounded to the type of the elements."""
        return self._one(CONSTANT, (), float(np.asarray(value).astype(self.dtype)))

    def make(self, op: str, *inputs: Expression) -> Expression:
        """An op on expressions; a constant if its inputs are constants and its result is equal on all hosts."""
        if op in _EXACT and all(one.op == CONSTANT for one in inputs):
            with np.errstate(all="ignore"):
                return self.constant(_EXACT[op](*(self.dtype(one.value) for one in inputs)))
        return self._one(op, inputs, None)

    def copy(self, expression: Expression) -> Expression:
        """Copies an expression over another type into this object."""
        if expression not in self._copies:
            inputs = tuple(map(self.copy, expression.inputs))
            self._copies[expression] = self._one(expression.op, inputs, expression.value)
        return self._copies[expression]

    def without_gradient(self, expression: Expression) -> Expression:
        """An expression with a zero gradient, except for the signs of zeros; for analysis, not for execution."""
        if expression not in self._without_gradient:
            if expression.op == GRADIENT:
                found = self.constant(0)
            elif expression.op in LEAVES:
                found = expression
            else:
                found = self.simplify(expression.op, *map(self.without_gradient, expression.inputs))
            self._without_gradient[expression] = found
        return self._without_gradient[expression]

    def simplify(self, op: str, *inputs: Expression) -> Expression:
        """Like `make`, with zeros and ones removed where that changes at most the signs of zeros."""
        zeros = [_is(one, 0) for one in inputs]
        if op in ("add", "sub") and zeros[1]:
            return inputs[0]
        if op == "add" and zeros[0]:
            return inputs[1]
        if op == "sub" and zeros[0]:
            return self.simplify("neg", inputs[1])
        if op == "sub" and inputs[0] is inputs[1]:
            return self.constant(0)
        if op in ("mul", "mul_no_nan") and any(zeros) or op in ("div", "div_no_nan") and zeros[0]:
            return self.constant(0)
        if op in ("mul", "div") and _is(inputs[1], 1):
            return inputs[0]
        if op == "mul" and _is(inputs[0], 1):
            return inputs[1]
        if op == "squared_difference" and any(zeros):
            return self.simplify("square", inputs[0] if zeros[1] else inputs[1])
        if op == "select" and (inputs[1] is inputs[2] or inputs[0].op == CONSTANT):
            return inputs[2] if zeros[0] else inputs[1]
        return self.make(op, *inputs)

    def _one(self, op: str, inputs: tuple[Expression, ...], value: Any) -> Expression:
        key = (op, tuple(map(id, inputs)), float(value).hex() if op == CONSTANT else value)
        if key not in self._made:
            self._made[key] = Expression(op, inputs, value)
        return self._made[key]


def _is(expression: Expression, value: float) -> bool:
    return expression.op == CONSTANT and bool(expression.value == value)


def leaves_of(expressions: list[Expression]) -> list[Expression]:
    """The distinct leaves of expressions, in the order of traversal."""
    return [one for one in in_order(expressions) if one.op in LEAVES]


def in_order(expressions: list[Expression]) -> list[Expression]:
    """Expressions and all their subexpressions, inputs first, without repetition."""
    found: dict[Expression, None] = {}

    def visit(one: Expression) -> None:
        if one in found:
            return
        for below in one.inputs:
            visit(below)
        found[one] = None

    for one in expressions:
        visit(one)
    return list(found)
