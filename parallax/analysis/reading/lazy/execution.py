"""Symbolically executes the writes of an update, as expressions of an element of the table and its slots.

Every write is followed in the order in which it runs; a read returns the value that the preceding writes left.

Gradient rows may be a range of columns of wider rows: `row_sums.py` concatenates several functions of a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from parallax.analysis.reading.lazy.elementwise import ADDED, ELEMENTWISE, LARGEST_SUM, PASSES
from parallax.analysis.reading.lazy.expressions import (
    CONSTANT,
    GRADIENT,
    SCALAR,
    STATE,
    Expression,
    Expressions,
    in_order,
    leaves_of,
)
from parallax.analysis.reading.lazy.group import SUM_OF_ROWS, NotLazyError, UpdateGroup, source_of, takes_rows
from parallax.analysis.reading.lazy.handles import LOOKUP, READ, WRITES_ROWS, Handles
from parallax.analysis.reading.lazy.order import Order
from parallax.base.types import Array
from parallax.graph.view import GraphView, Shape, node_of, split_tensor

_BOOL = 10  # types.proto
_NO_NUMBERS = ("div", "rsqrt", "reciprocal", "sqrt", "pow", "log")
"""Ops whose result may be NaN or infinite."""


class Execution:
    """The symbolic execution of a group's update.

    Attributes:
        made: creates the expressions.
        values: the new value of each state.
        gradient: (values, indices): tensors of the update's rows.
        gradients: the number of gradients in a row of `values`, concatenated.
        dense: the nodes that make the gradient dense.
        inner: the nodes that read a state or compute with the read values, all for the update's writes.

    Raises:
        NotLazyError: the update is not elementwise, or some order is undefined.
    """

    def __init__(self, view: GraphView, handles: Handles, order: Order, group: UpdateGroup) -> None:
        self._view, self._handles, self._order, self._group = view, handles, order, group
        uses = handles.uses[group.table]
        self._shape: Shape = uses.shape
        self._dtype = uses.dtype
        self.made = Expressions(tf.dtypes.as_dtype(uses.dtype).as_numpy_dtype)
        self.inner: set[str] = set()
        self.dense: list[str] = []
        self._gradients: dict[tuple[str, str], None] = {}
        self.gradients = 1
        self._expressions: dict[str, Expression] = {}
        self._after: dict[tuple[str, int], Expression] = {}
        self._base = _base_of_rows(view, group)
        self.values = [self._value(state, len(writes)) for state, writes in group.writes.items()]
        if len(self._gradients) != 1:
            raise NotLazyError(f"its gradients come as {len(self._gradients)} tensors of rows")
        (self.gradient,) = self._gradients

    def _value(self, state: str, count: int) -> Expression:
        """A state after `count` writes of it."""
        key = (state, count)
        if key not in self._after:
            self._after[key] = self._write_state(state, count) if count else self.made.leaf(STATE, state)
        return self._after[key]

    def _write_state(self, state: str, count: int) -> Expression:
        write = self._group.writes[state][count - 1]
        op, inputs = self._view.op(write), self._view.inputs(write)
        if op in WRITES_ROWS:
            added = self._added_to_rows(write, inputs[1], inputs[2])
        else:
            added = self._whole(inputs[1])
        return self.made.make(ADDED[op], self._value(state, count - 1), added) if op in ADDED else added

    def _whole(self, tensor: str) -> Expression:
        """An element of a tensor of the table's shape, or of a tensor with one element."""
        if tensor not in self._expressions:
            self._expressions[tensor] = self._expression(tensor)
        return self._expressions[tensor]

    def _expression(self, tensor: str) -> Expression:
        view, shape = self._view, self._view.shape(tensor)
        node, number = split_tensor(tensor)
        if _is_single(shape):
            return self._scalar(tensor)
        if shape != self._shape:
            raise NotLazyError(f"{self._describe_node(node)} has the shape {shape}")
        op = view.op(node)
        if op == READ:
            return self._read(node)
        if op == SUM_OF_ROWS:
            return self._sum_of_rows(node, *view.inputs(node)[:2])
        if op in ("Const", "Fill", "ZerosLike", "OnesLike", "BroadcastTo"):
            return self._fill(op, node, tensor)
        if number or not self._is_of_type(tensor):
            raise NotLazyError(f"{self._describe_node(node)} returns elements of another type")
        inputs = [self._whole(one) for one in self._elements(node)]
        if any(node_of(one) in self.inner for one in view.inputs(node)):
            self.inner.add(node)
        return self._compute(node, inputs)

    def _elements(self, node: str) -> Sequence[str]:
        """The inputs of an elementwise node."""
        op, inputs = self._view.op(node), self._view.inputs(node)
        if op in PASSES or op == "Cast":
            return inputs[:1]
        if op in ELEMENTWISE or op == "ClipByValue" or (op == "AddN" and len(inputs) <= LARGEST_SUM):
            return inputs
        raise NotLazyError(f"{self._describe_node(node)} uses more than one element of the update at a time")

    def _compute(self, node: str, inputs: Sequence[Expression]) -> Expression:
        op = self._view.op(node)
        if op in PASSES:
            return inputs[0]
        if op == "Cast":
            if not self._is_of_type(self._view.inputs(node)[0]):
                raise NotLazyError(f"{self._describe_node(node)} casts from another type")
            return inputs[0]
        if op == "ClipByValue":
            return self.made.make("max", self.made.make("min", inputs[0], inputs[2]), inputs[1])
        if op == "AddN":
            total = inputs[0]
            for one in inputs[1:]:
                total = self.made.make("add", total, one)
            return total
        return self.made.make(ELEMENTWISE[op], *inputs)

    def _read(self, node: str) -> Expression:
        """A read of a state, in full or of the gradient's rows."""
        state, order = self._handles.variable(node), self._order
        if state not in self._group.writes:
            raise NotLazyError(f"{self._describe_node(node)} reads all of {state!r}, which is not updated with it")
        if node in self._handles.uses[state].passed:
            raise NotLazyError(f"{self._describe_node(node)} is in a branch of a conditional or in a loop")
        count = 0
        for write in self._group.writes[state]:
            if order.is_before(write, node):
                count += 1
            elif not order.is_before(node, write):
                raise NotLazyError(
                    f"the order of {self._describe_node(node)} and {self._describe_node(write)} is not fixed"
                )
        self.inner.add(node)
        return self._value(state, count)

    def _sum_of_rows(self, node: str, values: str, indices: str) -> Expression:
        """Rows among zeros: a gradient, or a function of sums of equal rows."""
        if self._is_of_sums(values, indices):
            rows_added = self._added_to_rows(node, indices, values)
            if node_of(source_of(self._view, values)) in self.inner:
                self.inner.add(node)
            return rows_added
        self.dense.append(node)
        return self._gradient(values, indices)

    def _is_of_sums(self, values: str, indices: str) -> bool:
        """Whether rows are computed from sums of equal rows, and are not such sums themselves."""
        view = self._view
        tensor = source_of(view, values)
        if view.op(node_of(tensor)) not in ELEMENTWISE or columns_of(view, tensor) is not None:
            return False
        inputs = [one for one in view.inputs(node_of(tensor)) if not _is_single(view.shape(one))]
        inputs = [source_of(view, one) for one in inputs if not takes_rows(view, one, indices)]
        return all(
            columns_of(view, one) is not None or _is_sum(view, one) or self._is_of_sums(one, indices) for one in inputs
        )

    def _gradient(self, values: str, indices: str) -> Expression:
        if not self._is_of_type(values):
            raise NotLazyError(f"{self._describe_node(node_of(values))} returns gradients of another type")
        columns = columns_of(self._view, values)
        whole, number, self.gradients = (values, None, 1) if columns is None else columns
        self._gradients[source_of(self._view, whole), source_of(self._view, indices)] = None
        return self.made.leaf(GRADIENT, number)

    def _added_to_rows(self, write: str, indices: str, updates: str) -> Expression:
        """A value added to distinct rows; zero where the gradient is, if other rows are updated too."""
        if self._view.op(node_of(source_of(self._view, indices))) not in ("Unique", "UniqueV2"):
            raise NotLazyError(f"{self._describe_node(write)} may write a row more than once")
        added = self._of_rows(updates, indices)
        if self._group.is_of_rows:
            return added
        nothing = self.made.without_gradient(added)
        if nothing.op != CONSTANT or nothing.value != 0:
            raise NotLazyError(
                f"{self._describe_node(write)} changes rows by something other than a multiple of a gradient"
            )
        if not any(one.op in _NO_NUMBERS for one in in_order([added])):
            return added
        zero = self.made.constant(0)  # other rows are unchanged, even where the function is NaN
        has_gradient = [self.made.make("ne", one, zero) for one in leaves_of([added]) if one.op == GRADIENT]
        has_any_gradient = functools.reduce(lambda one, other: self.made.make("or", one, other), has_gradient)
        return self.made.make("select", has_any_gradient, added, zero)

    def _of_rows(self, tensor: str, indices: str) -> Expression:
        """An element of a tensor with the rows of the gradient."""
        view = self._view
        tensor = source_of(view, tensor)
        node = node_of(tensor)
        if tensor == self._base or columns_of(view, tensor) is not None or _is_sum(view, tensor):
            return self._gradient(tensor, indices)
        if _is_single(view.shape(tensor)):
            return self._scalar(tensor)
        if takes_rows(view, tensor, indices):
            whole = view.inputs(node)[0]
            expression = self._read(node) if view.op(node) == LOOKUP else self._whole(whole)
            if node_of(whole) in self.inner:
                self.inner.add(node)
            return expression
        inputs = [self._of_rows(one, indices) for one in self._elements(node)]
        if any(node_of(one) in self.inner for one in view.inputs(node)):
            self.inner.add(node)
        return self._compute(node, inputs)

    def _scalar(self, tensor: str) -> Expression:
        """A tensor with one element; constants are folded, in the type of the elements."""
        view = self._view
        tensor = source_of(view, tensor)
        node = node_of(tensor)
        if not self._is_of_type(tensor):
            raise NotLazyError(f"{self._describe_node(node)} returns a scalar of another type")
        known = _constant(view, tensor)
        if known is not None:
            return self.made.constant(known.reshape(-1)[0])
        if view.op(node) in ELEMENTWISE and all(_is_single(view.shape(one)) for one in view.inputs(node)):
            if all(self._is_of_type(one) for one in view.inputs(node)):
                folded = self.made.make(ELEMENTWISE[view.op(node)], *map(self._scalar, view.inputs(node)))
                if folded.op == CONSTANT:
                    return folded
        return self.made.leaf(SCALAR, tensor)

    def _fill(self, op: str, node: str, tensor: str) -> Expression:
        view = self._view
        if op == "Const":
            value = np.asarray(_constant(view, tensor))
            if value.size and np.all(value == value.reshape(-1)[0]):
                return self.made.constant(value.reshape(-1)[0])
            raise NotLazyError(f"{self._describe_node(node)} has a different value for each row")
        if op in ("ZerosLike", "OnesLike"):
            self._whole(view.inputs(node)[0])
            if node_of(view.inputs(node)[0]) in self.inner:
                self.inner.add(node)
            return self.made.constant(op == "OnesLike")
        return self._whole(view.inputs(node)[1 if op == "Fill" else 0])

    def _is_of_type(self, tensor: str) -> bool:
        return self._view.dtype(tensor) in (self._dtype, _BOOL)

    def _describe_node(self, node: str) -> str:
        return f"op {self._view.op(node)} {node!r}"


