"""The walk's rules for single ops: which one applies, and the plain ones (how results inherit from inputs).

Rules for tensors along rows are in rules_rows.py, rules for what writes state in rules_state.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parallax.analysis import passages, rules_rows, rules_state
from parallax.analysis.capture import Captured, variable_of_tensor
from parallax.analysis.marking import concatenated, merged_ids, root
from parallax.analysis.states import BATCH, LOCAL, PLAIN, SAME, State, worst
from parallax.analysis.update_ops import op_definition, state_op
from parallax.analysis.walk import Merge, NoRule, Walk, part_of, set_handle
from parallax.decisions import AllReduce, Scatter
from parallax.graph_view import Edge, GraphView, split_tensor
from parallax.shard import SHARD_ID, mark_of
from parallax.spec import GradientSource

_RANDOM = re.compile(
    r"^(Random(?!ShuffleQueue).*|TruncatedNormal|ParameterizedTruncatedNormal|Multinomial|.*CandidateSampler)$"
)
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_STRING = 7  # types.proto
VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_SAME_STATEFUL = frozenset(
    """
    Assert Print PrintV2 NoOp HashTable HashTableV2 InitializeTableV2 InitializeTableFromTextFileV2 LookupTableFindV2
    LookupTableSizeV2 TensorArrayV3 TensorListReserve StackV2 VarIsInitializedOp IsVariableInitialized RestoreV2 SaveV2
    MergeV2Checkpoints ShardedFilename If While Case ReadFile MatchingFiles
    """.split()
)
"""Ops that TensorFlow calls stateful and that give all workers the same for the same inputs."""


def is_random(op: str) -> bool:
    """Whether an op draws random numbers by attributes `seed` and `seed2`."""
    return bool(_RANDOM.match(op))


def shared_variables(captured: Captured, sources: tuple[GradientSource, ...], updates: set[str]) -> set[str]:
    """Variables that training writes: those with a gradient, those declared trainable, and their slots."""
    shared = {s.part for s in sources} | {name for name, v in captured.variables.items() if v.trainable}
    for node in sorted(updates):
        inputs = captured.view.inputs(node)
        state = state_op(captured.view.op(node), len(inputs))
        for slot in state.state if state is not None else ():
            shared.add(split_tensor(inputs[slot])[0])
    return shared & captured.variables.keys()


def visit(walk: Walk, node: str) -> None:
    """Gives the outputs of a node their states and records what must be changed at its inputs."""
    op = walk.view.op(node)
    walk.depth[node] = frame_depth(walk.view, walk.depth, node)
    if op in VARIABLES and node in walk.captured.variables:
        set_handle(walk, node, node)
    elif op in _PLACEHOLDERS:
        walk.set_all(node, _placeholder(walk, node))
    elif not rules_state.visit(walk, node, op) and not rules_rows.visit(walk, node, op):
        _inherit(walk, node, op)
    _all_reduce_gradient(walk, node)
    passages.visit(walk, node)


def lookups_of_indices(walk: Walk, merge: Merge) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The gathers whose ids joined indices are, in order, and the pieces to be searched (decisions.Push).

    Raises:
        NoRule: when the ids are nobody's.
    """
    searched: list[str] = []
    found: list[str] = []
    by_ids: dict[str, list[str]] = {}
    for lookup in walk.lookups:
        params, ids = walk.view.inputs(lookup.node)[0], walk.view.inputs(lookup.node)[lookup.ids_slot]
        if variable_of_tensor(walk.view, walk.captured.variables, params) == merge.part:
            by_ids.setdefault(root(walk.view, ids), []).append(lookup.node)
    waiting = [walk.view.inputs(merge.indices[0].node)[merge.indices[0].slot]]
    while waiting:
        tensor = root(walk.view, waiting.pop(0))
        pieces = concatenated(walk.view, tensor)
        if tensor in by_ids:
            found.append(by_ids[tensor].pop(0) if len(by_ids[tensor]) > 1 else by_ids[tensor][0])
            searched.append("")
        elif merged_ids(walk.view, tensor) in by_ids:
            found.append(by_ids[merged_ids(walk.view, tensor)][0])
            searched.append(tensor)
        elif pieces:
            waiting = [*pieces, *waiting]
        else:
            raise NoRule(merge.part, f"the row numbers {tensor!r} of its gradient are not the ids of a lookup")
    return tuple(found), tuple(searched)


