"""Rules for tensors along rows: joined gradient rows, rows at their owner, and the lookups that make and meet them.

A rule returns True when it has given the node's outputs their states. What no rule takes is decided in rules.py.
"""

from __future__ import annotations

import math

from parallax.analysis.states import ALONG_ROWS, PLAIN, SAME, State, worst
from parallax.analysis.walk import Merge, NoRule, Walk
from parallax.decisions import AllReduce, Lookup, WholeShape
from parallax.graph_view import Edge, split_tensor

_ELEMENTWISE = frozenset(
    {
        *(
            "Neg",
            "Mul",
            "MulNoNan",
            "Add",
            "AddV2",
            "Sub",
            "RealDiv",
            "Div",
            "DivNoNan",
            "FloorDiv",
            "Maximum",
            "Minimum",
        ),
        *(
            "Square",
            "Sqrt",
            "Rsqrt",
            "Abs",
            "Sign",
            "Exp",
            "Log",
            "Log1p",
            "Pow",
            "Select",
            "SelectV2",
            "Greater",
            "Less",
        ),
        *(
            "GreaterEqual",
            "LessEqual",
            "Equal",
            "NotEqual",
            "LogicalAnd",
            "LogicalOr",
            "LogicalNot",
            "IsFinite",
            "IsNan",
        ),
        *(
            "IsInf",
            "StopGradient",
            "Cast",
            "ClipByValue",
            "Tanh",
            "Sigmoid",
            "Reciprocal",
            "Inv",
            "ZerosLike",
            "OnesLike",
        ),
        *("SquaredDifference", "AddN", "Snapshot", "CheckNumerics", "PreventGradient", "Identity", "Print", "Softsign"),
    }
)
_REDUCTIONS = {"Sum": "sum", "Max": "max", "Min": "min", "Mean": "rows_mean", "All": "min", "Any": "max"}
_SEGMENT_SUM = "UnsortedSegmentSum"


def visit(walk: Walk, node: str, op: str) -> bool:
    """Applies the rule for this op, if its inputs are along rows and it has one."""
    states = walk.input_states(node)
    if op == "IdentityN":
        for number, state in enumerate(states):
            walk.states[f"{node}:{number}"] = state
        return True
    if all(s.kind in PLAIN for s in states):
        return False
    rule = _RULES.get(op)
    if rule is not None and rule(walk, node, states):
        return True
    return op in _ELEMENTWISE and _elementwise(walk, node, states)


def part_of(walk: Walk, state: State) -> str:
    """The variable op that a state along rows belongs to."""
    token = state.key[0] if state.key else ""
    if isinstance(token, State):
        return part_of(walk, token)
    return walk.part_of_token.get(token, str(token))


def _elementwise(walk: Walk, node: str, states: list[State]) -> bool:
    """Keeps the state along rows when every other operand is equal on all workers and no wider than a row."""
    values = [_read(walk, s) for s in states]
    along = {s for s in values if s.kind in (*ALONG_ROWS, "indices", "touched_indices")}
    if len(along) != 1:
        return False
    (state,) = along
    rank = max(len(walk.view.shape(t) or ()) for t, s in zip(walk.view.inputs(node), values, strict=True) if s == state)
    slices = []
    for slot, other in enumerate(values):
        if other == state:
            continue
        if walk.require_same(other) != SAME:
            return False
        shape = walk.view.shape(walk.view.inputs(node)[slot])
        if shape is None:
            return False
        if len(shape) >= rank > 0 and shape[0] != 1:
            if state.kind != "rows" or shape[0] != walk.tables[state.key[0]].rows:
                return False
            slices.append(Edge(node, slot))
    for edge in slices:
        walk.slice_rows(state.key[0], edge)
    walk.set_all(node, state)
    if state.kind == "rows" and walk.view.op(node) == "Identity" and states[0].kind == "handle":
        walk.gather_rows(f"{node}:0", state.key[0])
    return True


def _read(walk: Walk, state: State) -> State:
    """The value of a reference where an op takes it as a value."""
    return walk.value_state(state.key[0]) if state.kind == "handle" else state


def _read_variable(walk: Walk, node: str, states: list[State]) -> bool:
    state = _read(walk, states[0])
    walk.set_all(node, state)
    if state.kind == "rows":
        walk.gather_rows(f"{node}:0", state.key[0])
    return True


