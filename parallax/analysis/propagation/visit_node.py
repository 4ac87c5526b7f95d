"""Selects the state rule of each node, and has the plain rules, by which results inherit from inputs.

A result of plain inputs is as bad as its worst input. The result of a random op, a dataset, a queue or a file is
`local`. An op that calls functions has the state of its inputs, and is `local` where a body draws or reads
(function_bodies.py). The table of ops and their rules for tensors along rows is in row_rule_of_op.py; the rules of ops
that write variables are in rules_state.py. Where none applies, a table is gathered outside the training step and
refused inside the step, and gradient rows become `opaque`.
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import cache

from parallax.analysis.layouts.find_layouts import Layouts
from parallax.analysis.propagation import row_rule_of_op, rules_state
from parallax.analysis.propagation.distinct_ids import merged_ids, root
from parallax.analysis.propagation.gradient_pieces import find_concatenated
from parallax.analysis.propagation.states import (
    BATCH,
    LOCAL,
    SAME,
    FedScalars,
    Handle,
    Opaque,
    Plain,
    Rows,
    State,
    find_worst_state,
)
from parallax.analysis.propagation.walk import Merge, NoRule, Walk, part_of, set_handle
from parallax.analysis.reading.capture import CapturedGraph, variable_of_tensor
from parallax.base.errors import GraphError
from parallax.graph.batches import batch_of, is_of_script, is_partial_sum
from parallax.graph.control_flow import MERGES, Branches, branches_at, is_loop_merge
from parallax.graph.ops import is_constant, is_stateful, seed_slots, state_op
from parallax.graph.shard import SHARD_ID, mark_of
from parallax.graph.spec import GradientSource
from parallax.graph.view import NEXT_ITERATIONS, VARIABLES, Edge, GraphView, node_of
from parallax.plans.rewrites import AllReduce, Scatter

_RANDOM = re.compile(
    r"^(Random(?!ShuffleQueue|GammaGrad).*|TruncatedNormal|ParameterizedTruncatedNormal|Multinomial|.*CandidateSampler)$"
)
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_COPIES = ("Identity", "Cast", "Reshape")
_STRING = 7  # types.proto
_RESTORES = ("RestoreV2", "Restore", "RestoreSlice")
_TABLES = ("HashTable", "HashTableV2")
_SAME_STATEFUL = frozenset(
    """
    Assert Print PrintV2 NoOp HashTable HashTableV2 InitializeTableV2 InitializeTableFromTextFileV2 LookupTableFindV2
    LookupTableSizeV2 TensorArrayV3 TensorListReserve StackV2 VarIsInitializedOp IsVariableInitialized RestoreV2 SaveV2
    MergeV2Checkpoints ShardedFilename ReadVariableOp ResourceGather ResourceGatherNd VariableShape
    """.split()
)
"""Ops that are registered as stateful and return equal values on all workers from equal inputs.

