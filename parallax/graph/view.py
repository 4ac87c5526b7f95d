"""A read-only index over a GraphDef: the producer and consumers of a tensor, topological order, and shapes.

Tensors are named as TensorFlow names them, always with the output number (`emb/read:0`). An *edge* is an input of a
node: (node, input number). Both remain plain strings and integers, so that decisions about a graph can be printed and
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cached_property, lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

from parallax.base.errors import GraphError
from parallax.base.types import GraphDef, NodeDef, Value

Shape = tuple[int | None, ...] | None
"""A static shape: None where the rank is unknown, None in it where a dimension is."""


VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
NEXT_ITERATIONS = ("NextIteration", "RefNextIteration")
"""The back edges to the Merge at the head of a TensorFlow 1 loop."""

EXAMPLES = "_parallax_examples"
"""The attribute of a placeholder with the number of examples of a per-worker batch, where its shape is open."""
_REFERENCE = 100  # TensorFlow numbers the reference to a type 100 above the type
_SPLIT_NAMES = 1 << 18
"""Cache size for split tensor names: larger than graphs, as splitting is the most frequent operation of traversals."""
_PARSED_SHAPES = 1 << 14
_Found = TypeVar("_Found")


class Edge(NamedTuple):
    """Input number `slot` of node `node`."""

    node: str
    slot: int


class GraphView:
    """An index over a GraphDef with `_output_shapes`; it never changes the graph.

    Args:
        graph_def: the graph.
        instead: node -> the tensors that it is seen to read in place of its inputs.

    Attributes:
        graph_def: the graph.
        nodes: its nodes, by name.
        remembered: cached results of functions of the graph (`once_per_view`).
    """

    def __init__(self, graph_def: GraphDef, instead: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.graph_def = graph_def
        self._instead = instead
        self.nodes: dict[str, NodeDef] = {}
        self.remembered: dict[Any, Any] = {}
        self._ops: dict[str, str] = {}
        self._inputs: dict[str, tuple[str, ...]] = {}
        self._controls: dict[str, tuple[str, ...]] = {}
        self._outputs: dict[str, list[str]] = {}
        self._shapes: dict[str, Shape] = {}
        self._order: list[str] = []
        nodes, ops, inputs_by_node, controls_by_node = self.nodes, self._ops, self._inputs, self._controls
        for node in graph_def.node:
            name, inputs, controls = node.name, node.input[:], ()
            if inputs and inputs[-1][0] == "^":
                controls = tuple([one[1:] for one in inputs if one[0] == "^"])
                inputs = [one for one in inputs if one[0] != "^"]
            nodes[name], ops[name], controls_by_node[name] = node, node.op, controls
            inputs_by_node[name] = tuple([one if ":" in one else one + ":0" for one in inputs]) if inputs else ()
        inputs_by_node |= instead or {}

    def __reduce__(self) -> tuple[type[GraphView], tuple[GraphDef, Mapping[str, tuple[str, ...]] | None]]:
        return GraphView, (self.graph_def, self._instead)

    @cached_property
    def _consumers(self) -> dict[str, list[Edge]]:
        edges_by_tensor: dict[str, list[Edge]] = {}
        for name, inputs in self._inputs.items():
            for slot, tensor in enumerate(inputs):
                edge = Edge(name, slot)
                if tensor in edges_by_tensor:
                    edges_by_tensor[tensor].append(edge)
                else:
                    edges_by_tensor[tensor] = [edge]
        return edges_by_tensor

    @cached_property
    def _control_consumers(self) -> dict[str, list[str]]:
        nodes_by_control: dict[str, list[str]] = {}
        for name, controls in self._controls.items():
            for control in controls:
                nodes_by_control.setdefault(control, []).append(name)
        return nodes_by_control

    @cached_property
    def _position(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.nodes)}

    @cached_property
    def _before(self) -> dict[str, list[str]]:
        controls = self._controls
        return {
            node: [*[node_of(tensor) for tensor in inputs], *controls[node]] for node, inputs in self._inputs.items()
        }

    @cached_property
    def _by_op(self) -> dict[str, list[str]]:
        nodes_by_op: dict[str, list[str]] = {}
        for name, op in self._ops.items():
            if op in nodes_by_op:
                nodes_by_op[op].append(name)
            else:
                nodes_by_op[op] = [name]
        return nodes_by_op

    def op(self, node: str) -> str:
        """The op type of a node."""
        return self._ops[node]

    def has_op(self, ops: Iterable[str]) -> bool:
        """Whether the graph has a node of one of these op types."""
        return any(op in self._by_op for op in ops)

    def nodes_of(self, ops: Iterable[str]) -> list[str]:
        """The nodes of these op types, in the order of the graph."""
        nodes_by_op = [self._by_op[op] for op in ops if op in self._by_op]
        if len(nodes_by_op) == 1:
            return [*nodes_by_op[0]]
        return sorted((node for nodes in nodes_by_op for node in nodes), key=self._position.__getitem__)

    def flag(self, node: str, attribute: str) -> bool:
        """Whether a node has an attribute that is true, or a number other than 0.

        Looking up a missing attribute by name in the node itself would add it to the node.
        """
        attributes = self.nodes[node].attr
        return attribute in attributes and bool(attributes[attribute].b or attributes[attribute].i)

    def inputs(self, node: str) -> tuple[str, ...]:
        """The input tensors of a node, in order."""
        return self._inputs[node]

    def controls(self, node: str) -> tuple[str, ...]:
        """The control inputs of a node."""
        return self._controls[node]

    def nodes_before(self, node: str) -> list[str]:
        """The nodes of a node's data and control inputs, as it names them, with repetition."""
        return self._before[node]

    def consumers(self, tensor: str) -> list[Edge]:
        """The edges that read a tensor, in the order of the graph."""
        return self._consumers.get(tensor, [])

    def takers(self, tensor: str) -> list[Edge]:
        """The edges that read a tensor directly or through copies, as of the results of a call (lowering/inline.py)."""
        edges = []
        for edge in self.consumers(tensor):
            edges += [edge, *(self.takers(f"{edge.node}:0") if self.op(edge.node) == "Identity" else ())]
        return edges

    def source(self, tensor: str) -> str:
        """The tensor behind copies."""
        while self.op(node_of(tensor)) == "Identity":
            tensor = self.inputs(node_of(tensor))[0]
        return tensor

    def users(self, node: str) -> Iterator[str]:
        """The nodes that read any output of a node, or wait for it, with repetition."""
        for tensor in self.outputs(node):
            for edge in self.consumers(tensor):
                yield edge.node
        yield from self._control_consumers.get(node, [])

    def outputs(self, node: str) -> list[str]:
        """The output tensors of a node."""
        if node not in self._outputs:
            self._read_outputs(node)
        return self._outputs[node]

    def shape(self, tensor: str) -> Shape:
        """The static shape of a tensor."""
        if tensor not in self._shapes:
            node = node_of(tensor)
            if node not in self._outputs:
                self._read_outputs(node)
            self._shapes.setdefault(tensor, None)
        return self._shapes[tensor]

    def _read_outputs(self, node: str) -> None:
        """Reads a node's outputs and their shapes as inferred by TensorFlow, once: protocol buffers are slow."""
        attribute = self.nodes[node].attr.get("_output_shapes")
        shapes = _parse_shapes(attribute.SerializeToString()) if attribute is not None else ()
        names = self._outputs[node] = [f"{node}:{number}" for number in range(len(shapes))]
        self._shapes.update(zip(names, shapes, strict=True))

    def dtype(self, tensor: str) -> int:
        """The element type of a tensor, as TensorFlow numbers types (references as their values' type)."""
        from tensorflow.python.framework import op_def_registry

        node_name, number = split_tensor(tensor)
        node = self.nodes[node_name]
        definition = op_def_registry.get(node.op)
        if definition is None:
            definition = next(f.signature for f in self.graph_def.library.function if f.signature.name == node.op)
        types: list[int] = []
        for argument in definition.output_arg:
            if argument.type_list_attr:
                types += node.attr[argument.type_list_attr].list.type
                continue
            one = argument.type or node.attr[argument.type_attr].type
            types += [one] * (node.attr[argument.number_attr].i if argument.number_attr else 1)
        return types[number] % _REFERENCE

    def gives_reference(self, node: str) -> bool:
        """Whether an op returns a reference to a variable, as `VariableV2` and ops that assign one do."""
        from tensorflow.python.framework import op_def_registry

        definition = op_def_registry.get(self.nodes[node].op)
        return definition is not None and any(argument.is_ref for argument in definition.output_arg)

    def dtype_name(self, tensor: str) -> str:
        """TensorFlow's name of the element type of a tensor (`float32`)."""
        from tensorflow.python.framework import dtypes

        return str(dtypes.as_dtype(self.dtype(tensor)).name)

    def constant(self, tensor: str) -> Value | None:
        """The value of a tensor (a numpy array) if it is a Const, seen through Identity and Cast; else None."""
        from tensorflow import as_dtype
        from tensorflow.python.framework import tensor_util  # TensorFlow's own reader of constant protos

        node = node_of(tensor)
        while self.op(node) in ("Identity", "Cast"):
            node = node_of(self.inputs(node)[0])
        if self.op(node) != "Const":
            return None
        value = tensor_util.MakeNdarray(self.nodes[node].attr["value"].tensor)
        return value if value.dtype == object else value.astype(as_dtype(self.dtype(tensor)).as_numpy_dtype, copy=False)

    def ancestors(self, nodes: Iterable[str], fed: frozenset[str] = frozenset()) -> set[str]:
        """The nodes and all their ancestors, through tensors and control inputs; fed tensors have none."""
        ancestors = set(nodes)
        waiting = list(ancestors)
        before = self._before
        while waiting:
            node = waiting.pop()
            for needed in self._find_needed(node, fed) if fed else before[node]:
                if needed not in ancestors:
                    ancestors.add(needed)
                    waiting.append(needed)
        return ancestors

    def _find_needed(self, node: str, fed: frozenset[str]) -> list[str]:
        """The nodes on which a node depends where some tensors are fed."""
        return [*[node_of(t) for t in self._inputs[node] if t not in fed], *self._controls[node]]

    def computed_of(self, nodes: Iterable[str]) -> set[str]:
        """The nodes and all ancestors through tensors; nodes connected by control inputs alone are excluded."""
        computed = set(nodes)
        waiting = list(computed)
        while waiting:
            for tensor in self._inputs[waiting.pop()]:
                if (needed := node_of(tensor)) not in computed:
                    computed.add(needed)
                    waiting.append(needed)
        return computed

    def descendants(self, nodes: Iterable[str], stops: Set[str] = frozenset(), waits: bool = False) -> set[str]:
        """The nodes and all nodes computed from their outputs, except `stops`.

        Args:
            nodes: the starting nodes.
            stops: the nodes where the search stops.
            waits: whether nodes connected by control inputs alone count, too.
        """
        descendants, takers = set(nodes) - stops, _takers_by_node(self)
        waiting = list(descendants)
        while waiting:
            node = waiting.pop()
            users = takers.get(node, ())
            for user in [*users, *self._control_consumers.get(node, ())] if waits else users:
                if user not in descendants and user not in stops:
                    descendants.add(user)
                    waiting.append(user)
        return descendants

    def reach(self, nodes: Iterable[str], within: Set[str]) -> set[str]:
        """The given nodes, and those of `within` that are computed from them, without the back edges of loops."""
        reached, takers = set(nodes), _takers_by_node(self)
        waiting = list(reached)
        while waiting:
            for taker in takers.get(waiting.pop(), ()):
                if taker not in reached and taker in within:
                    reached.add(taker)
                    if self._ops[taker] not in NEXT_ITERATIONS:
                        waiting.append(taker)
        return reached

    def topological_order(self) -> list[str]:
        """Every node after all its predecessors; ties in the order of the graph.

        The back edges of TensorFlow 1 loops (`NextIteration`) are left out.
        """
        if self._order:
            return self._order
        order = self._order
        state: dict[str, int] = {}
        for root, before in self._before.items():
            if state.get(root) is None and all([needed in state for needed in before]):
                state[root] = 2  # roots do not wait for each other: a node with a state is done
                order.append(root)
                continue
            stack = [root]
            while stack:
                node = stack[-1]
                if state.get(node) == 2:
                    stack.pop()
                    continue
                if state.get(node) == 1:
                    state[node] = 2
                    order.append(node)
                    stack.pop()
                    continue
                state[node] = 1
                for needed in self.predecessors(node):
                    if not state.get(needed):
                        stack.append(needed)
        return order

    def predecessors(self, node: str) -> list[str]:
        """The nodes of a node's data and control inputs, without the back edge to the Merge of a loop."""
        if node not in self._inputs:
            raise GraphError(f"The graph names node {node!r} as an input and does not hold it.")
        needed = self._before[node]
        if self.op(node) in ("Merge", "RefMerge"):
            needed = [n for n in needed if self.op(n) not in NEXT_ITERATIONS]
        return sorted(set(needed), key=self._position.__getitem__, reverse=True) if len(needed) > 1 else needed


