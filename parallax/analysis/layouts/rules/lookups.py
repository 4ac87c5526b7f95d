"""Layout rules of ops that look up rows or keys: gathers, tables, sorted rows."""

from __future__ import annotations

from parallax.analysis.layouts.rules.facts import REPLICATED, Fact
from parallax.analysis.layouts.rules.plain import is_plain
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.graph.lengths import Length
from parallax.graph.ops import PASSES_ON
from parallax.graph.view import node_of
from parallax.plans.layouts import Sharded


def look_up_rows(step: StepWalk, node: str) -> list[Fact] | None:
    """Gather of rows: sharded as the indices are; along an axis other than the rows', as the params are."""
    view, facts = step.view, step.inputs(node)
    params, indices = facts[0], facts[1]
    if is_plain(facts) or any(f.rank is None for f in (params, indices)) and view.op(node) == "GatherV2":
        return None
    along = 0
    if view.op(node) == "GatherV2":
        numbers = facts[2].numbers()
        if numbers is None:
            return None
        along = numbers[0] % (params.rank or 1)
    batch_dims = view.nodes[node].attr["batch_dims"].i if "batch_dims" in view.nodes[node].attr else 0
    dims = None
    if params.dims is not None and indices.dims is not None:
        dims = (*params.dims[:along], *indices.dims[batch_dims:], *params.dims[along + 1 :])
    if batch_dims:
        if params.axis == indices.axis == 0 and params.part == indices.part:
            return step.all_outputs(node, params.layout, dims)
        return None
    if indices.axis is not None and indices.part is not None:
        if params.part is not None:
            step.mixing[node] = [view.inputs(node)[0]]  # any example may look up the rows of any other
        step.require_layout(node, 0, REPLICATED)
        return step.all_outputs(node, Sharded(along + indices.axis, indices.part), dims)
    if is_partial(indices):
        return None
    step.require_layout(node, 1, REPLICATED)
    if params.is_sum:
        return step.all_outputs(node, params.layout, dims)
    if params.axis is None or params.part is None or params.axis == along:
        return None
    axis = params.axis if params.axis < along else params.axis + (indices.rank or 0) - 1
    return step.all_outputs(node, Sharded(axis, params.part), dims)


def find_in_table(step: StepWalk, node: str) -> list[Fact] | None:
    """LookupTableFind: the value of an immutable table for each key."""
    table, keys = step.view.source(step.view.inputs(node)[0]), step.inputs(node)[1]
    if step.view.op(node_of(table)) not in ("HashTable", "HashTableV2") or keys.part is None:
        return None
    step.require_layout(node, 2, REPLICATED)
    return step.all_outputs(node, keys.layout, keys.dims)


def look_up_variable(step: StepWalk, node: str) -> list[Fact] | None:
    """ResourceGather: rows of a replicated variable, by ids."""
    ids, handle = step.inputs(node)[1], node_of(step.view.inputs(node)[0])
    while step.view.op(handle) in PASSES_ON:
        handle = node_of(step.view.inputs(handle)[0])
    row = [int(dim.size) for dim in step.view.nodes[handle].attr["shape"].shape.dim[1:]]
    is_known = step.view.op(handle) == "VarHandleOp" and -1 not in row
    dims = (*ids.dims, *map(Length.of, row)) if ids.dims is not None and is_known else None
    if ids.axis is not None:
        return step.all_outputs(node, ids.layout, dims)
    step.require_layout(node, 1, REPLICATED)
    return step.all_outputs(node, REPLICATED, dims)


def search_rows(step: StepWalk, node: str) -> list[Fact] | None:
    """LowerBound and UpperBound: the place of each value in its row among those of the same row."""
    rows, values = step.inputs(node)
    if (values.axis == 1 and rows.is_same) or (values.axis == rows.axis == 0 and values.part == rows.part):
        return step.all_outputs(node, values.layout, values.dims)
    return None