Condition: the state that they read is one of their inputs (a variable, whose own state counts), is written once and
equally (a lookup table that an op of the same list fills: a mutable one is not among them), or is a handle. Files that
they name must be equal on all hosts: those of vocabularies and checkpoints. The contents of a TensorArray are tracked
through the flow that its reads have as input; those of a stack are not, so StackPopV2 is not among them. Ops that call
functions are judged by these (function_bodies.py).
"""
_READS_VARIABLE = ("Identity", "ReadVariableOp", "VarIsInitializedOp", "IsVariableInitialized", "VariableShape")
_READS_FILES = ("ReadFile", "MatchingFiles", "WholeFileReaderV2", "ReaderReadV2")
"""Each worker reads its own file, whatever its name: data, except for initial values."""
_READS_DATASETS = ("ReduceDataset", "DatasetToSingleElement", "DatasetToGraph", "DatasetToGraphV2")
"""A dataset may draw or read differing values, which its handle does not show."""


@cache
def differs(op: str, equal_randomness: bool) -> bool:
    """Whether an op may return other values on every worker from the same inputs."""
    if is_random(op):
        return not equal_randomness
    return op in _READS_FILES or op in _READS_DATASETS or (is_stateful(op) and op not in _SAME_STATEFUL)


@cache
def is_random(op: str) -> bool:
    """Whether an op draws random numbers: by attributes `seed` and `seed2`, or by an input seed or key."""
    return bool(_RANDOM.match(op) or seed_slots(op))


def is_equal_draw(walk: Walk, node: str) -> bool:
    """Whether a stateless random op is a constant: drawn by a constant seed, in a replicated shape."""
    view, slots = walk.view, seed_slots(walk.view.op(node))
    if not slots:
        return False
    others = [walk.states.get(t) for slot, t in enumerate(view.inputs(node)) if slot not in slots]
    if any(state != SAME for state in others):
        return False
    return is_constant(view, [view.inputs(node)[slot] for slot in slots])


def shared_variables(captured: CapturedGraph, sources: tuple[GradientSource, ...], updates: Set[str]) -> set[str]:
    """Variables that training writes: those with a gradient, those declared trainable, and their slots.

    Excluded are variables that are trainable by default and only accumulate values of a batch, and those of which each
    worker has a part, though they may be written after an update.
    """
    needed = captured.view.ancestors(updates)
    trainable = {name for name, v in captured.variables.items() if v.trainable}
    shared = {s.part for s in sources} | {v for v in trainable if v in needed or not _only_counts(captured, v)}
    for node in sorted(updates):
        inputs = captured.view.inputs(node)
        state = state_op(captured.view.op(node), len(inputs))
        for slot in state.state if state is not None else ():
            shared.add(variable_of_tensor(captured.view, captured.variables, inputs[slot]))
    return {v for v in shared & captured.variables.keys() if not is_partial_sum(captured.view.nodes[v])}


def _only_counts(captured: CapturedGraph, variable: str) -> bool:
    """Whether all writes of a variable, except its initial value, are of values that do not depend on it."""
    view = captured.view
    for edge in view.consumers(f"{variable}:0"):
        op, inputs = view.op(edge.node), view.inputs(edge.node)
        state = state_op(op, len(inputs))
        if state is None and op not in _READS_VARIABLE:
            return False
        if state is None or edge.node == captured.variables[variable].initializer:
            continue
        if edge.slot not in state.state or len(state.state) > 1:
            return False
        values = [node_of(t) for slot, t in enumerate(inputs) if slot not in state.state]
        if variable in view.ancestors(values):
            return False
    return True


def visit(walk: Walk, node: str) -> None:
    """Sets the states of a node's outputs and records the changes of its inputs."""
    op = walk.view.op(node)
    if op in VARIABLES and node in walk.facts.captured.variables:
        set_handle(walk, node, node)
    elif op in _PLACEHOLDERS:
        walk.set_all(node, _visit_placeholder(walk, node))
    elif op in _RESTORES:
        walk.set_all(node, SAME)  # a checkpoint is one for all workers, whatever path leads to it
    elif op in _TABLES:
        walk.set_all(node, _visit_lookup_table(walk, node))
    elif not rules_state.visit(walk, node, op) and not row_rule_of_op.visit(walk, node, op):
        _inherit(walk, node, op)
    if walk.facts.layouts is not None:
        _take_layouts(walk, node, walk.facts.layouts)
        _check_added_once(walk, node, walk.facts.layouts)
    _all_reduce_gradient(walk, node)


def _take_layouts(walk: Walk, node: str, layouts: Layouts) -> None:
    """Sets a node's results to the states of their layouts; a tensor read replicated is `same` for the reader."""
    for tensor in walk.view.outputs(node):
        fact = layouts.facts.get(tensor)
        is_followed = fact is not None and not _is_fed(walk.view, tensor)
        if fact is not None and is_followed and walk.states[tensor].kind in ("same", "batch", "local"):
            walk.states[tensor] = SAME if fact.is_same else BATCH
        for edge in walk.view.consumers(tensor):
            if (tensor, edge.node) in layouts.replicated_reads:
                walk.marked.setdefault((tensor, edge.node), SAME)


