"""Groups the variables that an update of a table writes together: the table and its slots, and the writes of each.

An update that must stay unchanged raises NotLazyError with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallax.analysis.reading.lazy.elementwise import ELEMENTWISE, PASSES
from parallax.analysis.reading.lazy.handles import LOOKUP, READ, WRITES_ROWS, Handles
from parallax.analysis.reading.lazy.order import Order
from parallax.graph.ops import state_op
from parallax.graph.view import GraphView, node_of

SUM_OF_ROWS = "UnsortedSegmentSum"
_ELEMENT_TYPES = (1, 2)  # types.proto: float32, float64
_WALKED = (*ELEMENTWISE, *PASSES, "AddN", "Cast", "Switch", "Merge", "ClipByValue", "ZerosLike", "OnesLike")


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """The variables that one update writes.

    Attributes:
        table: the variable whose rows are looked up.
        writes: by variable, the table first: the nodes that write it, in order.
        is_of_rows: whether it leaves all rows without a gradient unchanged.
    """

    table: str
    writes: dict[str, tuple[str, ...]]
    is_of_rows: bool = False

    @property
    def states(self) -> tuple[str, ...]:
        """The table and its slots."""
        return tuple(self.writes)

    @property
    def all_writes(self) -> tuple[str, ...]:
        """The writes of all states."""
        return tuple(write for writes in self.writes.values() for write in writes)


@dataclass(frozen=True, slots=True)
class ConnectedVariables:
    """Variables whose values flow into one another elementwise.

    Attributes:
        table: the start of the search.
        variables: the table and the connected variables, in the order of the graph.
        by_rows: the writes with a gradient of rows as input.
    """

    table: str
    variables: tuple[str, ...]
    by_rows: tuple[str, ...]


def find_connected(view: GraphView, handles: Handles) -> list[ConnectedVariables]:
    """For every table with a gradient of rows written to it or to a slot: the connected variables."""
    tables = [name for name, uses in handles.uses.items() if uses.lookups and uses.writes and len(uses.shape) > 0]
    connected_by_table = {table: _connect(view, handles, table) for table in tables}
    slots = {
        slot
        for table, one in connected_by_table.items()
        for slot in one.variables
        if slot in connected_by_table and table not in connected_by_table[slot].variables
    }
    return [one for table, one in connected_by_table.items() if one.by_rows and table not in slots]


def _connect(view: GraphView, handles: Handles, table: str) -> ConnectedVariables:
    shape = handles.uses[table].shape
    met: dict[str, None] = {table: None}
    by_rows: dict[str, None] = {}
    waiting = [table]
    while waiting:
        uses = handles.uses[waiting.pop()]
        others = []
        for write in uses.writes:
            read, sums = flows_into(view, write, shape)
            others += [handles.variable(node) for node in read]
            if sums or view.op(write) in WRITES_ROWS:
                by_rows[write] = None
        others += [handles.variable(node) for read in uses.reads for node in _flows_from(view, handles, read, shape)]
        fresh = [one for one in others if one in handles.uses and one not in met and handles.uses[one].shape == shape]
        for one in dict.fromkeys(fresh):
            met[one] = None
            waiting.append(one)
    return ConnectedVariables(table, tuple(name for name in handles.uses if name in met), tuple(by_rows))


def flows_into(view: GraphView, write: str, shape: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """The reads of states, and the sums of rows, from which the value of a write is computed elementwise."""
    by_rows = view.op(write) in WRITES_ROWS
    reads, sums = [], []
    waiting = [view.inputs(write)[2 if by_rows else 1]]
    met = {*waiting}
    while waiting:
        tensor = waiting.pop()
        node = node_of(tensor)
        op = view.op(node)
        if op == READ or op == LOOKUP and by_rows and takes_rows(view, tensor, view.inputs(write)[1]):
            reads.append(node)
        elif op == SUM_OF_ROWS and may_have_shape(view, tensor, shape):
            sums.append(node)
        elif op in _WALKED or by_rows and takes_rows(view, tensor, view.inputs(write)[1]):
            more = [one for one in view.inputs(node) if one not in met and _has_rows(view, one, shape)]
            met.update(more)
            waiting += more
    return reads, sums


def may_have_shape(view: GraphView, tensor: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor has a table's shape, or may have it: in a branch the number of its rows may be unknown."""
    return _has_rows(view, tensor, shape) and (view.shape(tensor) or (0,))[0] in (None, shape[0])


