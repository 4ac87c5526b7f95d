"""Pass: tracks the rows of each table that updates have touched, for checkpoints of these rows alone.

The pass adds a bool for each local row, true from an update until it is cleared. An op that writes rows by number sets
their bools first, in the same run; an op that writes a whole variable sets all. Variables that are written at the same
row numbers, as a table and its slots are, share their bools. Excluded are variables that an op may write in another
way: those that are updated lazily (rows_up_to_date.py), whose other rows change too, and those that are passed into a
loop or a function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from parallax.base.errors import TransformError
from parallax.base.types import GraphDef, NodeDef
from parallax.graph.ops import CONTROL_FLOW, READS, source_of, state_op
from parallax.graph.row_updates import UPDATE_ROWS
from parallax.graph.view import VARIABLES, GraphView, node_of, tensor_name
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.editor import SCOPE, Editor

_PASSES_ON = ("Identity", "RefIdentity", "Switch", "RefSwitch")
_NAME = f"{SCOPE}/touched"


@dataclass(frozen=True, slots=True)
class RememberedRows:
    """Variables that are updated at the same row numbers, and the record of the touched rows.

    Attributes:
        variables: their ops in the user's graph.
        marks: the op that records for the rows of this worker; empty where only servers have rows.
        partitions: those that record for the partitions on servers.
        clear: resets the record on this worker.
        clear_partitions: reset it on servers.
    """

    variables: tuple[str, ...]
    marks: str
    partitions: tuple[str, ...]
    clear: str
    clear_partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowMemory:
    """The touched-row records of a worker's graph.

    Attributes:
        tables: the variables whose touched rows are known; the same on all workers.
        whole: variable op -> why its touched rows are unknown, for those that are updated by row; likewise.
    """

    tables: tuple[RememberedRows, ...] = ()
    whole: tuple[tuple[str, str], ...] = ()


NO_ROW_MEMORY = RowMemory()
"""For a graph without touched-row records."""


def remember_touched_rows(graph_def: GraphDef, editor: Editor, rewrites: Rewrites) -> RowMemory:
    """Makes updates record the rows that they touch.

    Args:
        graph_def: a worker's finished graph; modified in place.
        editor: its editor.
        rewrites: its rewrites.

    Raises:
        TransformError: when a pass writes such a variable in an unknown way.
    """
    tables_by_member = {member: table.op for table in rewrites.tables for member in table.members}
    groups, whole = _groups(editor.view, tables_by_member)
    nodes = {node.name: node for node in graph_def.node}
    writers = _writers_by_variable(graph_def, nodes)
    tables = []
    for members in groups:
        parts = [tuple(str(p.op.name) for p in editor.partitions.get(member, ())) for member in members]
        places = [members] if not parts[0] else list(zip(*parts, strict=True))
        made = [_Marks.create(graph_def, nodes[place[0]]) for place in places]
        for marks, place in zip(made, places, strict=True):
            for writer in dict.fromkeys(one for variable in place for one in writers.get(variable, ())):
                marks.before(nodes[writer])
        names, clears = [one.name for one in made], [one.clear() for one in made]
        if parts[0]:
            tables.append(RememberedRows(tuple(members), "", tuple(names), "", tuple(clears)))
        else:
            tables.append(RememberedRows(tuple(members), names[0], (), clears[0], ()))
    return RowMemory(tuple(tables), tuple(sorted(whole.items())))


def _groups(view: GraphView, tables: Mapping[str, str]) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """The variables that are updated at the same row numbers; and why others that are updated by row are excluded.

    Args:
        view: the user's graph.
        tables: variable op -> the table that it is sharded with, for those that are not replicated.
    """
    members_by_key: dict[tuple[object, ...], list[str]] = {}
    whole: dict[str, str] = {}
    for variable in (node for node in view.nodes if view.op(node) in VARIABLES):
        numbers, reason = _row_numbers(view, variable)
        shape = view.nodes[variable].attr["shape"].shape
        if not numbers or not shape.dim or any(dim.size < 0 for dim in shape.dim):
            continue
        if reason:
            whole[variable] = reason
            continue
        members_by_key.setdefault((numbers, shape.dim[0].size, tables.get(variable, "")), []).append(variable)
    return [tuple(members) for members in members_by_key.values()], whole


def _row_numbers(view: GraphView, variable: str) -> tuple[frozenset[str], str]:
    """The tensors of the row numbers at which a variable is written; and why there may be others."""
    numbers, reason = set(), ""
    waiting = [f"{variable}:0"]
    while waiting:
        tensor = waiting.pop()
        for edge in view.consumers(tensor):
            op = view.op(edge.node)
            if op == UPDATE_ROWS:
                numbers.add(view.inputs(edge.node)[1])
                reason = f"{edge.node} changes rows that no gradient touches"
                continue
            if op in _PASSES_ON:
                waiting += view.outputs(edge.node)
                continue
            described = state_op(op, len(view.inputs(edge.node)))
            if described is not None and described.indices is not None and edge.slot in described.state:
                numbers.add(view.inputs(edge.node)[described.indices])
            elif (described is not None and described.kind == "unknown") or (op in CONTROL_FLOW and op not in READS):
                reason = reason or f"{edge.node} ({op}) may write it"
    return frozenset(numbers), reason


def _writers_by_variable(graph_def: GraphDef, nodes: Mapping[str, NodeDef]) -> dict[str, list[str]]:
    """Variable op of a finished graph -> the nodes that write it, in the order of the graph."""
    writers_by_variable: dict[str, list[str]] = {}
    for node in graph_def.node:
        described = state_op(node.op, sum(not name.startswith("^") for name in node.input))
        for slot in described.state if described is not None else ():
            writers_by_variable.setdefault(source_of(node.input[slot], nodes), []).append(node.name)
    return writers_by_variable


@dataclass(frozen=True, slots=True)
class _Marks:
    """The bools of one variable op's rows."""

    graph_def: GraphDef
    name: str
    rows: int
    device: str

    @classmethod
    def create(cls, graph_def: GraphDef, variable: NodeDef) -> _Marks:
        """Adds the bools of a variable's rows."""
        marks = cls(graph_def, f"{_NAME}/{variable.name}", variable.attr["shape"].shape.dim[0].size, variable.device)
        handle = marks._add("VarHandleOp", "", [])
        handle.attr["dtype"].type = types_pb2.DT_BOOL
        handle.attr["shape"].shape.dim.add().size = marks.rows
        handle.attr["shared_name"].s = marks.name.encode()
        value = marks._add("Const", "true", [])
        value.attr["dtype"].type = types_pb2.DT_BOOL
        value.attr["value"].tensor.dtype = types_pb2.DT_BOOL
        value.attr["value"].tensor.tensor_shape.SetInParent()
        value.attr["value"].tensor.bool_val.append(True)
        size = marks._add("Const", "size", [])
        size.attr["dtype"].type = types_pb2.DT_INT64
        size.attr["value"].tensor.dtype = types_pb2.DT_INT64
        size.attr["value"].tensor.tensor_shape.dim.add().size = 1
        size.attr["value"].tensor.int64_val.append(marks.rows)
        return marks

    def before(self, writer: NodeDef) -> None:
        """Makes a writer wait until the rows that it writes are marked, in all runs that contain it.

        Raises:
            TransformError: when these rows are unknown.
        """
        described = state_op(writer.op, sum(not name.startswith("^") for name in writer.input))
        if described is None or described.value is None:
            raise TransformError(
                f"{writer.name!r} ({writer.op}) writes a table without saying which rows. Set "
                "CheckPointConfig.whole_every to 1."
            )
        if described.indices is None:
            value = node_of(tensor_name(writer.input[described.value]))
            marked = self._all(f"all/{writer.name}", "true", [f"^{value}"])
        else:
            marked = self._add(
                "ResourceScatterUpdate", f"rows/{writer.name}", [self.name, writer.input[described.indices]]
            )
            marked.input.append(f"{self.name}/true")
            marked.attr["dtype"].type = types_pb2.DT_BOOL
            marked.attr["Tindices"].type = writer.attr["Tindices"].type
        writer.input.append(f"^{marked.name}")

    def clear(self) -> str:
        """Adds an op that resets all; returns its name."""
        value = self._add("LogicalNot", "false", [f"{self.name}/true"])
        return str(self._all("clear", value.name.removeprefix(f"{self.name}/"), []).name)

    def _all(self, word: str, value: str, waits: list[str]) -> NodeDef:
        """Sets all bools."""
        filled = self._add("Fill", f"{word}/filled", [f"{self.name}/size", f"{self.name}/{value}", *waits])
        filled.attr["T"].type = types_pb2.DT_BOOL
        filled.attr["index_type"].type = types_pb2.DT_INT64
        made = self._add("AssignVariableOp", word, [self.name, filled.name])
        made.attr["dtype"].type = types_pb2.DT_BOOL
        return made

    def _add(self, op: str, word: str, inputs: list[str]) -> NodeDef:
        name = f"{self.name}/{word}" if word else self.name
        made = self.graph_def.node.add(name=name, op=op, device=self.device)
        made.input.extend(inputs)
        return made
