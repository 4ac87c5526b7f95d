"""Finds where autodiff delivers each variable's gradient: from the record, or from the graph where there is none.

Without a record (a graph loaded from a file, or built before Parallax was imported) the ops of autodiff are
distinguished from the user's post-processing by the names that `tf.gradients` gives them; where even those are missing,
the gradient is read at the update op. Each source states how it was found, and the plan notes sources that were not
recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parallax.analysis.reading.capture import CapturedGraph, variable_of_tensor
from parallax.base.errors import GraphError
from parallax.graph.batches import batch_by_node
from parallax.graph.control_flow import SWITCHES, branches_of
from parallax.graph.ops import ADDITIVE_SCATTERS, StateOp, state_op
from parallax.graph.spec import GradientSource
from parallax.graph.view import Edge, GraphView, node_of

RECORDED, NAME_SCOPE, UPDATE_OP, BY_SCRIPT = "recorded", "name scope", "update op", "computed by the script"
STATED = (RECORDED, BY_SCRIPT)
"""Sources that are no guess."""


def find_gradients(captured: CapturedGraph) -> tuple[GradientSource, ...]:
    """Every gradient of a variable, in the order in which autodiff delivered them.

    Raises:
        GraphError: one is computed in a loop or a conditional that is not inlined, and state depends on it.
    """
    _refuse_hidden(captured)
    sources = _find_recorded(captured)
    reached = _reached_by(captured, tuple(sources))
    recorded = {s.part for s in sources}
    autodiff: set[str] | None = None
    updates = {}
    for node in captured.view.nodes:
        state = _gradient_update(captured, node)
        if state is not None:
            updates[node] = (state, _find_trained(captured, _find_written(captured, node, state)))
    accounted = {part for node, (_, part) in updates.items() if node in reached and part in recorded}
    for node, (state, part) in updates.items():
        if node in reached and part in recorded:
            continue
        autodiff = _autodiff_ops(captured.view) if autodiff is None else autodiff
        sources_of_update = _from_update(captured, node, state, autodiff)
        # Besides an update from the recorded gradient, only an optimizer uses another one that autodiff has made.
        if part not in accounted or (state.kind == "apply" and sources_of_update[0].found_by == NAME_SCOPE):
            sources += sources_of_update
    if not gradient_updates(captured, tuple(sources)):
        sources += _find_computed_gradients(captured)
    return tuple(dict.fromkeys(sources))


def _find_computed_gradients(captured: CapturedGraph) -> list[GradientSource]:
    """The values that a script without recorded gradients writes from the batch to trained variables, by layouts."""
    view, initializers = captured.view, {one.initializer for one in captured.variables.values()}
    sources: list[GradientSource] = []
    if not captured.by_layouts:
        return sources
    for node in _follow(captured, list(batch_by_node(view)), partial(_reads_after, captured)):
        state = state_op(view.op(node), len(view.inputs(node)))
        if state is None or state.kind not in ("assign", "delta") or state.value is None or node in initializers:
            continue
        part = _find_written(captured, node, state)
        if part in captured.variables and captured.variables[part].trainable:
            sources.append(GradientSource(part, view.inputs(node)[state.value], None, (node,), BY_SCRIPT))
    return sources


def is_in_loop(view: GraphView, source: GradientSource) -> bool:
    """Whether a loop takes a gradient, or reads it, in each iteration."""
    nodes, branches = (node_of(source.values), *source.outside), branches_of(view)
    return any(branch.is_loop for node in nodes for branch in branches[node])


def written_variable(captured: CapturedGraph, node: str) -> str:
    """The variable op that a state-writing node writes first; empty for other nodes."""
    state = state_op(captured.view.op(node), len(captured.view.inputs(node)))
    return _find_written(captured, node, state) if state is not None else ""


def gradient_updates(captured: CapturedGraph, sources: tuple[GradientSource, ...]) -> frozenset[str]:
    """The state-writing nodes that a gradient reaches through tensors; the result is cached."""
    cache_key, view = (gradient_updates, sources), captured.view
    if cache_key not in captured.remembered:
        reached = _reached_by(captured, sources)
        state_ops = frozenset(n for n in reached if state_op(view.op(n), len(view.inputs(n))) is not None)
        captured.remembered[cache_key] = state_ops
    updates: frozenset[str] = captured.remembered[cache_key]
    return updates


def training_updates(captured: CapturedGraph, sources: tuple[GradientSource, ...]) -> frozenset[str]:
    """The state-writing nodes that make a run a training step.

    A gradient of the same run reaches such a node, or the node writes a trained variable with values accumulated from
    gradients of earlier runs. A value computed from updated variables, such as a metric of a model that follows
    another, is no update: an evaluation writes that too.
    """
    cache_key = (training_updates, sources)
    if cache_key not in captured.remembered:
        trained = {source.part for source in sources}
        at_once = _find_reached(captured, sources, lambda node: [])
        captured.remembered[cache_key] = frozenset(
            node
            for node in gradient_updates(captured, sources)
            if node in at_once or _find_trained(captured, written_variable(captured, node)) in trained
        )
    updates: frozenset[str] = captured.remembered[cache_key]
    return updates


def autodiff_ops(captured: CapturedGraph) -> frozenset[str]:
    """The nodes created by autodiff: as recorded, or, without a record, by the names of their scopes."""
    recorded = frozenset[str]().union(*(record.ops for record in captured.records))
    return recorded or frozenset(_autodiff_ops(captured.view))


def _refuse_hidden(captured: CapturedGraph) -> None:
    view = captured.view
    for hidden in captured.hidden:
        part = variable_of_tensor(view, captured.variables, hidden.target)
        if part and captured.variables[part].trainable and (hidden.writes or _writes_after(view, hidden.node)):
            raise GraphError(
                f"{view.op(hidden.node)} {hidden.node!r} takes a gradient of {part!r} inside a loop or a conditional, "
                "where the workers cannot sum their gradients. Take the gradient before the conditional and only "
                "apply it inside, or leave the first dimension of the batch open (None); unroll loops in Python; "
                "instead of tf.hessians, use products with vectors (tf.gradients of the sum of gradients times a "
                "vector)."
            )


def _writes_after(view: GraphView, node: str) -> bool:
    """Whether any descendant of a node writes state."""
    reached, waiting = {node}, [node]
    while waiting:
        for user in view.users(waiting.pop()):
            if state_op(view.op(user), len(view.inputs(user))) is not None:
                return True
            if user not in reached:
                reached.add(user)
                waiting.append(user)
    return False


def _find_recorded(captured: CapturedGraph) -> list[GradientSource]:
    view, sources = captured.view, []
    inside = autodiff_ops(captured)  # a later call that differentiates through a gradient reads the per-worker value
    for record in captured.records:
        for target, values, indices in record.gradients:
            part = variable_of_tensor(view, captured.variables, target)
            if not part:
                continue
            takers = [edge.node for t in (values, indices) if t for edge in view.consumers(t)]
            outside = tuple(dict.fromkeys(n for n in takers if n not in inside))
            sources.append(GradientSource(part, values, indices, outside, RECORDED))
    return sources


def _reached_by(captured: CapturedGraph, sources: tuple[GradientSource, ...]) -> frozenset[str]:
    """The nodes that a gradient reaches through tensors, and through untrained variables."""
    asked = (_reached_by, sources)
    if asked not in captured.remembered:
        captured.remembered[asked] = _find_reached(captured, sources, partial(_reads_after, captured))
    reached: frozenset[str] = captured.remembered[asked]
    return reached


def _find_reached(
    captured: CapturedGraph, sources: tuple[GradientSource, ...], reads_after: Callable[[str], list[str]]
) -> frozenset[str]:
    """The nodes that a gradient reaches through tensors, and from writing nodes through `reads_after`."""
    return frozenset(_follow(captured, [node for source in sources for node in source.outside], reads_after))


def _follow(captured: CapturedGraph, waiting: list[str], reads_after: Callable[[str], list[str]]) -> dict[str, None]:
    """Some nodes and those that they reach, in the order in which they are found; `waiting` is emptied."""
    view, reached_nodes = captured.view, dict.fromkeys(waiting)
    while waiting:
        node = waiting.pop()
        takers = [e.node for t in view.outputs(node) for e in view.consumers(t) if not _decides(view, e)]
        for taker in (*takers, *reads_after(node)):
            if taker not in reached_nodes:
                reached_nodes[taker] = None
                waiting.append(taker)
    return reached_nodes


def _decides(view: GraphView, edge: Edge) -> bool:
    """Whether an input is a predicate, which passes no gradient on."""
    return (view.op(edge.node) in SWITCHES and edge.slot == 1) or view.op(edge.node) == "LoopCond"


def _reads_after(captured: CapturedGraph, node: str) -> list[str]:
    """The nodes that see a write: reads that wait for it, and all readers of an accumulator or a slot."""
    view = captured.view
    state = state_op(view.op(node), len(view.inputs(node)))
    if state is None:
        return []
    written = view.inputs(node)[state.state[0]]
    reads = [n for n in view.users(node) if view.op(n) == "ReadVariableOp" and view.inputs(n)[0] == written]
    variable = captured.variables.get(variable_of_tensor(view, captured.variables, written))
    if variable is not None and not variable.trainable:
        takers = view.consumers(f"{variable.part.op}:0")
        reads += [e.node for e in takers if e.node != variable.initializer and not _overwrites(view, e)]
    return reads


def _overwrites(view: GraphView, edge: Edge) -> bool:
    """Whether a node overwrites a variable, whatever its value was before."""
    state = state_op(view.op(edge.node), len(view.inputs(edge.node)))
    return state is not None and state.kind == "assign" and edge.slot in state.state


def _gradient_update(captured: CapturedGraph, node: str) -> StateOp | None:
    """The description of an optimizer's update of a trainable variable or its slot; None for all other nodes.

    Scattered rows are a gradient's only where they are added: an update or a product writes other values.
    """
    op = captured.view.op(node)
    state = state_op(op, len(captured.view.inputs(node)))
    if state is None or state.kind not in ("apply", "scatter") or state.value is None:
        return None
    if state.kind == "scatter" and op not in ADDITIVE_SCATTERS:
        return None
    return state if _find_trained(captured, _find_written(captured, node, state)) else None


def _find_trained(captured: CapturedGraph, op: str) -> str:
    """The trainable variable that this one is, or belongs to as a slot; empty for others."""
    variable = captured.variables.get(op)
    if variable is None or variable.trainable:
        return op if variable is not None else ""
    return followed_variable(captured, op)


def followed_variable(captured: CapturedGraph, op: str) -> str:
    """The trainable variable of the same shape that a variable is named after (`emb/Adam` after `emb`), or empty."""
    base = captured.variables.get(op.rsplit("/", 1)[0])
    if base is None or not base.trainable or captured.variables[op].trainable:
        return ""
    return base.part.op if base.part.shape == captured.variables[op].part.shape else ""


def _find_written(captured: CapturedGraph, node: str, state: StateOp) -> str:
    return variable_of_tensor(captured.view, captured.variables, captured.view.inputs(node)[state.state[0]])


def _from_update(captured: CapturedGraph, node: str, state: StateOp, autodiff: set[str]) -> list[GradientSource]:
    """The source behind one update that no record accounts for."""
    view = captured.view
    part = _find_trained(captured, _find_written(captured, node, state))
    users = [Edge(node, slot) for slot in (state.value, state.indices) if slot is not None]
    gradients = [_walk_back(view, view.inputs(e.node)[e.slot], autodiff) for e in users]
    if None in gradients:
        users = _before_merge(view, users)
        tensors = [view.inputs(e.node)[e.slot] for e in users]
        outside = tuple(dict.fromkeys(e.node for e in users))
        found_by = BY_SCRIPT if captured.records else UPDATE_OP  # another gradient was recorded, so Parallax was there
        return [GradientSource(part, tensors[0], tensors[1] if len(tensors) > 1 else None, outside, found_by)]
    tensors = [t for t in gradients if t is not None]
    takers = [edge.node for tensor in tensors for edge in view.consumers(tensor)]
    outside = tuple(dict.fromkeys(n for n in takers if n not in autodiff))
    return [GradientSource(part, tensors[0], tensors[1] if len(tensors) > 1 else None, outside, NAME_SCOPE)]


def _before_merge(view: GraphView, users: list[Edge]) -> list[Edge]:
    """The inputs of the Unique and UnsortedSegmentSum before an update, if there are any."""
    producers = [node_of(view.inputs(e.node)[e.slot]) for e in users]
    if [view.op(p) for p in producers] in (["UnsortedSegmentSum", "Unique"], ["UnsortedSegmentSum", "UniqueV2"]):
        return [Edge(p, 0) for p in producers]
    return users


def _walk_back(view: GraphView, tensor: str, autodiff: set[str]) -> str | None:
    """The tensor of autodiff that became `tensor` through shape-preserving ops; None when there is none."""
    shape = view.shape(tensor)
    while node_of(tensor) not in autodiff:
        node = node_of(tensor)
        before = [t for t in view.inputs(node) if shape is not None and _same_rows(view.shape(t), shape)]
        related = [t for t in before if view.ancestors([node_of(t)]) & autodiff]
        if not related:
            return None
        tensor = related[0]
    return tensor


def _same_rows(shape: tuple[int | None, ...] | None, other: tuple[int | None, ...]) -> bool:
    return shape is not None and len(shape) == len(other) and list(shape[1:]) == list(other[1:])


def _autodiff_ops(view: GraphView) -> set[str]:
    """Ops under the scopes of tf.gradients (`SCOPE/FORWARD_grad/...` with FORWARD an op) and of tapes in a graph.

    Within a call that was inlined, both scope and forward op are under the call's name.
    """
    scopes = set()
    for name in view.nodes:
        parts = name.split("/")
        for end, part in enumerate(parts):
            if part == "gradient_tape":
                scopes.add("/".join(parts[: end + 1]))
            if not part.endswith("_grad"):
                continue
            for start in range(1, end + 1):
                forward = "/".join(parts[start : end + 1]).removesuffix("_grad")
                if any("/".join([*parts[:call], forward]) in view.nodes for call in range(start)):
                    scopes.add("/".join(parts[:start]))
    return {n for n in view.nodes if any("/".join(n.split("/")[:i]) in scopes for i in range(1, n.count("/") + 1))}