def _gather(walk: Walk, node: str, states: list[State]) -> bool:
    """A lookup: a pull for ids of this worker, a local gather by row numbers that are local already."""
    params, ids = _read(walk, states[0]), states[1]
    along_first = not _attribute(walk, node, "batch_dims") and (
        len(states) < 3 or walk.view.constant(walk.view.inputs(node)[2]) == 0
    )
    if not along_first:
        return False
    if params.kind != "rows":
        if params != SAME or ids.kind not in ("indices", "touched_indices"):
            return False
        walk.set_all(node, _aligned_with(walk, ids))
        return True
    if ids.kind == "touched_indices" and ids.key[0] == params.key[0]:
        walk.set_all(node, State("touched", ids.key))
        return True
    if ids.kind not in (*PLAIN, "indices"):
        return False
    if walk.depth[node]:
        raise NoRule(params.key[0], f"lookup {node!r} is inside a conditional or loop, which not all workers may enter")
    walk.lookups.append(Lookup(node, params.key[0]))
    walk.set_all(node, _aligned_with(walk, ids) if ids.kind == "indices" else worst([ids]))
    return True


def _aligned_with(walk: Walk, indices: State) -> State:
    """The state of rows that lie beside joined or merged indices."""
    if indices.kind == "touched_indices":
        return State("touched", indices.key)
    return State("values", tuple(walk.pairs.get((k,), (k,))[0] for k in indices.key))


def _unique(walk: Walk, node: str, states: list[State]) -> bool:
    """Equal rows are merged here: this is where joined rows go to their owners, or to everybody."""
    if states[0].kind != "indices":
        return False
    part = part_of(walk, states[0])
    walk.merges[node] = Merge(part, states[0].key, [Edge(node, 0)])
    table = walk.table_of.get(part)
    walk.states[f"{node}:0"] = State("touched_indices", (table, node)) if table else SAME
    walk.states[f"{node}:1"] = State("map", (table or part, node))
    return True


def _segment_sum(walk: Walk, node: str, states: list[State]) -> bool:
    """Values summed by row: the partner of a Unique, or a gradient made dense."""
    values, segments = states[0], states[1]
    if values.kind != "values":
        return False
    if segments.kind == "map" and _paired(walk, values, walk.merges[segments.key[1]].indices_token):
        walk.merges[segments.key[1]].values.append(Edge(node, 0))
        part = part_of(walk, values)
        walk.set_all(node, State("touched", segments.key) if part in walk.table_of else SAME)
        return True
    if segments.kind == "indices" and _paired(walk, values, segments.key):
        _sum_over_workers(walk, node, "sum")
        return True
    return False


def _paired(walk: Walk, values: State, indices: tuple[str, ...]) -> bool:
    return values.key == tuple(walk.pairs.get((k,), (k,))[0] for k in indices)


def _sum_over_workers(walk: Walk, node: str, kind: str, weight: str = "") -> None:
    """The result is a part of what the one process has: all workers' parts are put together."""
    tensor = f"{node}:0"
    edges = tuple(walk.view.consumers(tensor))
    walk.all_reduces.append(AllReduce(tensor, edges, kind, weight))
    walk.set_all(node, SAME)


def _reduction(walk: Walk, node: str, states: list[State]) -> bool:
    state = _read(walk, states[0])
    axes = walk.view.constant(walk.view.inputs(node)[1])
    shape = walk.view.shape(walk.view.inputs(node)[0])
    if state.kind not in ALONG_ROWS or axes is None or shape is None:
        return False
    if not any(int(axis) % max(len(shape), 1) == 0 for axis in axes.reshape(-1)):
        walk.set_all(node, state)
        return True
    if walk.depth[node]:
        return False
    kind = _REDUCTIONS[walk.view.op(node)]
    _sum_over_workers(walk, node, kind, walk.view.inputs(node)[0] if kind == "rows_mean" else "")
    return True


def _l2_loss(walk: Walk, node: str, states: list[State]) -> bool:
    if _read(walk, states[0]).kind not in ALONG_ROWS or walk.depth[node]:
        return False
    _sum_over_workers(walk, node, "sum")
    return True


def _shape(walk: Walk, node: str, states: list[State]) -> bool:
    state = _read(walk, states[0])
    if state.kind == "rows":
        walk.shapes.append(WholeShape(node, state.key[0]))
        walk.set_all(node, SAME)
        return True
    if state.kind in (*ALONG_ROWS, "indices", "touched_indices"):
        walk.set_all(node, State("extent", (state,)))
        return True
    return False


def _of_extent(walk: Walk, node: str, states: list[State]) -> bool:
    """What is cut out of, or computed from, a shape along rows stays one."""
    if states[0].kind != "extent":
        return False
    walk.set_all(node, states[0])
    return True