def _has_rows(view: GraphView, tensor: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor consists of rows like those of a table, whatever their number."""
    tensor_shape = view.shape(tensor)
    return tensor_shape is not None and len(tensor_shape) == len(shape) and tensor_shape[1:] == shape[1:]


def takes_rows(view: GraphView, tensor: str, indices: str) -> bool:
    """Whether a tensor consists of the rows at given indices."""
    node = node_of(tensor)
    if view.op(node) not in (LOOKUP, "GatherV2") or view.nodes[node].attr["batch_dims"].i:
        return False
    axis = 0 if view.op(node) == LOOKUP else view.constant(view.inputs(node)[2])
    return axis is not None and int(axis) == 0 and source_of(view, view.inputs(node)[1]) == source_of(view, indices)


def source_of(view: GraphView, tensor: str) -> str:
    """The tensor behind ops that pass it on unchanged."""
    while view.op(node_of(tensor)) in PASSES:
        tensor = view.inputs(node_of(tensor))[0]
    return tensor


def _flows_from(view: GraphView, handles: Handles, read: str, shape: tuple[int, ...]) -> Iterator[str]:
    """The writes of full variables whose values are computed elementwise from a read."""
    waiting, met = [read], {read}
    while waiting:
        for tensor in view.outputs(waiting.pop()):
            for edge in view.consumers(tensor) if view.shape(tensor) == shape else ():
                if edge.node in met:
                    continue
                met.add(edge.node)
                if edge.slot == 1 and handles.variable(edge.node):
                    yield edge.node
                elif view.op(edge.node) in _WALKED:
                    waiting.append(edge.node)


def order_of(view: GraphView, handles: Handles, connected: list[ConnectedVariables]) -> Order:
    """The order of all ops on connected variables."""
    nodes = []
    for variable in dict.fromkeys(name for one in connected for name in one.variables):
        uses = handles.uses[variable]
        nodes += [*uses.writes, *uses.reads, *uses.lookups, *uses.others]
    return Order(view, nodes)


def group_writes(handles: Handles, order: Order, connected: ConnectedVariables) -> dict[str, list[str]]:
    """The writes that run together with those of a gradient's rows, by variable."""
    seeds = order.bits(connected.by_rows)
    writes = {}
    for name in connected.variables:
        group = [write for write in handles.uses[name].writes if order.have_common_dependent(write, seeds)]
        if group:
            writes[name] = group
    return writes


def are_of_rows(view: GraphView, writes: dict[str, list[str]]) -> bool:
    """Whether all writes are row-wise."""
    return all(view.op(write) in WRITES_ROWS for names in writes.values() for write in names)


def group_of(view: GraphView, handles: Handles, order: Order, table: str, writes: dict[str, list[str]]) -> UpdateGroup:
    """An update of a table and its slots.

    Args:
        view: the graph.
        handles: the uses of its variables' handles.
        order: of all ops on them.
        table: the variable whose rows are looked up.
        writes: by variable.

    Raises:
        NotLazyError: they do not form one update of one table.
    """
    every = [write for own in writes.values() for write in own]
    _check_variables(view, handles, order, table, writes)
    _check_run_together(view, order, every)
    in_order = {name: _in_order(view, order, own) for name, own in writes.items()}
    ordered = {name: in_order[name] for name in (table, *in_order) if name in in_order}
    return UpdateGroup(table, ordered, are_of_rows(view, writes))


def _check_variables(view: GraphView, handles: Handles, order: Order, table: str, writes: dict[str, list[str]]) -> None:
    every = order.bits([write for own in writes.values() for write in own])
    for name, names in writes.items():
        uses = handles.uses[name]
        for write in names:
            if write in uses.passed:
                raise NotLazyError(f"its update, {_show(view, write)}, is in a branch of a conditional or in a loop")
        for other in uses.others:
            if state_op(view.op(other), len(view.inputs(other))) is None:  # it reads, or its function may
                raise NotLazyError(f"{_show(view, other)} uses the variable {name!r} in a way that is not supported")
            if order.have_common_dependent(other, every):
                raise NotLazyError(f"{_show(view, other)} uses the variable {name!r} in the same run")
        if uses.dtype not in _ELEMENT_TYPES or uses.dtype != handles.uses[table].dtype:
            raise NotLazyError(f"{name!r} is neither float32 nor float64, or has another type than its table")


def _in_order(view: GraphView, order: Order, writes: list[str]) -> tuple[str, ...]:
    """Writes of one variable in execution order."""
    ordered = sorted(writes, key=lambda write: sum(order.is_before(other, write) for other in writes))
    for one, other in zip(ordered, ordered[1:], strict=False):
        if not order.is_before(one, other):
            raise NotLazyError(
                f"the order of {_show(view, one)} and {_show(view, other)}, which write the same variable, is not fixed"
            )
    return tuple(ordered)


def _check_run_together(view: GraphView, order: Order, writes: list[str]) -> None:
    """Requires that all writes run or none does, for any fetch of a node at an end of the graph."""
    every = order.bits(writes)
    for node in order.ends_after(writes):
        if view.op(node) not in (READ, "Const") and order.has(node, every) != every:
            missing = next(write for write in writes if not order.has(node, order.bits([write])))
            raise NotLazyError(
                f"{_show(view, node)} can run without {_show(view, missing)}, which belongs to the same update"
            )


def _show(view: GraphView, node: str) -> str:
    return f"op {view.op(node)} {node!r}"


class NotLazyError(Exception):
    """An update cannot be converted to a row-wise one; the text is a short sentence that names the op."""
