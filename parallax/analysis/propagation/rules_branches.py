"""State rules of conditionals and loops: values that enter a branch and values that leave it.

A TensorFlow 1 conditional, or one that functional_control_flow.py has lowered from an If, passes gradient rows and
variables through its Switch and Merge. The result of a Merge also inherits the predicate's state. All workers must
enter the same branch wherever the branch exchanges tensors or writes shared state. The predicate must therefore be
`same` (made of gradients, variables, counters) or `fed`, else the graph is refused; such a write in a loop is refused
too. Around initial values a conditional selects `the variable if it is initialized, else its initial value`; its
branches keep the rows, except those of a table on servers.
"""

from __future__ import annotations

from parallax.analysis.propagation.states import SAME, Handle, Plain, Rows, State
from parallax.analysis.propagation.walk import NoRule, Walk, read_value, server_table
from parallax.graph.control_flow import Branch, is_loop_merge, predicate_of
from parallax.graph.view import Edge, node_of

_RESOURCE = 20  # types.proto


def switch(walk: Walk, node: str, states: list[State]) -> bool:
    """A branch inherits the conditional's input: a variable, gradient rows, local rows."""
    if _keeps_rows_of_initial_value(walk, node, states):
        return True
    if isinstance(states[0], Handle) and _is_variable(walk, f"{node}:0"):
        walk.set_all(node, states[0])
        return True
    state = read_value(walk, states[0])
    if isinstance(state, Plain):
        return False
    if not walk.agrees((*walk.facts.branches[node], Branch(predicate_of(walk.view, node), 1))):
        return False
    walk.set_all(node, state)
    return True


def passed_on(walk: Walk, node: str, states: list[State]) -> bool:
    """Ops that pass a variable on, into a loop or under another name; its value is decided elsewhere."""
    if not states or not isinstance(states[0], Handle) or not _is_variable(walk, f"{node}:0"):
        return False
    walk.set_all(node, states[0])
    return True


def _is_variable(walk: Walk, tensor: str) -> bool:
    """Whether a tensor is a handle or a reference, and not a value."""
    node = node_of(tensor)
    return walk.view.op(node).startswith("Ref") or walk.view.dtype(tensor) == _RESOURCE


def _keeps_rows_of_initial_value(walk: Walk, node: str, states: list[State]) -> bool:
    state = read_value(walk, states[0])
    if not isinstance(state, Rows) or node in walk.facts.training or node not in walk.facts.initial:
        return False
    if table := server_table(walk, state):
        raise NoRule(table, f"the initial value of another variable tests in {node!r} whether it is initialized")
    walk.set_all(node, state)
    return True


def merge(walk: Walk, node: str, states: list[State]) -> bool:
    """The common state of all branches; for an initial value, a full one is sliced to local rows."""
    if is_loop_merge(walk.view, node):
        return passed_on(walk, node, states)
    if len(set(states)) == 1 and not isinstance(states[0], Plain):
        return _give_alike(walk, node, states[0])
    rows = {s for s in states if isinstance(s, Rows)}
    if len(rows) != 1 or node in walk.facts.training or not all(s == SAME or s in rows for s in states):
        return False
    (state,) = rows
    for slot, other in enumerate(states):
        if other == SAME:
            walk.slice_rows(state.table, Edge(node, slot))
    walk.states[f"{node}:0"] = state
    walk.states[f"{node}:1"] = SAME
    return True


def _give_alike(walk: Walk, node: str, state: State) -> bool:
    if isinstance(state, Handle) and not _is_variable(walk, f"{node}:0"):
        return False
    taken = walk.facts.branches[node_of(walk.view.inputs(node)[0])]
    if not isinstance(state, Handle) and not walk.agrees(taken):
        return False
    walk.states[f"{node}:0"] = state
    walk.states[f"{node}:1"] = walk.condition(taken)
    return True
