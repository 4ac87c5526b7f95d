"""State rules of ops that write variables: the values that each kind of variable may receive.

Shared state (trained variables and their slots) accepts only values that are equal on all workers, or the local rows of
a table that it is sharded with. An update of a table accepts `touched` rows unchanged; gradient rows of the global
batch (`joined`) are pushed there, and the update's other variables become slots of the table. A full value assigned to
a table is sliced. For any other variable, gradient rows are collected from all workers. An assigned value that is fed
and not computed from the old value becomes worker 0's. Any other writer makes an untrained variable per-worker, and is
refused for a trained one. An untrained variable that gradients depend on accepts only values of the global batch, or
rows of each worker's own examples.
"""

from __future__ import annotations

from parallax.analysis.propagation.states import (
    SAME,
    AtOwners,
    Handle,
    Indices,
    Local,
    Opaque,
    Plain,
    Rows,
    State,
    TouchedIndices,
    TouchedRows,
    Values,
)
from parallax.analysis.propagation.walk import Merge, NoRule, Walk, are_paired, part_of, set_handle
from parallax.analysis.propagation.worker_state import check_read_by_training
from parallax.base.errors import GraphError
from parallax.graph.ops import ADDITIVE_SCATTERS, StateOp, state_op, takes_functions, takes_state
from parallax.graph.row_updates import UPDATES_OF_ROWS
from parallax.graph.view import Edge, node_of
from parallax.plans.rewrites import Broadcast

_RESOURCE = 20  # types.proto


def visit(walk: Walk, node: str, op: str) -> bool:
    """Checks and records the requirements of a state-writing op; returns False for every other op."""
    state = state_op(op, len(walk.view.inputs(node)))
    if state is None:
        return _check_functions(walk, node, op)
    handles = [walk.state_at(node, slot) for slot in state.state]
    if not isinstance(handles[0], Handle):
        _refuse_hidden_variables(walk, node, state)
        return False  # a queue, a hash table: no variable of the graph
    variables = [h.variable for h in handles if isinstance(h, Handle)]
    _check_condition(walk, node, variables)
    _check_hyperparameters(walk, node, state, variables)
    if variables[0] in walk.assumptions.table_of:
        _write_rows(walk, node, state, variables)
    else:
        _write_whole(walk, node, state, variables)
    set_handle(walk, node, variables[0])  # references are passed through
    return True


def _check_condition(walk: Walk, node: str, variables: list[str]) -> None:
    """Requires that shared state is written by all workers or by none."""
    branches, op = walk.facts.branches[node], walk.view.op(node)
    if (
        not branches
        or node in walk.facts.initial
        or not any(v in walk.facts.shared or v in walk.assumptions.table_of for v in variables)
    ):
        return
    if any(branch.is_loop and not walk.agrees((branch,)) for branch in branches):
        raise GraphError(
            f"{op} {node!r} updates variable {variables[0]!r} in a loop, which may run a different number of times on "
            "each worker. Leave the first dimension of the batch open (None), update the variable after the loop, or "
            "unroll the loop in Python."
        )
    _refuse_opaque(walk.condition(branches))
    for branch in branches:
        if not walk.agrees((branch,)):
            raise GraphError(
                f"{op} {node!r} updates variable {variables[0]!r} only if {branch.predicate!r}, which depends on each "
                "worker's own batch, but either all workers must update it or none. Compute the condition from "
                "gradients, variables or counters, which are equal on all workers, or feed it as a scalar."
            )
    for variable in variables:
        table = walk.facts.tables.get(walk.assumptions.table_of.get(variable, ""))
        if table is not None and table.servers:
            raise NoRule(table.op, f"{op} {node!r} writes it in a branch of a conditional")


def _check_functions(walk: Walk, node: str, op: str) -> bool:
    """A loop or another op whose functions write variables: correct only where nothing differs between workers."""
    if not takes_functions(op):
        return False
    slots = sorted(walk.facts.functions.written_slots(walk.view.nodes[node]))
    variables = [s.variable for s in (walk.state_at(node, slot) for slot in slots) if isinstance(s, Handle)]
    if not variables:
        return False
    inputs = [_find_value(walk, node, slot) for slot in range(len(walk.view.inputs(node)))]
    random_functions = [
        d for f in walk.facts.functions.of_node(walk.view.nodes[node]) if (d := walk.facts.functions.differing_op(f))
    ]
    for variable in variables:
        if variable in walk.assumptions.table_of:
            raise NoRule(walk.assumptions.table_of[variable], f"{op} {node!r} writes it in a function")
    if (
        not random_functions
        and all(s == SAME or isinstance(s, Handle) for s in inputs)
        and not set(variables) & walk.assumptions.local_variables
    ):
        return False
    trained = sorted(set(variables) & walk.facts.shared)
    if trained:
        raise GraphError(
            f"{op} {node!r} writes variable {trained[0]!r} in its body, and uses values that depend on each worker's "
            "own batch. Update the variable outside of loops and functions."
        )
    for variable in variables:
        check_read_by_training(walk, node, range(len(inputs)), variable)
    walk.new_local_variables.update(variables)
    return False


