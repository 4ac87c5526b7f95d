"""Finds effects of function bodies that are invisible to their callers: arguments that they write, and random draws.

Calls at the top level are inlined (inline.py), and conditionals that write variables are lowered
(functional_control_flow.py). Loops, conditionals that only compute, and the functions of datasets and maps remain.
"""

from __future__ import annotations

from collections.abc import Callable

from parallax.base.types import FunctionDef, FunctionLibrary, NameAttrList, NodeDef
from parallax.graph.ops import state_op, takes_functions
from parallax.graph.view import GraphView

CONDITIONALS = ("If", "StatelessIf", "Case", "StatelessCase")


class Functions:
    """The functions of a graph's library.

    Args:
        library: a FunctionDefLibrary.
        differs: whether an op type returns, or may return, other values on every worker from the same inputs.
    """

    def __init__(self, library: FunctionLibrary, differs: Callable[[str], bool]) -> None:
        self._functions = {f.signature.name: f for f in library.function}
        self._differs = differs
        self._written: dict[str, frozenset[int]] = {}
        self._differing: dict[str, str] = {}

    def of_node(self, node: NodeDef) -> list[str]:
        """The names of the functions that a node calls."""
        if not self._functions or not takes_functions(node.op):
            return []
        names = []
        for name in sorted(node.attr):
            value = node.attr[name]
            names += [value.func.name] if value.HasField("func") else [f.name for f in value.list.func]
        return [name for name in names if name in self._functions]

    def find_written(self, name: str) -> frozenset[int]:
        """The indices of the arguments that are variables written by the body."""
        if name not in self._written:
            self._written[name] = frozenset()  # a recursive function
            self._written[name] = self._written_by(self._functions[name])
        return self._written[name]

    def differing_op(self, name: str) -> str:
        """An op of the body that returns other values on every worker, as `function/node`; empty if there is none."""
        if name not in self._differing:
            self._differing[name] = ""
            for node in self._functions[name].node_def:
                inner = [self.differing_op(f) for f in self.of_node(node)]
                calls = bool(self.of_node(node))
                if any(inner) or (not calls and not _is_variable_op(node) and self._differs(node.op)):
                    self._differing[name] = next((i for i in inner if i), f"{name}/{node.name}")
                    break
        return self._differing[name]

    def _written_by(self, function: FunctionDef) -> frozenset[int]:
        arguments = {arg.name: i for i, arg in enumerate(function.signature.input_arg)}
        nodes = {node.name: node for node in function.node_def}

        def argument(tensor: str) -> int | None:
            name = tensor.split(":")[0]
            while name in nodes and nodes[name].op in ("Identity", "Switch", "Enter"):
                name = nodes[name].input[0].split(":")[0]
            return arguments.get(name)

        written = set()
        for node in function.node_def:
            data = [i for i in node.input if not i.startswith("^")]
            state = state_op(node.op, len(data))
            slots = list(state.state) if state is not None else []
            slots += sorted(self.written_slots(node))
            written |= {argument(data[slot]) for slot in slots if slot < len(data)} - {None}
        return frozenset(number for number in written if number is not None)

    def written_slots(self, node: NodeDef) -> frozenset[int]:
        """The inputs of a node that are variables written by the functions that it calls."""
        first = 1 if node.op in CONDITIONALS else 0
        return frozenset(first + number for name in self.of_node(node) for number in self.find_written(name))


def _is_variable_op(node: NodeDef) -> bool:
    """Whether an op reads or writes the resource of its handle: the state of the caller's variable decides."""
    return state_op(node.op, sum(not i.startswith("^") for i in node.input)) is not None


def functions_of(view: GraphView, differs: Callable[[str], bool]) -> Functions:
    """The functions of a graph."""
    return Functions(view.graph_def.library, differs)


def list_branches(node: NodeDef) -> list[NameAttrList]:
    """The functions of a conditional's branches."""
    if "branches" in node.attr:
        return list(node.attr["branches"].list.func)
    return [node.attr[name].func for name in ("then_branch", "else_branch")]
