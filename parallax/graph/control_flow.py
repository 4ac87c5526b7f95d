"""Which conditionals and loops of the old style (Switch and Merge, Enter and Exit) a node is inside of.

A node runs only if the branches that it is in are taken: through the tensors that it takes, or through a control input,
as constants of a branch have it. TensorFlow's own rule is the same: what takes a dead value is dead.
"""

from __future__ import annotations

from typing import NamedTuple

from parallax.graph.view import GraphView, once_per_view, split_tensor

SWITCHES = ("Switch", "RefSwitch")
MERGES = ("Merge", "RefMerge")
_ENTERS = ("Enter", "RefEnter")
_EXITS = ("Exit", "RefExit")
_LOOP = -1


class Branch(NamedTuple):
    """A branch of a conditional, or a loop.

    Attributes:
        predicate: the tensor that decides; for a loop the name of its frame.
        taken: the value of the predicate with which the branch is taken, 0 or 1; -1 for a loop.
    """

    predicate: str
    taken: int

    @property
    def is_loop(self) -> bool:
        """Whether this is a loop's body."""
        return self.taken == _LOOP


Branches = tuple[Branch, ...]
"""From the outermost to the innermost."""


@once_per_view
def branches_of(view: GraphView) -> dict[str, Branches]:
    """For every node the branches and loops that it is inside of."""
    if not view.has_op((*SWITCHES, *_ENTERS)):
        return dict.fromkeys(view.nodes, ())
    found: dict[str, Branches] = {}
    for node in view.topological_order():
        op = view.op(node)
        inputs = [_at(view, found, tensor) for tensor in view.inputs(node) if split_tensor(tensor)[0] in found]
        inputs += [found[name] for name in view.controls(node) if name in found]
        deepest = max(inputs, key=len, default=())
        if op in _ENTERS:
            deepest = (*deepest, Branch(view.nodes[node].attr["frame_name"].s.decode(), _LOOP))
        elif op in _EXITS:
            loops = [place for place, branch in enumerate(deepest) if branch.is_loop]
            deepest = deepest[: loops[-1]] if loops else deepest
        elif op in MERGES and not is_loop_merge(view, node):
            deepest = _common(inputs)
        found[node] = deepest
    return found


def branches_at(view: GraphView, tensor: str) -> Branches:
    """The branches and loops in which a tensor is there; also those that a Switch begins."""
    return _at(view, branches_of(view), tensor)


def is_loop_merge(view: GraphView, node: str) -> bool:
    """Whether a Merge is the head of a loop and not the end of a conditional."""
    return any(view.op(split_tensor(t)[0]).endswith("NextIteration") for t in view.inputs(node))


def predicate_of(view: GraphView, switch: str) -> str:
    """The tensor that decides a Switch, behind copies."""
    tensor = view.inputs(switch)[1]
    while view.op(split_tensor(tensor)[0]) == "Identity":
        tensor = view.inputs(split_tensor(tensor)[0])[0]
    return tensor


def _at(view: GraphView, found: dict[str, Branches], tensor: str) -> Branches:
    """The branches in which a tensor is there: those of its node, and one more behind a Switch."""
    node, number = split_tensor(tensor)
    if view.op(node) not in SWITCHES:
        return found[node]
    predicate = predicate_of(view, node)
    if view.op(split_tensor(predicate)[0]) == "LoopCond":
        return found[node]
    return (*found[node], Branch(predicate, number))


def _common(inputs: list[Branches]) -> Branches:
    """What all have from the outside on."""
    common = inputs[0] if inputs else ()
    for other in inputs[1:]:
        same = [a == b for a, b in zip(common, other, strict=False)]
        common = common[: same.index(False) if False in same else len(same)]
    return common
