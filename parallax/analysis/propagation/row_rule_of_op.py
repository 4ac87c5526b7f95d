"""The table from op to its rule for tensors along rows.

The rules are in rules_rows.py, those of lookups and merges in rules_exchange.py, those of conditionals in
rules_branches.py. An op that is neither in the table nor elementwise (graph/ops.py) has no rule; visit_node.py
describes that case. A rule that returns False does not apply to the given inputs.
"""

from __future__ import annotations

from collections.abc import Callable

from parallax.analysis.propagation import rules_branches, rules_exchange, rules_rows
from parallax.analysis.propagation.states import Plain, State
from parallax.analysis.propagation.walk import Walk
from parallax.graph.ops import ELEMENTWISE, SEGMENT_LOOKUPS
from parallax.graph.view import NEXT_ITERATIONS

Rule = Callable[[Walk, str, list[State]], bool]
"""Sets the states of a node's outputs from those of its inputs; returns False where it does not apply."""

_PASS_ON = ("Identity", "RefIdentity", "Enter", "RefEnter", *NEXT_ITERATIONS, "Exit", "RefExit")

RULES: dict[str, Rule] = {
    "Print": rules_rows.elementwise,
    "ReadVariableOp": rules_rows.read_variable,
    "ResourceGather": rules_exchange.gather,
    "GatherV2": rules_exchange.gather,
    "Gather": rules_exchange.gather,
    **dict.fromkeys(SEGMENT_LOOKUPS, rules_exchange.segments),
    "Unique": rules_exchange.unique,
    "UniqueV2": rules_exchange.unique,
    "UnsortedSegmentSum": rules_exchange.segment_sum,
    **dict.fromkeys(rules_rows.REDUCTIONS, rules_rows.reduction),
    "L2Loss": rules_rows.l2_loss,
    "Shape": rules_rows.shape_of,
    "VariableShape": rules_rows.shape_of,
    "Size": rules_rows.size_of,
    "StridedSlice": rules_rows.of_extent,
    "Fill": rules_rows.fill,
    "BroadcastTo": lambda walk, node, states: rules_rows.fill(walk, node, states[::-1]),
    "Reshape": rules_rows.reshape,
    "ExpandDims": rules_rows.expand_dims,
    "ConcatV2": rules_rows.concat,
    "Split": rules_rows.split,
    "Switch": rules_branches.switch,
    "RefSwitch": rules_branches.switch,
    **dict.fromkeys(_PASS_ON, rules_branches.passed_on),
    "Merge": rules_branches.merge,
    "RefMerge": rules_branches.merge,
}


def visit(walk: Walk, node: str, op: str) -> bool:
    """Applies the rule of this op, if its inputs are along rows and it has one."""
    states = walk.input_states(node)
    if op == "IdentityN":
        for number, state in enumerate(states):
            walk.states[f"{node}:{number}"] = state
        return True
    if all(isinstance(s, Plain) for s in states):
        return False
    rule = RULES.get(op)
    if rule is not None and rule(walk, node, states):
        return True
    return op in ELEMENTWISE and rules_rows.elementwise(walk, node, states)
