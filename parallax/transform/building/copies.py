"""Subgraphs that are built once and then copied, as the collective of every dense gradient has the same structure.

TensorFlow takes some 100 us to build an op and some 5 us to copy a node, and a large graph has one or two collectives
for each variable. The first of its kind is built in a separate graph. Each further one is copied from there as nodes,
under the names and at the position in the order of nodes that TensorFlow would have given them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import DType, Graph, NodeDef, Tensor, TensorShape

_GIVEN = "given"


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor that is known only by its name: of the user's graph, or of a copy.

    Attributes:
        name: with the output number; in a worker's graph.
        dtype: of the elements.
        shape: static shape.
    """

    name: str
    dtype: DType
    shape: TensorShape


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A subgraph to be copied.

    Attributes:
        nodes: the nodes to copy, in order.
        scopes: the first component of each node's name, and its base before TensorFlow made it unique.
        result: the result of the subgraph, by its name in the pattern.
    """

    nodes: tuple[NodeDef, ...]
    scopes: dict[str, str]
    result: NamedTensor


class Copies:
    """Makes copies alongside the ops of a scratch graph, and orders both.

    Args:
        scratch: the graph in which all other ops are built; names differ from those in it.
    """

    def __init__(self, scratch: Graph) -> None:
        self._scratch = scratch
        self._patterns: dict[Hashable, _Pattern] = {}
        self._made: list[tuple[int, list[NodeDef]]] = []

    def copy(
        self, key: Hashable, build: Callable[..., Tensor], arguments: Sequence[NamedTensor | Tensor]
    ) -> NamedTensor:
        """The result of `build` for some tensors, under the current name scope.

        Args:
            key: equal for equal subgraphs of tensors of equal types and shapes.
            build: builds the subgraph from stand-ins for the tensors; it must depend on nothing outside the key, and
                create no variables.
            arguments: the tensors; none may be a stand-in of the scratch graph.
        """
        key = (key, *((t.dtype.as_datatype_enum, _dims(t)) for t in arguments))
        if key not in self._patterns:
            self._patterns[key] = _pattern(build, arguments)
        pattern = self._patterns[key]
        names = {top: str(self._scratch.unique_name(base)) for top, base in pattern.scopes.items()}
        data = {f"{_GIVEN}/{number}": _as_input(tensor) for number, tensor in enumerate(arguments)}
        controls = {f"^{_GIVEN}/{number}": f"^{tensor.name.split(':')[0]}" for number, tensor in enumerate(arguments)}
        led = data | controls
        copied = []
        for node in pattern.nodes:
            made = type(node)()
            made.CopyFrom(node)
            made.name = _rename(node.name, names)
            for slot, input_name in enumerate(node.input):
                made.input[slot] = led[input_name] if input_name in led else _rename(input_name, names)
            copied.append(made)
        self._made.append((self._scratch.version, copied))
        return NamedTensor(_rename(pattern.result.name, names), pattern.result.dtype, pattern.result.shape)

    def among(self, built: Sequence[NodeDef]) -> list[NodeDef]:
        """The nodes of the scratch graph in order, with each copy at the position where it was made."""
        nodes, done = list[NodeDef](), 0
        for place, copied in self._made:
            nodes += built[done:place]
            nodes += copied
            done = place
        return [*nodes, *built[done:]]


def _pattern(build: Callable[..., Tensor], arguments: Sequence[NamedTensor | Tensor]) -> _Pattern:
    graph = tf.Graph()
    with graph.as_default():
        stand_ins = [
            tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name=f"{_GIVEN}/{number}")
            for number, tensor in enumerate(arguments)
        ]
        result = build(*stand_ins)
    nodes = tuple(node for node in graph.as_graph_def().node if not node.name.startswith(f"{_GIVEN}/"))
    tops = list(dict.fromkeys(node.name.split("/")[0] for node in nodes))
    return _Pattern(
        nodes, {top: _base(top, tops) for top in tops}, NamedTensor(result.name, result.dtype, result.shape)
    )


def _base(top: str, tops: list[str]) -> str:
    """A name without the suffix that made it unique."""
    base, _, number = top.rpartition("_")
    return base if number.isdecimal() and base in tops else top


def _rename(name: str, names: dict[str, str]) -> str:
    """The name of a pattern's node, tensor or control input in a copy."""
    control = name.startswith("^")
    top = name.removeprefix("^").split("/")[0].split(":")[0]
    return f"{'^' * control}{names[top]}{name.removeprefix('^')[len(top) :]}"


def _as_input(tensor: NamedTensor | Tensor) -> str:
    """A tensor as TensorFlow writes it into a node: the first output of a new op without its number."""
    return str(tensor.name) if isinstance(tensor, NamedTensor) else str(tensor.name).removesuffix(":0")


def _dims(tensor: NamedTensor | Tensor) -> tuple[int | None, ...] | None:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
