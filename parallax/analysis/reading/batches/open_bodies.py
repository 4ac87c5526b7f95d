"""Opens the function bodies of loops and conditionals in a graph for a fixed batch, by the shapes of their arguments.

A body is a graph, and its constants are opened by the rules of the outer graph, but the batch length enters a body
through its arguments alone. A loop variable is open if it is open at the start or if an iteration opens it. A result of
a conditional is open if any branch opens it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from parallax.analysis.reading.batches.batch_constants import BatchConstants
from parallax.analysis.reading.batches.batch_degrees import Degrees
from parallax.analysis.reading.batches.batch_divisors import BatchDivisors
from parallax.analysis.reading.batches.batch_numbers import IntegerClassifier
from parallax.analysis.reading.batches.open_lengths import LISTS
from parallax.analysis.reading.lowering.function_bodies import CONDITIONALS, list_branches
from parallax.analysis.reading.lowering.functional_control_flow import LOOPS
from parallax.analysis.reading.lowering.infer_shapes import drop_shapes, infer_shapes_again
from parallax.analysis.reading.lowering.inline import find_handles, graph_of_function
from parallax.base.types import FunctionDef, GraphDef, NodeDef
from parallax.graph.ops import takes_functions
from parallax.graph.view import GraphView, Shape, node_of, tensor_name

_SHAPES = "_output_shapes"
_MOST_PASSES = 100


@dataclass(frozen=True, slots=True)
class _OpenedFunction:
    """The results of a function for arguments of some shapes, and whether all its constants could be classified.

    Attributes:
        find_degrees: degrees of the arguments -> those of the results.
    """

    function: FunctionDef
    results: tuple[Shape, ...]
    is_classified: bool
    find_degrees: Callable[[Degrees], Degrees]


class OpenBodies:
    """The functions of one graph, or of a body in it.

    Args:
        view: the graph for the fixed batch.
        length: of the batch.
        numbers: the classification of integers.

    Attributes:
        are_classified: whether all constants of the functions could be classified when they were last opened.
    """

    def __init__(self, view: GraphView, length: int, numbers: IntegerClassifier) -> None:
        self._view, self._length, self._numbers = view, length, numbers
        self._by_name: dict[str, _OpenedFunction] = {}
        self._known: dict[tuple[str, tuple[Shape, ...], tuple[str, ...], int | None], _OpenedFunction] = {}
        self.are_classified = True

    def change(self, inferred: GraphView, opened: GraphDef, nodes: Sequence[str], constants: BatchConstants) -> bool:
        """Opens the functions that some nodes run, and declares the open results of the nodes.

        Args:
            inferred: the graph with an open batch, with its current shapes.
            opened: the same graph, which is modified.
            nodes: of the graph, some of which run functions.
            constants: the constants of the graph.

        Returns:
            Whether shapes have changed.
        """
        by_name = {node.name: node for node in opened.node}
        self.are_classified, is_changed = True, False
        for name in nodes:
            node = by_name[name]
            if node.op in LOOPS:
                is_changed |= self._open_loop(inferred, opened, node, constants)
            elif node.op in CONDITIONALS:
                is_changed |= self._open_conditional(inferred, opened, node)
            elif takes_functions(node.op) and not _makes_batches(inferred, name):
                self.are_classified = False
        return is_changed

    def find_degrees(self, function: str, arguments: Degrees) -> Degrees:
        """The degrees of the results of a function that some node runs, as it was last opened; none if none does."""
        return self._by_name[function].find_degrees(arguments) if function in self._by_name else ()

    def _open_loop(self, inferred: GraphView, opened: GraphDef, node: NodeDef, constants: BatchConstants) -> bool:
        by_name = {one.name: one for one in opened.node}
        argument_shapes = [inferred.shape(tensor) for tensor in inferred.inputs(node.name)]
        declared = [_dims(shape) for shape in node.attr["output_shapes"].list.shape] or argument_shapes
        opened_shapes = [_opened_as(one, now) for one, now in zip(declared, argument_shapes, strict=True)]
        fixed_shapes = [_dims(shape) for shape in self._view.nodes[node.name].attr["output_shapes"].list.shape]
        handles = find_handles(inferred, inferred.inputs(node.name))
        most = self._view.constant(self._view.inputs(node.name)[1])
        is_length = most is not None and most == self._length
        turns = 1 if is_length and node_of(inferred.inputs(node.name)[1]) not in self._view.nodes else None
        turned = self._open_function(opened, node.attr["body"].func.name, opened_shapes, handles, turns)
        decided = self._open_function(opened, node.attr["cond"].func.name, opened_shapes, handles, turns)
        self.are_classified &= turned.is_classified and decided.is_classified
        for slot, (shape, now) in enumerate(zip(opened_shapes, turned.results, strict=True)):
            opened_shapes[slot] = self._join_shapes(shape, [now])
            always = fixed_shapes[slot] if slot < len(fixed_shapes) else None  # where a script's invariant is open
            axes = list(_opened_axes(argument_shapes[slot], opened_shapes[slot]))
            if axes := [axis for axis in axes if always is None or always[axis] is not None]:
                constants.resizer.resize_input(opened, node, slot, axes)
                self.are_classified = False  # decided in the next pass, if it is open then
        is_changed = False
        for tensor in inferred.inputs(node.name):  # it stores the tensors that the old gradients read in each iteration
            maker = by_name[node_of(tensor)]
            if maker.op in LISTS:
                is_changed |= constants.open_list(opened, maker)
        return _declare(node, declared, opened_shapes) or is_changed

    def _open_conditional(self, inferred: GraphView, opened: GraphDef, node: NodeDef) -> bool:
        argument_shapes = [inferred.shape(tensor) for tensor in inferred.inputs(node.name)[1:]]
        declared = [_dims(shape) for shape in node.attr["output_shapes"].list.shape]
        handles = find_handles(inferred, inferred.inputs(node.name)[1:])
        names = [one.name for one in list_branches(node)]
        branches = [self._open_function(opened, name, argument_shapes, handles) for name in names]
        self.are_classified &= all(branch.is_classified for branch in branches)
        results = list(zip(*(branch.results for branch in branches), strict=True))
        declared = declared or [None] * len(results)
        opened_shapes = [self._join_shapes(one, found) for one, found in zip(declared, results, strict=True)]
        return _declare(node, declared, opened_shapes)

    def _join_shapes(self, declared: Shape, results: Sequence[Shape]) -> Shape:
        """A shape that is open where a result's is, if its length there may be the batch's."""
        if declared is None:
            return None
        may_be = [n is not None and self._numbers.may_be_length(n) for n in declared]
        if any(result is None or len(result) != len(declared) for result in results):
            self.are_classified &= not any(may_be)
            return declared
        is_open = [
            any(result is not None and result[axis] is None for result in results) for axis in range(len(may_be))
        ]
        return tuple(None if is_open[axis] and may_be[axis] else n for axis, n in enumerate(declared))

    def _open_function(
        self,
        opened: GraphDef,
        name: str,
        shapes: Sequence[Shape],
        handles: Sequence[NodeDef | None],
        length: int | None = None,
    ) -> _OpenedFunction:
        """Specializes a function for arguments of some shapes, or that are variables, and replaces it in the library.

        Args:
            opened: the graph, which is modified.
            name: the function's.
            shapes: of its arguments.
            handles: by argument the variable that it refers to, or None.
            length: the argument that is the batch length, if there is one.
        """
        key = name, tuple(shapes), tuple(str(one.name) if one is not None else "" for one in handles), length
        place = next(n for n, one in enumerate(opened.library.function) if one.signature.name == name)
        if key not in self._known:
            self._known[key] = self._opened_function(opened, name, shapes, handles, length)
        opened.library.function[place].CopyFrom(self._known[key].function)
        self._by_name[name] = self._known[key]
        return self._known[key]

    def _opened_function(
        self,
        opened: GraphDef,
        name: str,
        shapes: Sequence[Shape],
        handles: Sequence[NodeDef | None],
        length: int | None,
    ) -> _OpenedFunction:
        fixed = next(one for one in self._view.graph_def.library.function if one.signature.name == name)
        function = type(fixed)()
        function.CopyFrom(fixed)
        for number, shape in enumerate(shapes):
            _set_argument(function, number, shape)
        drop_shapes(function.node_def)
        before, _ = graph_of_function(fixed, self._view.graph_def, handles)
        body, flat_names = graph_of_function(function, opened, handles)
        view = infer_shapes_again(before)
        numbers = self._numbers.of_body(name)
        nodes = [node.name for node in before.node]
        arguments = [f"{arg.name}:0" for arg in function.signature.input_arg]
        batch = self._find_batch(view, arguments, shapes) if length is None else arguments[length]
        every = frozenset(nodes)
        inner = OpenBodies(view, self._length, numbers)
        divisors = BatchDivisors(view, every, every, self._length, numbers, inner.find_degrees)
        constants = BatchConstants(view, every, every, divisors, self._length, lambda node: batch, numbers)
        seen = infer_shapes_again(body)
        is_settled, passes = False, 0
        while not is_settled and passes < _MOST_PASSES:
            is_changed = constants.change(seen, body) or inner.change(seen, body, nodes, constants)
            is_settled = not is_changed and not constants.open_divisors(seen, body)
            seen, passes = seen if is_settled else infer_shapes_again(body), passes + 1
        is_classified = (
            is_settled
            and constants.changes.are_classified
            and inner.are_classified
            and not constants.find_unclassified(seen)
        )
        _write_back(function, before, body)
        for node in function.node_def:
            node.attr[_SHAPES].CopyFrom(seen.nodes[node.name].attr[_SHAPES])
        opened.library.CopyFrom(body.library)
        results = [tensor_name(flat_names[function.ret[arg.name]]) for arg in function.signature.output_arg]

        def find_degrees(degrees: Degrees) -> Degrees:
            found = divisors.find_degrees(seen, dict(zip(arguments, degrees, strict=True)))
            return [found.find_degree(tensor) for tensor in results]

        return _OpenedFunction(function, tuple(seen.shape(tensor) for tensor in results), is_classified, find_degrees)

    def _find_batch(self, view: GraphView, arguments: Sequence[str], shapes: Sequence[Shape]) -> str:
        """The argument of a function whose first open axis is the batch; empty where there is none."""
        for tensor, shape in zip(arguments, shapes, strict=True):
            is_tensor = tf.as_dtype(view.dtype(tensor)) not in (tf.resource, tf.variant)
            axis = next(_opened_axes(view.shape(tensor), shape), None) if is_tensor else None
            if axis is not None and (view.shape(tensor) or ())[axis] == self._length:
                return tensor
        return ""


def _makes_batches(inferred: GraphView, node: str) -> bool:
    """Whether a node precedes batches, like the maps of a dataset: each worker has its own."""
    are_variants = all(tf.as_dtype(inferred.dtype(tensor)) == tf.variant for tensor in inferred.outputs(node))
    return are_variants or inferred.op(node) == "OneShotIterator"


def _write_back(function: FunctionDef, before: GraphDef, body: GraphDef) -> None:
    """Writes a graph back to its function: changed constant inputs, and declared shapes."""
    nodes = {node.name: node for node in function.node_def}
    inputs = {node.name: list(node.input) for node in before.node}
    made = {node.name: node for node in body.node if node.name not in nodes}
    for node in body.node:
        if node.name not in inputs:
            added = function.node_def.add()
            added.CopyFrom(node)
            added.input[:] = [_input_of_function(taken, made) for taken in node.input]
        elif node.name in nodes:
            for key in ("output_shapes", "shape", "element_shape", "num_elements", "squeeze_dims"):
                if key in node.attr:
                    nodes[node.name].attr[key].CopyFrom(node.attr[key])
            for slot, input_name in enumerate(node.input):
                if input_name != inputs[node.name][slot]:
                    nodes[node.name].input[slot] = _input_of_function(input_name, made)


def _input_of_function(input_name: str, made: Mapping[str, NodeDef]) -> str:
    """A function's name for one of its arguments, or for the result of an added node."""
    name = node_of(tensor_name(input_name))
    if input_name.startswith("^") or made[name].op == "Placeholder":
        return input_name if input_name.startswith("^") else name
    return f"{name}:{op_def_registry.get(made[name].op).output_arg[0].name}:0"