def _fill(walk: Walk, node: str, states: list[State]) -> bool:
    if states[0].kind != "extent" or walk.require_same(states[1]) != SAME:
        return False
    walk.set_all(node, states[0].key[0])
    return True


def _reshape(walk: Walk, node: str, states: list[State]) -> bool:
    """Keeps the rows when only what is within a row is folded."""
    state, target = states[0], states[1]
    before, after = walk.view.shape(walk.view.inputs(node)[0]), walk.view.shape(f"{node}:0")
    if state.kind not in (*ALONG_ROWS, "indices", "touched_indices"):
        return False
    if target.kind == "extent" and target.key[0] == state:
        walk.set_all(node, state)
        return True
    if before is None or after is None or not after or None in before[1:] or None in after[1:]:
        return False
    if math.prod(d or 0 for d in before[1:]) != math.prod(d or 0 for d in after[1:]):
        return False
    wanted = walk.view.constant(walk.view.inputs(node)[1])
    if wanted is None or int(wanted.reshape(-1)[0]) != -1:
        return False
    walk.set_all(node, state)
    return True


def _expand_dims(walk: Walk, node: str, states: list[State]) -> bool:
    axis = walk.view.constant(walk.view.inputs(node)[1])
    if (
        states[0].kind not in ALONG_ROWS
        or axis is None
        or int(axis) in (0, -1 - len(walk.view.shape(f"{node}:0") or ()))
    ):
        return False
    walk.set_all(node, states[0])
    return True


def _concat(walk: Walk, node: str, states: list[State]) -> bool:
    """Rows of several gradients, one after the other."""
    pieces, axis = states[:-1], walk.view.constant(walk.view.inputs(node)[-1])
    kinds = {s.kind for s in pieces}
    if axis is None or int(axis) != 0 or len(kinds) != 1 or kinds - {"values", "indices"}:
        return False
    if len({part_of(walk, s) for s in pieces}) != 1:
        return False
    walk.set_all(node, State(pieces[0].kind, tuple(k for s in pieces for k in s.key)))
    return True


def _switch(walk: Walk, node: str, states: list[State]) -> bool:
    """Conditionals of initial values only: the branches keep the rows."""
    state = _read(walk, states[0])
    if state.kind != "rows" or node in walk.training or node not in walk.initial:
        return False
    walk.set_all(node, state)
    return True


def _merge(walk: Walk, node: str, states: list[State]) -> bool:
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


def _if(walk: Walk, node: str, states: list[State]) -> bool:
    """The initial value of a moving average: `variable if it is initialized else its initial value`."""
    if node in walk.training or node not in walk.initial:
        return False
    slots = _passed_through(walk, node)
    if slots is None:
        return False
    kinds = [_read(walk, states[slot + 1]) for slot in slots]
    rows = {s for s in kinds if s.kind == "rows"}
    if len(rows) != 1 or any(s not in rows and s != SAME for s in kinds):
        return False
    (state,) = rows
    for slot, kind in zip(slots, kinds, strict=True):
        if kind == SAME:
            walk.slice_rows(state.key[0], Edge(node, slot + 1))
    walk.conditionals.append(node)
    walk.set_all(node, state)
    return True


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


def _size(walk: Walk, node: str, states: list[State]) -> bool:
    if states[0].kind not in ("values", "indices"):
        return _shape(walk, node, states) if states[0].kind != "rows" else False
    _sum_over_workers(walk, node, "sum")
    return True


def _attribute(walk: Walk, node: str, name: str) -> int:
    return int(walk.view.nodes[node].attr[name].i)


def is_gather(op: str) -> bool:
    """Whether an op looks rows up by number."""
    return op in ("ResourceGather", "GatherV2", "Gather")


def gathered_table(walk: Walk, node: str) -> str:
    """The node that gives a gather its rows."""
    return split_tensor(walk.view.inputs(node)[0])[0]


_RULES = {
    "ReadVariableOp": _read_variable,
    "ResourceGather": _gather,
    "GatherV2": _gather,
    "Gather": _gather,
    "Unique": _unique,
    "UniqueV2": _unique,
    _SEGMENT_SUM: _segment_sum,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "L2Loss": _l2_loss,
    "Shape": _shape,
    "VariableShape": _shape,
    "Size": _size,
    "StridedSlice": _of_extent,
    "Fill": _fill,
    "BroadcastTo": lambda walk, node, states: _fill(walk, node, states[::-1]),
    "Reshape": _reshape,
    "ExpandDims": _expand_dims,
    "ConcatV2": _concat,
    "Switch": _switch,
    "RefSwitch": _switch,
    "Merge": _merge,
    "If": _if,
    "StatelessIf": _if,
}
