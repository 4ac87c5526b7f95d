"""The forward pass of a graph as a sequence that can be cut anywhere; a loop, or any other block, is one member.

Blocks that depend on each other are merged. A member follows its inputs as soon as possible, the shorter branch first.
So what leads to a second loss, such as the statistics of a layer, is at the layer; and what is computed of variables
alone, such as a penalty on weights, is at the first layer that takes them (order_members.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from parallax.analysis.cut.order_members import find_readers, order_members
from parallax.graph.control_flow import branches_of
from parallax.graph.cut.blocks import blocks_of
from parallax.graph.view import VARIABLES, GraphView, node_of


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """The nodes computed from a batch on the way to its loss.

    Attributes:
        members: each a node, or the nodes of a block, in topological order.
        inputs: member's number -> the numbers of its inputs.
        readers: number of a member that is computed of variables alone -> the members that read these beside a batch.
    """

    members: tuple[tuple[str, ...], ...]
    inputs: tuple[frozenset[int], ...]
    readers: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def number_members(self) -> dict[str, int]:
        """Node -> its member's number."""
        return {node: number for number, nodes in enumerate(self.members) for node in nodes}

    def find_ancestors(self, numbers: Collection[int]) -> set[int]:
        """Some members, and all their ancestors."""
        ancestors, waiting = set(numbers), list(numbers)
        while waiting:
            for number in self.inputs[waiting.pop()]:
                if number not in ancestors:
                    ancestors.add(number)
                    waiting.append(number)
        return ancestors


def find_forward_pass(
    view: GraphView, losses: Collection[str], autodiff: Collection[str], everywhere: Collection[str]
) -> ForwardPass:
    """The forward pass of a graph.

    Args:
        view: the graph.
        losses: nodes that it ends with: what is differentiated, and gradients, whose forward nodes count too.
        autodiff: the nodes that autodiff made.
        everywhere: nodes of which each stage has its own.
    """
    needed, branches = view.ancestors(losses), branches_of(view)
    nodes = [
        node
        for node in view.topological_order()
        if node in needed
        and node not in autodiff
        and node not in everywhere
        and view.op(node) not in VARIABLES
        and (branches[node] or not _is_read(view, node))
    ]
    merged = _merge(_same_variable(view, nodes), blocks_of(view, nodes, everywhere))
    members: dict[str, list[str]] = {}
    for node in nodes:
        members.setdefault(merged.get(node, node), []).append(node)
    name_of = {node: name for name, those in members.items() for node in those}
    takes = {
        name: {name_of[before] for node in those for before in view.predecessors(node) if before in name_of} - {name}
        for name, those in members.items()
    }
    position = {node: number for number, node in enumerate(nodes)}
    order = list(_components(takes))
    node_groups = [[node for name in component for node in members[name]] for component in order]
    members_in_order = [tuple(sorted(those, key=position.__getitem__)) for those in node_groups]
    number_by_node = {node: number for number, those in enumerate(node_groups) for node in those}
    inputs = [
        frozenset(
            number_by_node[before] for node in those for before in view.predecessors(node) if before in number_by_node
        )
        - {number}
        for number, those in enumerate(node_groups)
    ]
    of_batch = view.descendants(
        node for node in view.nodes if not view.inputs(node) and view.op(node) not in (*VARIABLES, "Const")
    )
    has_batch = [not of_batch.isdisjoint(those) for those in node_groups]
    readers = find_readers([_list_variables(view, those) for those in node_groups], inputs, has_batch)
    return _select(ForwardPass(tuple(members_in_order), tuple(inputs), readers), order_members(inputs, readers))


def _list_variables(view: GraphView, nodes: Collection[str]) -> frozenset[str]:
    """The variables that some nodes read."""
    sources = {node_of(tensor) for node in nodes for tensor in view.inputs(node)}
    read = {node_of(view.inputs(node)[0]) for node in sources if _is_read(view, node)}
    return frozenset(node for node in sources | read if view.op(node) in VARIABLES)


def _select(forward: ForwardPass, numbers: Sequence[int]) -> ForwardPass:
    """Some members of a forward pass, in an order in which they can run."""
    place = {number: at for at, number in enumerate(numbers)}

    def renumber(old: Collection[int]) -> frozenset[int]:
        return frozenset(place[number] for number in old if number in place)

    return ForwardPass(
        tuple(forward.members[number] for number in numbers),
        tuple(renumber(forward.inputs[number]) for number in numbers),
        {place[number]: renumber(readers) for number, readers in forward.readers.items() if number in place},
    )


def find_main_part(forward: ForwardPass, losses: Collection[str], costs: Sequence[float]) -> ForwardPass:
    """The part of a forward pass that leads to its dearest loss, without what other losses alone need.

    A loss that shares at least half of what it needs is of that part too.

    Args:
        forward: of all losses.
        losses: nodes.
        costs: of its members.
    """
    number_by_node = forward.number_members()
    needs = [
        frozenset(forward.find_ancestors([number_by_node[loss]])) for loss in sorted(losses) if loss in number_by_node
    ]

    def cost(numbers: Collection[int]) -> float:
        return sum(costs[number] for number in numbers)

    main, others = frozenset[int](), frozenset[int]()
    for candidate in sorted(needs, key=cost, reverse=True):
        if not main or 2 * cost(candidate & main) >= cost(candidate):
            main |= candidate
        else:
            others |= candidate
    remaining = [number for number in range(len(forward.members)) if number in main or number not in others]
    return _select(forward, remaining)


def _is_read(view: GraphView, node: str) -> bool:
    """Whether a node returns the value of a variable."""
    if view.op(node) == "Identity":
        return view.op(node_of(view.inputs(node)[0])) in VARIABLES
    return view.op(node) == "ReadVariableOp"


def _same_variable(view: GraphView, nodes: Collection[str]) -> dict[str, str]:
    """Nodes that read one variable's handle, such as lookups of one table, each with the first of them."""
    first: dict[str, str] = {}
    component_by_node = {}
    for node in nodes:
        for tensor in view.inputs(node):
            source = node_of(tensor)
            if view.op(source) in VARIABLES:
                component_by_node[node] = first.setdefault(source, node)
    return component_by_node


def _merge(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Merges two groupings of nodes into one."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for pairs in (one, other):
        for node, name in pairs.items():
            parent[root(node)] = root(name)
    return {node: root(node) for node in parent}


def _components(takes: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Strongly connected components in topological order (Tarjan's algorithm, without recursion)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_names: list[str] = []
    is_open: set[str] = set()
    for start in takes:
        stack = [(start, iter(sorted(takes[start])))] if start not in number else []
        if stack:
            _enter(start, number, lowest, open_names, is_open)
        while stack:
            name, rest = stack[-1]
            after = next(rest, None)
            if after is None:
                stack.pop()
                if stack:
                    lowest[stack[-1][0]] = min(lowest[stack[-1][0]], lowest[name])
                if lowest[name] == number[name]:
                    at = open_names.index(name)
                    component = open_names[at:]
                    del open_names[at:]
                    is_open.difference_update(component)
                    yield component
            elif after not in number:
                _enter(after, number, lowest, open_names, is_open)
                stack.append((after, iter(sorted(takes[after]))))
            elif after in is_open:
                lowest[name] = min(lowest[name], number[after])


def _enter(name: str, number: dict[str, int], lowest: dict[str, int], open_names: list[str], is_open: set[str]) -> None:
    number[name] = lowest[name] = len(number)
    open_names.append(name)
    is_open.add(name)