def _constant(view: GraphView, tensor: str) -> Array | None:
    """The value of a constant, cast as in the graph (numpy array); None for other tensors."""
    node = node_of(source_of(view, tensor))
    if view.op(node) == "Const":
        return np.asarray(tf.make_ndarray(view.nodes[node].attr["value"].tensor))
    if view.op(node) != "Cast":
        return None
    value = _constant(view, view.inputs(node)[0])
    return None if value is None else value.astype(tf.dtypes.as_dtype(view.dtype(f"{node}:0")).as_numpy_dtype)


def _is_single(shape: Shape) -> bool:
    return shape is not None and all(length == 1 for length in shape)


def _is_sum(view: GraphView, tensor: str) -> bool:
    """Whether a tensor consists of sums of equal rows."""
    node = node_of(tensor)
    return view.op(node) == SUM_OF_ROWS and view.op(node_of(source_of(view, view.inputs(node)[1]))) == "Unique"


def _base_of_rows(view: GraphView, group: UpdateGroup) -> str:
    """The tensor of rows of which all rows added by an update are elementwise functions; empty for none."""
    updates = [(view.inputs(write)[1], view.inputs(write)[2]) for write in group.all_writes if _by_rows(view, write)]
    met: dict[str, None] = {}

    def below(tensor: str, indices: str) -> Sequence[str]:
        node = node_of(tensor)
        if takes_rows(view, tensor, indices):
            return ()
        inputs = view.inputs(node) if view.op(node) in (*ELEMENTWISE, "AddN", "ClipByValue") else ()
        return [source_of(view, one) for one in inputs if not _is_single(view.shape(one))]

    def visit(tensor: str, indices: str) -> None:
        for one in below(tensor, indices):
            if one not in met:
                visit(one, indices)
        met[tensor] = None

    def is_from(tensor: str, base: str, indices: str) -> bool:
        if tensor == base or takes_rows(view, tensor, indices):
            return True
        inputs = below(tensor, indices)
        return bool(inputs) and all(is_from(one, base, indices) for one in inputs)

    for indices, tensor in updates:
        visit(source_of(view, tensor), indices)
    for base in met:
        if not takes_rows(view, base, updates[0][0]):
            if all(is_from(source_of(view, tensor), base, indices) for indices, tensor in updates):
                return base
    return ""


def _by_rows(view: GraphView, write: str) -> bool:
    return view.op(write) in WRITES_ROWS


def columns_of(view: GraphView, tensor: str) -> tuple[str, int, int] | None:
    """(the wider rows `[n, count * width]`, the index of these columns, count); None for any other tensor."""
    tensor = source_of(view, tensor)
    if view.op(node_of(tensor)) == "Reshape":
        tensor = view.inputs(node_of(tensor))[0]
    node, number = split_tensor(tensor)
    if view.op(node) != "Split" or view.constant(view.inputs(node)[0]) != 1:
        return None
    return view.inputs(node)[1], number, view.nodes[node].attr["num_split"].i
