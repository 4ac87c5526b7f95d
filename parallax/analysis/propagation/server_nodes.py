"""Which nodes run on servers: those that hold, compute or write the rows of a table whose owners are servers.

They run where the partitions are, once for each partition. Lookups do not, nor do reads of a copy. A variable that is
not looked up by row is mirrored: whoever reads the variable in the worker has the whole value (`same`), and only what
writes the variable works on `rows`. A dense gradient of a mirrored variable is scattered where it leaves autodiff; all
later ops see `rows` and run at the owners.
"""

from __future__ import annotations

from parallax.analysis.propagation.states import Handle
from parallax.analysis.propagation.walk import Walk, server_table
from parallax.graph.ops import state_op
from parallax.plans.rewrites import Owned

_ASKS_FOR_THE_VARIABLE = ("VarIsInitializedOp", "IsVariableInitialized", "DestroyResourceOp")


def owned_nodes(walk: Walk) -> tuple[Owned, ...]:
    """The nodes that a finished walk found to run where the partitions are, in topological order."""
    if not any(table.servers for table in walk.known.tables.values()):
        return ()
    elsewhere = {lookup.node for lookup in walk.lookups} | {shape.node for shape in walk.shapes}
    gathered = {edge for _, edges in walk.gathers.values() for edge in edges}
    found = []
    for node in walk.view.topological_order():
        op = walk.view.op(node)
        if node in elsewhere or node in walk.known.captured.variables or op in _ASKS_FOR_THE_VARIABLE:
            continue
        writes = state_op(op, len(walk.view.inputs(node))) is not None
        tables = [server_table(walk, walk.states[tensor]) for tensor in walk.view.outputs(node)]
        for slot in range(len(walk.view.inputs(node))):
            if (node, slot) not in gathered:
                tables.append(_find_table(walk, node, slot, writes))
        table = next((t for t in tables if t), "")
        if table:
            found.append(Owned(node, table, writes, node in walk.known.initial))
    return tuple(found)


def _find_table(walk: Walk, node: str, slot: int, writes: bool) -> str:
    """The table on servers whose rows this node takes here."""
    state = walk.state_at(node, slot)
    if not isinstance(state, Handle):
        return server_table(walk, state)
    variable = state.variable
    table = walk.assumed.table_of.get(variable, "")
    if not table or not walk.known.tables[table].servers or (walk.is_mirrored(variable) and not writes):
        return ""
    return table