def _refuse_hidden_variables(walk: Walk, node: str, state: StateOp) -> None:
    """Refuses a write to an unidentified variable: one behind an op without a rule would go unnoticed."""
    view, waiting, seen = walk.view, [walk.view.inputs(node)[slot] for slot in state.state], set[str]()
    while waiting:
        name = node_of(waiting.pop())
        if name in walk.facts.captured.variables:
            raise GraphError(
                f"{view.op(node)} {node!r} must write one known variable, but it may write {name!r} or another one. "
                "Write each variable with a separate op."
            )
        if name not in seen:
            seen.add(name)
            waiting += [t for t in view.inputs(name) if view.dtype(t) == _RESOURCE or view.op(name).startswith("Ref")]


def _find_value(walk: Walk, node: str, slot: int) -> State:
    """The state of an input that is read as a value."""
    state = walk.state_at(node, slot)
    if isinstance(state, Handle) and not takes_state(walk.view.op(node), slot):
        return walk.value_state(state.variable)
    return state


def _check_hyperparameters(walk: Walk, node: str, state: StateOp, variables: list[str]) -> None:
    """Requires that learning rates and similar scalars are equal on all workers."""
    for slot in state.others:
        other = walk.require_same(_find_value(walk, node, slot))
        if state.kind == "unknown" or other == SAME:
            continue
        _refuse_opaque(other)
        tensor = walk.view.inputs(node)[slot]
        raise GraphError(
            f"{walk.view.op(node)} {node!r} updates variable {variables[0]!r} with {tensor!r}, which depends on each "
            f"worker's own batch, but the parameters of an update must be equal on all workers. Compute {tensor!r} "
            "from variables, constants or scalar placeholders."
        )


def _write_rows(walk: Walk, node: str, state: StateOp, variables: list[str]) -> None:
    """A write to a variable whose rows are sharded over the workers."""
    table = walk.assumptions.table_of[variables[0]]
    if state.kind == "unknown":
        raise NoRule(table, f"{walk.view.op(node)} {node!r} writes it, which is not supported on sharded rows")
    _join(walk, table, variables[1:])
    value = walk.require_same(_find_value(walk, node, state.value if state.value is not None else 0))
    edge = Edge(node, state.value or 0)
    if state.indices is not None:
        indices = _find_value(walk, node, state.indices)
        if isinstance(value, TouchedRows) and indices == TouchedIndices(table, value.merge) and value.table == table:
            _join(walk, table, variables[:1])
            return
        if value == SAME and isinstance(indices, TouchedIndices) and indices.table == table and _is_scalar(walk, edge):
            _join(walk, table, variables[:1])
            return
        additive = walk.view.op(node) in ADDITIVE_SCATTERS
        if _are_joined(walk, value, indices) and (additive or state.kind == "apply"):
            part = _find_gradient(walk, value, variables[0])
            if walk.assumptions.table_of.get(part) != table:
                raise NoRule(part, f"{walk.view.op(node)} {node!r} writes its gradient rows to {variables[0]!r}")
            _join(walk, table, variables[:1])
            _merge_here(walk, node, state, part, additive)
            return
    elif value == Rows(table):
        return
    elif value == SAME:
        walk.slice_rows(table, edge)
        return
    elif state.kind == "assign" and isinstance(value, Plain) and not isinstance(value, Opaque):
        _take_worker_0(walk, node, edge, variables[0])
        walk.slice_rows(table, edge)
        return
    _refuse_opaque(value)
    if state.kind == "scatter" and isinstance(value, Plain):
        raise NoRule(table, f"{walk.view.op(node)} {node!r} writes rows to it that are not its gradient")
    raise NoRule(table, f"{walk.view.op(node)} {node!r} updates it in a way that is not supported on sharded rows")