def _set_argument(function: FunctionDef, number: int, shape: Shape) -> None:
    attributes = function.arg_attr[number].attr
    attributes.pop(_SHAPES, None)
    if shape is not None:
        attributes[_SHAPES].list.shape.add().CopyFrom(tf.TensorShape(shape).as_proto())


def _dims(shape: tf.TensorShape) -> Shape:
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else int(dim.size) for dim in shape.dim)


def _opened_as(declared: Shape, now: Shape) -> Shape:
    """A declared shape, open where the initial value's shape is."""
    if declared is None or now is None or len(declared) != len(now):
        return declared
    return tuple(None if is_open is None else n for n, is_open in zip(declared, now, strict=True))


def _opened_axes(before: Shape, after: Shape) -> Iterator[int]:
    if before is not None and after is not None:
        yield from (axis for axis, n in enumerate(after) if n is None and before[axis] is not None)


def _declare(node: NodeDef, declared: Sequence[Shape], opened: Sequence[Shape]) -> bool:
    """Declares the shapes of a node's results; returns whether they changed."""
    if list(declared) == list(opened):
        return False
    shapes = node.attr["output_shapes"].list
    del shapes.shape[:]
    shapes.shape.extend(tf.TensorShape(shape).as_proto() for shape in opened)
    return True