def _placeholder(walk: Walk, node: str) -> State:
    """A scalar may be a learning rate, equal everywhere; everything else is this worker's part of the batch."""
    mark = mark_of(walk.view.nodes[node])
    if mark:
        return LOCAL if mark == SHARD_ID else SAME
    shape = walk.view.shape(f"{node}:0")
    if shape == () and walk.view.nodes[node].attr["dtype"].type == _STRING:
        return SAME  # the name of a file
    if shape == () or (shape is None and _only_hyperparameter(walk, node)):
        return State("fed", (node,))
    return BATCH


def _only_hyperparameter(walk: Walk, node: str) -> bool:
    """Whether a tensor of unknown rank goes nowhere but into the scalar inputs of update ops."""
    edges = walk.view.consumers(f"{node}:0")
    for edge in edges:
        if walk.view.op(edge.node) in ("Identity", "Cast"):
            if not _only_hyperparameter(walk, edge.node):
                return False
            continue
        state = state_op(walk.view.op(edge.node), len(walk.view.inputs(edge.node)))
        if state is None or edge.slot not in state.others:
            return False
    return bool(edges)


def _inherit(walk: Walk, node: str, op: str) -> None:
    """The result is as its worst input; row states that no rule took are read whole or become opaque."""
    states = [_plain(walk, node, slot) for slot in range(len(walk.view.inputs(node)))]
    definition = op_definition(op)
    stateful = definition is not None and definition.is_stateful and op not in _SAME_STATEFUL
    if op in ("NextIteration", "RefNextIteration") or is_random(op) or stateful:
        known = is_random(op) and (walk.equal_randomness or node in walk.initial)
        states.append(SAME if known else LOCAL)
    if op in ("Merge", "RefMerge") and _is_loop(walk.view, node):
        states.append(LOCAL)
    walk.set_all(node, worst(states))
    if op.endswith("CandidateSampler"):  # what is sampled, and how often to expect it, does not depend on the labels
        for number in (0, 2):
            walk.states[f"{node}:{number}"] = worst(states[len(walk.view.inputs(node)) :])


def _is_loop(view: GraphView, node: str) -> bool:
    return any(view.op(split_tensor(t)[0]).endswith("NextIteration") for t in view.inputs(node))


def _plain(walk: Walk, node: str, slot: int) -> State:
    """A plain state for an input that no rule took; whole rows are gathered, outside the training step only."""
    state = walk.state_at(node, slot)
    if state.kind in PLAIN:
        return state
    tensor, op = walk.view.inputs(node)[slot], walk.view.op(node)
    if state.kind == "handle":
        variable = state.key[0]
        if walk.value_state(variable).kind != "rows":
            return walk.value_state(variable)
        if walk.view.op(variable) != "VarHandleOp":
            state = walk.value_state(variable)
        elif op not in ("VarIsInitializedOp", "DestroyResourceOp"):
            raise NoRule(walk.table_of[variable], f"{op} {node!r} takes the variable itself and has no rule")
        else:
            return SAME
    if state.kind == "rows":
        table = str(state.key[0])
        if op in ("IsVariableInitialized",):
            return SAME
        if node in walk.training:
            raise NoRule(table, f"{op} {node!r} reads all its rows in every training step")
        walk.gather_rows(tensor, table, Edge(node, slot))
        return SAME
    return State("opaque", (part_of(walk, state), f"{op} {node!r} has no rule for its gradient rows"))


def _all_reduce_gradient(walk: Walk, node: str) -> None:
    """A dense gradient leaves autodiff here: the mean over the workers, unless all have the same anyway."""
    for tensor in walk.view.outputs(node):
        for source in walk.dense_sources.get(tensor, ()):
            if walk.states[tensor] == SAME or any((tensor, n) in walk.marked for n in source.outside):
                continue
            edges = tuple(e for e in walk.view.consumers(tensor) if e.node in source.outside)
            if not edges:
                continue
            state = walk.marked_gradient(source.part)
            if state == SAME:
                walk.all_reduces.append(AllReduce(tensor, edges, "mean"))
            else:
                walk.scatters.append(Scatter(tensor, edges, source.part))
            walk.marked.update({(tensor, e.node): state for e in edges})


def frame_depth(view: GraphView, depth: Mapping[str, int], node: str) -> int:
    """How many old-style conditionals or loops a node is inside of; collectives must not run there.

    Args:
        view: the graph.
        depth: of the nodes before it, in topological order.
        node: which.
    """
    op = view.op(node)
    deepest = max((depth.get(split_tensor(t)[0], 0) for t in view.inputs(node)), default=0)
    if op in ("Switch", "RefSwitch", "Enter", "RefEnter"):
        return deepest + 1
    if op in ("Exit", "RefExit"):
        return max(0, deepest - 2)  # the loop's Enter and its Switch
    return max(0, deepest - 1) if op in ("Merge", "RefMerge") and not _is_loop(view, node) else deepest