def once_per_view(function: Callable[[GraphView], _Found]) -> Callable[[GraphView], _Found]:
    """Decorates a function of a view alone: its result is cached with the view, and must not be modified."""

    @wraps(function)
    def remember(view: GraphView) -> _Found:
        if function not in view.remembered:
            view.remembered[function] = function(view)
        result: _Found = view.remembered[function]
        return result

    return remember


@once_per_view
def _takers_by_node(view: GraphView) -> dict[str, list[str]]:
    """Node -> the nodes that read its outputs; also where the shapes of outputs are unknown."""
    takers_by_node: dict[str, list[str]] = {}
    for node in view.nodes:
        for tensor in view.inputs(node):
            needed = node_of(tensor)
            if needed in takers_by_node:
                takers_by_node[needed].append(node)
            else:
                takers_by_node[needed] = [node]
    return takers_by_node


def tensor_name(name: str) -> str:
    """Normalizes `op` and `op:0`, which are one tensor, to the form with the number."""
    return name if ":" in name else f"{name}:0"


@lru_cache(_PARSED_SHAPES)
def _parse_shapes(attribute: bytes) -> tuple[Shape, ...]:
    """The shapes of a node's outputs, from the bytes of the attribute: most nodes have the shapes of another."""
    from tensorflow.core.framework import attr_value_pb2

    shapes = attr_value_pb2.AttrValue.FromString(attribute).list.shape
    return tuple(
        None if shape.unknown_rank else tuple([None if dim.size < 0 else int(dim.size) for dim in shape.dim])
        for shape in shapes
    )


@lru_cache(_SPLIT_NAMES)
def node_of(name: str) -> str:
    """The node of a name, which is a tensor's (`op:1`), that of a control input (`^op`), or the node's own."""
    return name.partition(":")[0].removeprefix("^")


@lru_cache(_SPLIT_NAMES)
def split_tensor(tensor: str) -> tuple[str, int]:
    """`op:1` as (`op`, 1)."""
    node, _, number = tensor.rpartition(":")
    return node, int(number)