def _write_whole(walk: Walk, node: str, state: StateOp, variables: list[str]) -> None:
    """A write to a replicated variable."""
    is_known = state.kind != "unknown"
    slots = [s for s in (state.value, state.indices) if s is not None] if is_known else list(state.others)
    values = [walk.require_same(_find_value(walk, node, slot)) for slot in slots]
    along = next((v for v in values if isinstance(v, AtOwners) and is_known), None)
    if along is not None:
        table = walk.facts.tables[along.table]
        shape = walk.facts.captured.variables[variables[0]].part.shape
        if not _follows(walk, table.op, variables[0]):
            raise NoRule(
                table.op,
                f"{walk.view.op(node)} {node!r} writes its rows to {variables[0]!r}, which has the shape {list(shape)}",
            )
        _join(walk, table.op, variables)
        return
    additive = walk.view.op(node) in ADDITIVE_SCATTERS
    if state.indices is not None and _are_joined(walk, values[0], values[1]) and (additive or state.kind == "apply"):
        part = _find_gradient(walk, values[0], variables[0])
        spread = walk.assumptions.table_of.get(part, "")
        if spread and not _follows(walk, spread, variables[0]):
            raise NoRule(
                part,
                f"{walk.view.op(node)} {node!r} writes its gradient rows to {variables[0]!r}, which has another shape",
            )
        if spread:
            _join(walk, spread, variables)
        else:
            _merge_here(walk, node, state, part, additive)
        return
    for value in values:
        _refuse_opaque(value)
        if not isinstance(value, Plain):
            raise NoRule(part_of(walk, value), f"{walk.view.op(node)} {node!r} is not supported on its gradient rows")
    if node in walk.facts.initializers or (all(v == SAME for v in values) and walk.agrees(walk.facts.branches[node])):
        return
    is_kept_by_each = check_read_by_training(walk, node, slots, variables[0])
    if is_kept_by_each:
        walk.new_local_variables.update(variables)
        return
    if state.kind == "assign" and values[0].kind == "batch" and not _reads_itself(walk, node, variables[0]):
        _take_worker_0(walk, node, Edge(node, state.value or 0), variables[0])
        return
    if variables[0] in walk.facts.shared:
        op, tensor = walk.view.op(node), walk.view.inputs(node)[slots[0]]
        if not is_known:
            raise GraphError(
                f"{op} {node!r} updates variable {variables[0]!r}, but Parallax does not know how this op uses its "
                "inputs. Use an optimizer of tf.compat.v1.train, or Assign, AssignAdd, AssignSub and Scatter ops."
            )
        raise GraphError(
            f"{op} {node!r} updates variable {variables[0]!r} with {tensor!r}, which depends on each worker's own "
            "batch and is not its gradient: a gradient taken within a loop (tf.while_loop, tf.map_fn) or computed by "
            "hand, say. Leave the first dimension of the batch open (None), or take gradients outside of loops, by "
            "tf.gradients or a tape."
            + ("" if _has_gradient(walk, variables[0]) else " If it is a statistic, create it with trainable=False.")
        )
    walk.new_local_variables.update(variables)


def _has_gradient(walk: Walk, variable: str) -> bool:
    return (
        any(source.part == variable for source in walk.facts.sources)
        or not walk.facts.captured.variables[variable].trainable
    )


def _find_gradient(walk: Walk, values: State, variable: str) -> str:
    """The variable whose gradient rows are written: this one, unless it has none and accumulates those of another.

    Autodiff may give two variables one gradient, as for rows of a sum.
    """
    return variable if variable in walk.facts.routes else part_of(walk, values)


def _join(walk: Walk, table: str, variables: list[str]) -> None:
    """Shards slot variables like their table: rows of its gradient are written to them."""
    for variable in variables:
        if not _follows(walk, table, variable):
            continue
        if walk.assumptions.table_of.get(variable) == table:
            walk.confirmed.add(variable)
        else:
            walk.new_members[variable] = table


def _follows(walk: Walk, table: str, variable: str) -> bool:
    """Whether a variable's shape allows its rows to be sharded with those of a table."""
    shape = walk.facts.captured.variables[variable].part.shape
    if walk.facts.tables[table].is_scalar:
        return not shape
    return bool(shape) and shape[0] == walk.facts.tables[table].rows


def _are_joined(walk: Walk, values: State, indices: State) -> bool:
    return isinstance(values, Values) and isinstance(indices, Indices) and are_paired(walk, values, indices)


def _merge_here(walk: Walk, node: str, state: StateOp, part: str, additive: bool) -> None:
    """Gradient rows reach an update without a Unique before it."""
    merges = additive or walk.view.op(node) in UPDATES_OF_ROWS
    indices = walk.state_at(node, state.indices or 0)
    edges = ([Edge(node, state.indices or 0)], [Edge(node, state.value or 0)])
    tensors = indices.tensors if isinstance(indices, Indices) else ()
    walk.merges[node] = Merge(part, tensors, *edges, merges_equal_rows=merges)


def _take_worker_0(walk: Walk, node: str, edge: Edge, variable: str) -> None:
    """A full value from a feed: worker 0's is used, so that all workers agree whatever the others feed."""
    value = walk.state_at(node, edge.slot)
    if isinstance(value, Local) and node not in walk.facts.initializers:
        raise GraphError(
            f"{walk.view.op(node)} {node!r} assigns variable {variable!r} a value that each worker draws or reads on "
            "its own, but the value must be equal on all workers. Feed it through a placeholder."
        )
    if node not in walk.facts.initializers:
        walk.broadcasts.append(Broadcast(walk.view.inputs(node)[edge.slot], (edge,)))


def _reads_itself(walk: Walk, node: str, variable: str) -> bool:
    """Whether a new value depends on the old one, like a moving statistic; a value fed in full does not."""
    value = node_of(walk.view.inputs(node)[1])
    return variable in walk.view.ancestors([value])


def _is_scalar(walk: Walk, edge: Edge) -> bool:
    return walk.view.shape(walk.view.inputs(edge.node)[edge.slot]) == ()


def _refuse_opaque(value: State) -> None:
    if isinstance(value, Opaque):
        raise NoRule(value.part, value.reason)