def _check_added_once(walk: Walk, node: str, layouts: Layouts) -> None:
    """Checks that a value that one worker adds to a metric is equal on all workers.

    Raises:
        GraphError: it is not.
    """
    for slot, tensor in enumerate(walk.view.inputs(node)):
        if Edge(node, slot) in layouts.added_once and walk.state_at(node, slot) != SAME:
            raise GraphError(
                f"{walk.view.op(node)} {node!r} adds {tensor!r}, computed from gradients, to a metric, but workers "
                "have different values of it. Compute the metric from dense gradients, or outside of the step."
            )


def _is_fed(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is a placeholder's feed, or a copy of it."""
    while view.op(node_of(tensor)) in _COPIES:
        tensor = view.inputs(node_of(tensor))[0]
    return view.op(node_of(tensor)).startswith("Placeholder")


def lookups_of_indices(walk: Walk, merge: Merge) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The gathers whose ids are gradient indices, in order, and the pieces to be searched (rewrites.Push).

    Raises:
        NoRule: when no gather has these ids.
    """
    searched: list[str] = []
    lookups: list[str] = []
    by_ids: dict[str, list[str]] = {}
    for lookup in walk.lookups:
        params, ids = walk.view.inputs(lookup.node)[0], walk.view.inputs(lookup.node)[lookup.ids_slot]
        if variable_of_tensor(walk.view, walk.facts.captured.variables, params) == merge.part:
            by_ids.setdefault(root(walk.view, ids), []).append(lookup.node)
    waiting = [walk.view.inputs(merge.indices[0].node)[merge.indices[0].slot]]
    while waiting:
        row_numbers = waiting.pop(0)
        tensor = root(walk.view, row_numbers)
        looked_up = next((one for one in (tensor, merged_ids(walk.view, tensor)) if one in by_ids), None)
        pieces = find_concatenated(walk.view, tensor)
        if walk.states[row_numbers] == SAME != walk.states[looked_up or tensor]:
            raise NoRule(merge.part, f"the row indices {row_numbers!r} of its gradient are gathered on all workers")
        if looked_up is not None:
            lookups.append(
                by_ids[looked_up].pop(0) if looked_up == tensor and len(by_ids[looked_up]) > 1 else by_ids[looked_up][0]
            )
            searched.append("" if looked_up == tensor else tensor)
        elif pieces:
            waiting = [*pieces, *waiting]
        else:
            raise NoRule(merge.part, f"the row indices {tensor!r} of its gradient are not the ids of a lookup")
    return tuple(lookups), tuple(searched)


def _visit_placeholder(walk: Walk, node: str) -> State:
    """A scalar may be a learning rate, equal everywhere; any other placeholder is this worker's part of the batch.

    A marked placeholder is the number of shards, `same`, or the index of this worker's shard, `local`.
    """
    mark = mark_of(walk.view.nodes[node])
    if mark:
        return LOCAL if mark == SHARD_ID else SAME
    shape = walk.view.shape(f"{node}:0")
    if shape != () and not is_of_script(walk.view) and not batch_of(walk.view.nodes[node]):
        return SAME  # a front end sends it to all workers in full
    if walk.view.nodes[node].attr["dtype"].type == _STRING:
        return BATCH  # a path, or a serialized example: it leads to data
    if shape == () or (shape is None and _only_hyperparameter(walk, node)):
        return FedScalars((node,))
    return BATCH


def _visit_lookup_table(walk: Walk, node: str) -> State:
    """A table of keys and values is `same` if it is not filled from a worker's data."""
    view = walk.view
    fillers = [e.node for e in view.consumers(f"{node}:0") if view.op(e.node).startswith("InitializeTable")]
    needed = view.ancestors(fillers) - {node, *fillers}
    fed = any(view.op(name) in _PLACEHOLDERS or differs(view.op(name), False) for name in needed)
    return LOCAL if fed else SAME


def _only_hyperparameter(walk: Walk, node: str) -> bool:
    """Whether a tensor of unknown rank is read only as scalar inputs of update ops."""
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
    """The result inherits from its worst input; row states without a rule are gathered or become opaque."""
    states = [_take_plain(walk, node, slot) for slot in range(len(walk.view.inputs(node)))]
    if op in NEXT_ITERATIONS or (op in MERGES and is_loop_merge(walk.view, node)):
        states.append(LOCAL)
    elif op in MERGES:  # the inputs of a branch's constants do not show when the branch is taken
        states.append(walk.condition(_find_ended_branches(walk, node)))
    elif _differs(walk, node, op):
        states.append(LOCAL)
    walk.set_all(node, find_worst_state(states))
    if op.endswith("CandidateSampler"):  # the samples, and their expected counts, do not depend on the labels
        for number in (0, 2):
            walk.states[f"{node}:{number}"] = find_worst_state(states[len(walk.view.inputs(node)) :])


def _differs(walk: Walk, node: str, op: str) -> bool:
    """Like `differs`; random ops of initial values, or after all gradients (noise), return equal values on workers."""
    called = walk.facts.functions.of_node(walk.view.nodes[node])
    if called:
        return any(walk.facts.functions.differing_op(name) for name in called)
    if node in walk.facts.initial and (is_random(op) or op in _READS_FILES):
        return False  # one seed for all; and worker 0's value is used in the end
    if (node in walk.facts.after_gradients and is_random(op)) or is_equal_draw(walk, node):
        return False  # one seed for all
    return differs(op, walk.facts.equal_randomness)


def _find_ended_branches(walk: Walk, merge: str) -> Branches:
    """The branches that a Merge ends."""
    here = len(walk.facts.branches[merge])
    return tuple(dict.fromkeys(b for t in walk.view.inputs(merge) for b in branches_at(walk.view, t)[here:]))


def _take_plain(walk: Walk, node: str, slot: int) -> State:
    """A plain state for an input without a rule; full rows are gathered, outside the training step only."""
    state = walk.state_at(node, slot)
    if isinstance(state, Plain):
        return state
    tensor, op = walk.view.inputs(node)[slot], walk.view.op(node)
    if isinstance(state, Handle):
        variable = state.variable
        if not isinstance(walk.value_state(variable), Rows):
            return walk.value_state(variable)
        if walk.view.op(variable) != "VarHandleOp":
            state = walk.value_state(variable)
        elif op not in ("VarIsInitializedOp", "DestroyResourceOp"):
            raise NoRule(
                walk.assumptions.table_of[variable], f"{op} {node!r} uses the variable itself, which is not supported"
            )
        else:
            return SAME
    if isinstance(state, Rows):
        table = state.table
        if op in ("IsVariableInitialized",):
            return SAME
        if node in walk.facts.training:
            raise NoRule(table, f"{op} {node!r} reads all its rows in every step")
        walk.gather_rows(tensor, table, Edge(node, slot))
        return SAME
    return Opaque(part_of(walk, state), f"{op} {node!r} is not supported on its gradient rows")


def _is_complete(walk: Walk, gradient: str) -> bool:
    """Whether no worker has only a part of a gradient: owners may have its rows."""
    layouts = walk.facts.layouts
    return walk.states[gradient] == SAME or (layouts is not None and layouts.facts[gradient].is_same)


def _all_reduce_gradient(walk: Walk, node: str) -> None:
    """A dense gradient leaves autodiff here: the mean over the workers, unless it is replicated anyway."""
    for tensor in walk.view.outputs(node):
        for source in walk.facts.dense_sources.get(tensor, ()):
            if _is_complete(walk, tensor) or any((tensor, n) in walk.marked for n in source.outside):
                continue
            edges = tuple(e for e in walk.view.consumers(tensor) if e.node in source.outside)
            if not edges:
                continue
            state, kind = walk.marked_gradient(source.part), "mean" if walk.facts.layouts is None else "gradient"
            if state == SAME:
                walk.all_reduces.append(AllReduce(tensor, edges, kind))
            else:
                walk.scatters.append(Scatter(tensor, edges, source.part, kind))
            walk.marked.update({(tensor, e.node): state for e in edges})
