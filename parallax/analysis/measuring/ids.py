"""Finds the id tensors of a graph's lookups: for each variable looked up by row, the tensors that select its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from parallax.analysis.measuring.count_ids import LookedUpIds, merge_lookups, table_profile
from parallax.analysis.reading.capture import CapturedGraph, variable_of_tensor
from parallax.base.errors import GraphError
from parallax.base.types import Value
from parallax.cluster.profiles import TableProfile
from parallax.graph.control_flow import branches_of
from parallax.graph.ops import state_op
from parallax.graph.spec import GraphSpec, Part, VariableClass, VariableSpec
from parallax.graph.view import GraphView, node_of


@dataclass(frozen=True, slots=True)
class IdTensor:
    """The ids of one lookup.

    Attributes:
        lookup: the node that reads them; where a gradient has rows and no lookup is found, the node that produces them.
        tensor: `[...]` integers, rows of the part; for a GatherNd `[..., d]`, the row first.
        part: the variable op whose rows they are.
        nested: whether it is a GatherNd's.
    """

    lookup: str
    tensor: str
    part: Part
    nested: bool = False


@dataclass(frozen=True, slots=True)
class TableIds:
    """The lookups of one variable.

    Attributes:
        name: of the variable.
        first_rows: the first row of each of its parts.
        tensors: the ids, one entry a lookup.
    """

    name: str
    first_rows: tuple[int, ...]
    tensors: tuple[IdTensor, ...]


def list_tables(captured: CapturedGraph, spec: GraphSpec, needed: Set[str] | None = None) -> tuple[TableIds, ...]:
    """The variables that training looks up by row, and their id tensors, in the order of their names.

    Args:
        captured: the graph.
        spec: its spec.
        needed: only lookups among these nodes; None for all lookups of training.
    """
    tables = []
    for variable in spec.variables:
        tensors = tuple(t for t in _find_id_tensors(captured, variable) if needed is None or t.lookup in needed)
        if tensors:
            tables.append(TableIds(variable.name, tuple(part.row_offset for part in variable.parts), tensors))
    return tuple(tables)


def _find_id_tensors(captured: CapturedGraph, variable: VariableSpec) -> list[IdTensor]:
    view, parts = captured.view, {part.op: part for part in variable.parts}
    id_tensors = []
    for lookup in variable.lookups:
        inputs = view.inputs(lookup)
        if view.op(lookup) == "GatherV2" and _read_axis(view, inputs[2]) != 0:
            continue
        part = parts[variable_of_tensor(view, captured.variables, inputs[0])]
        id_tensors.append(IdTensor(lookup, inputs[1], part, view.op(lookup).endswith("GatherNd")))
    seen = {one.part.op for one in id_tensors}
    for source in variable.gradients:
        if source.indices is not None and source.part not in seen:
            id_tensors.append(IdTensor(node_of(source.indices), source.indices, parts[source.part]))
    return id_tensors


def _read_axis(view: GraphView, tensor: str) -> int | None:
    axis = view.constant(tensor)
    return None if axis is None else int(axis)


def collect_ids(table: TableIds, values: Sequence[Value], worker: int, step: int) -> LookedUpIds:
    """A worker's requests to a table, from fetched ids.

    Args:
        table: the table of the lookups.
        values: the value of each id tensor, in their order.
        worker: the worker, for errors.
        step: the step, for errors.

    Raises:
        GraphError: when an id is not a row of the table.
    """
    pieces = []
    for one, value in zip(table.tensors, values, strict=True):
        ids = np.asarray(value)[..., 0] if one.nested else np.asarray(value)
        wrong = ids[(ids < 0) | (ids >= one.part.rows)]
        if wrong.size:
            raise GraphError(
                f"Worker {worker} looks up id {int(wrong[0])} in step {step}, but table {one.part.op!r} has only "
                f"{one.part.rows} rows. Correct the feeds or the vocabulary."
            )
        pieces.append(ids.astype(np.int64) + one.part.row_offset)
    return merge_lookups(pieces)


def table_profiles(
    tables: Sequence[TableIds], steps: Sequence[Sequence[Sequence[LookedUpIds]]]
) -> tuple[TableProfile, ...]:
    """The profiles of some tables.

    Args:
        tables: the tables.
        steps: the requests, `[step][worker][table]`.
    """
    return tuple(
        table_profile(table.name, table.first_rows, [[seen[number] for seen in step] for step in steps])
        for number, table in enumerate(tables)
    )


def explain_unmeasured(reasons: Mapping[str, str]) -> list[str]:
    """A sentence for each table that was not measured, by its name."""
    return [f"{name}: not measured, {reason}" for name, reason in sorted(reasons.items())]


def find_fetchable_tables(
    captured: CapturedGraph, tables: Sequence[TableIds]
) -> tuple[tuple[TableIds, ...], dict[str, str]]:
    """The tables whose ids can be fetched, and for each other one why not.

    A tensor inside a TensorFlow 1 loop or conditional has no value, or many, by the end of a run.
    """
    branches, reasons = branches_of(captured.view), {}
    for table in tables:
        for one in table.tensors:
            if branches[node_of(one.tensor)]:
                reasons[table.name] = f"its lookup {one.lookup} is inside a loop or conditional"
    return tuple(table for table in tables if table.name not in reasons), reasons


def explain_trained_ids(captured: CapturedGraph, spec: GraphSpec, table: TableIds, fed: frozenset[str]) -> str:
    """Why a table's ids cannot be known without training; empty when they can.

    Args:
        captured: the graph.
        spec: its spec.
        table: the table of the ids.
        fed: tensors that are fed, and so have no ancestors.
    """
    view = captured.view
    tensors = [one.tensor for one in table.tensors if one.tensor not in fed]
    path = view.ancestors({node_of(tensor) for tensor in tensors}, fed)
    written = _list_trained_variables(spec)
    for node in view.topological_order():
        if node not in path:
            continue
        if node in written and not _find_writers(captured, node) <= path:
            return f"its ids depend on variable {written[node]}, which training changes"
        if view.op(node).startswith("Mutable") and not _find_inserts(view, node) <= path:
            return f"its ids depend on the lookup table {node}, which is filled elsewhere"
    return ""


def _list_trained_variables(spec: GraphSpec) -> dict[str, str]:
    """Variable op -> the user's name, for variables that a training step writes."""
    writer_by_table = {}
    for variable in spec.variables:
        if variable.updates or variable.is_counter or variable.cls == VariableClass.LOCAL:
            writer_by_table.update({part.op: variable.name for part in variable.parts})
        writer_by_table.update({op: slot.name for slot in variable.slots for op in slot.ops})
    return writer_by_table


def _find_writers(captured: CapturedGraph, variable: str) -> set[str]:
    """The nodes that write a variable, except for its initial value."""
    view, writers = captured.view, set()
    for edge in view.consumers(f"{variable}:0"):
        state = state_op(view.op(edge.node), len(view.inputs(edge.node)))
        if state is not None and edge.slot in state.state:
            writers.add(edge.node)
    return writers - {captured.variables[variable].initializer}


def _find_inserts(view: GraphView, table: str) -> set[str]:
    return {edge.node for edge in view.consumers(f"{table}:0") if "Insert" in view.op(edge.node)}
