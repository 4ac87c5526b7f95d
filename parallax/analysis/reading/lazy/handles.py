"""Maps variables to the nodes that read their handles."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax.graph.view import GraphView

WRITES_WHOLE = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
WRITES_ROWS = ("ResourceScatterAdd", "ResourceScatterSub")
READ = "ReadVariableOp"
LOOKUP = "ResourceGather"
_PASSES = ("Identity", "Switch", "Enter")
"""Ops through which handles are followed. Others, including Merge, select the variable only at run time."""
_NO_ACCESS = ("VariableShape", "VarIsInitializedOp")


@dataclass(slots=True)
class Uses:
    """The nodes that read a variable's handle.

    Attributes:
        shape: of the variable.
        dtype: its type, as TensorFlow numbers types.
        writes: nodes that assign to it, add to it or subtract from it.
        reads: nodes that read the full value.
        lookups: nodes that gather rows.
        others: all other readers of the handle: optimizers' ops, conditionals, restore ops.
        passed: those of them that get the handle from a Switch or a loop -> the op that returns it.
    """

    shape: tuple[int, ...]
    dtype: int
    writes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    lookups: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    passed: dict[str, str] = field(default_factory=dict)


class Handles:
    """Variables of known shapes, and the uses of their handles.

    Attributes:
        uses: by variable op, in the order of the graph.
    """

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._variable: dict[str, str] = {}
        self.uses: dict[str, Uses] = {}
        for name, node in view.nodes.items():
            shape = node.attr["shape"].shape if node.op == "VarHandleOp" else None
            if shape is not None and not shape.unknown_rank and all(dim.size >= 0 for dim in shape.dim):
                self.uses[name] = Uses(tuple(int(dim.size) for dim in shape.dim), node.attr["dtype"].type)
        for variable, uses in self.uses.items():
            self._follow(variable, variable, uses, "")

    def variable(self, node: str) -> str:
        """The variable whose handle a node reads; empty where there is none."""
        return self._variable.get(node, "")

    def _follow(self, variable: str, giver: str, uses: Uses, passed: str) -> None:
        view = self._view
        for tensor in view.outputs(giver) or [f"{giver}:0"]:
            for edge in view.consumers(tensor):
                op = view.op(edge.node)
                if op in _PASSES:
                    self._follow(variable, edge.node, uses, passed if op == "Identity" else edge.node)
                elif op not in _NO_ACCESS:
                    self._note(variable, edge.node, edge.slot, uses)
                    if passed:
                        uses.passed[edge.node] = passed

    def _note(self, variable: str, node: str, slot: int, uses: Uses) -> None:
        op = self._view.op(node)
        self._variable[node] = variable
        if slot == 0 and op in (*WRITES_WHOLE, *WRITES_ROWS):
            uses.writes.append(node)
        elif op in (READ, LOOKUP):
            (uses.reads if op == READ else uses.lookups).append(node)
        else:
            uses.others.append(node)


def input_name(tensor: str) -> str:
    """A tensor as an input name in a GraphDef."""
    return tensor.removesuffix(":0")
