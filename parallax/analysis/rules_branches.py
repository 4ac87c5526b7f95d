"""Rules for conditionals around initial values: `the variable if it is initialized, else its initial value`."""

from __future__ import annotations

from parallax.analysis.states import SAME, State
from parallax.analysis.walk import NoRule, Walk, read_value, server_table
from parallax.graph_view import Edge


def switch(walk: Walk, node: str, states: list[State]) -> bool:
    """Conditionals of initial values only: the branches keep the rows."""
    state = read_value(walk, states[0])
    # TensorFlow leaves switches of references behind that no initial value uses any more.
    inside = node in walk.initial or walk.view.op(node) == "RefSwitch"
    if state.kind != "rows" or node in walk.training or not inside:
        return False
    _refuse_on_servers(walk, node, state)
    walk.set_all(node, state)
    return True


def merge(walk: Walk, node: str, states: list[State]) -> bool:
    """Where the branches join, a whole value is cut to local rows."""
    rows = {s for s in states if s.kind == "rows"}
    if len(rows) != 1 or node in walk.training or not all(s == SAME or s in rows for s in states):
        return False
    (state,) = rows
    for slot, other in enumerate(states):
        if other == SAME:
            walk.slice_rows(state.key[0], Edge(node, slot))
    walk.states[f"{node}:0"] = state
    walk.states[f"{node}:1"] = SAME
    return True


def conditional(walk: Walk, node: str, states: list[State]) -> bool:
    """The initial value of a moving average: `variable if it is initialized else its initial value`."""
    if node in walk.training or node not in walk.initial:
        return False
    slots = _passed_through(walk, node)
    if slots is None:
        return False
    kinds = [read_value(walk, states[slot + 1]) for slot in slots]
    rows = {s for s in kinds if s.kind == "rows"}
    if len(rows) != 1 or any(s not in rows and s != SAME for s in kinds):
        return False
    (state,) = rows
    _refuse_on_servers(walk, node, state)
    for slot, kind in zip(slots, kinds, strict=True):
        if kind == SAME:
            walk.slice_rows(state.key[0], Edge(node, slot + 1))
    walk.conditionals.append(node)
    walk.set_all(node, state)
    return True


def _refuse_on_servers(walk: Walk, node: str, state: State) -> None:
    if table := server_table(walk, state):
        raise NoRule(table, f"the initial value of another variable asks in {node!r} whether it has one")


def _passed_through(walk: Walk, node: str) -> list[int] | None:
    """Which argument each branch of a one-result `If` gives back unchanged; None when a branch computes."""
    functions = {f.signature.name: f for f in walk.view.graph_def.library.function}
    found = []
    for branch in ("then_branch", "else_branch"):
        function = functions.get(walk.view.nodes[node].attr[branch].func.name)
        if function is None or len(function.signature.output_arg) != 1:
            return None
        arguments = [arg.name for arg in function.signature.input_arg]
        body = {n.name: n for n in function.node_def}
        name = function.ret[function.signature.output_arg[0].name].split(":")[0]
        while name in body and body[name].op in ("Identity", "ReadVariableOp"):
            name = body[name].input[0].split(":")[0]
        if name not in arguments:
            return None
        found.append(arguments.index(name))
    return found
