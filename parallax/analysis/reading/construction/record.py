"""Records where autodiff delivers gradients while the user's script builds its graph.

`install()` wraps the two functions that every gradient of TensorFlow goes through: `tf.gradients` (and with it
`Optimizer.compute_gradients`) and `GradientTape.gradient`. A record names the targets, the delivered tensors and the
ops created meanwhile, which separates autodiff from the user's post-processing. Where autodiff differentiates through a
gradient that was delivered before, the record also names the gradient that arrives there. For `tf.gradients`,
TensorFlow notes which forward op each autodiff op belongs to; for tapes `install()` wraps the function that calls the
gradient functions of ops. Recording adds no op to the graph.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from parallax.analysis.reading.construction.differentiated_ops import (
    find_graphs_around,
    find_ops_behind,
    find_reachable_ops,
    find_tensor,
    list_ops,
    list_parts,
)
from parallax.analysis.reading.construction.measured_tensors import install_measures
from parallax.base.types import (
    Argument,
    Gradient,
    GradientTape,
    Graph,
    Nest,
    Operation,
    SparseTensor,
    Tensor,
)

_ATTRIBUTE = "_parallax_gradient_records"
_NOTED = "_parallax_watched_ops"
_FORWARD = "_parallax_forward_op"
_INSIDE: ContextVar[bool] = ContextVar("inside autodiff", default=False)


class Place(NamedTuple):
    """A tensor by its name, and its graph: a function's graph, or the graph around it."""

    graph: Graph
    name: str


@dataclass(frozen=True, slots=True)
class TargetGradient:
    """The gradient of one target: a tensor, or values and indices.

    Attributes:
        target: the differentiation target.
        values: the tensor, or its rows.
        indices: the numbers of the rows.
        is_nested: whether its rows are IndexedSlices again, as TensorFlow returns for a gather of a gather_nd.
        dense_shape: of the target, as autodiff returns it with rows.
    """

    target: Place
    values: Place
    indices: Place | None
    is_nested: bool = False
    dense_shape: Place | None = None


@dataclass(frozen=True, slots=True)
class Cotangent:
    """Autodiff's cotangent of a gradient delivered before: `tensor` is the derivative with respect to `gradient`."""

    gradient: Place
    tensor: Place


@dataclass(frozen=True, slots=True)
class GradientRecord:
    """One call of autodiff.

    Attributes:
        first_op: number of ops in the graph before the call.
        end_op: number of ops after it; ops with an index in [first_op, end_op) belong to autodiff.
        gradients: the delivered gradients, for every target that has one; none where TensorFlow called autodiff itself.
        cotangents: of the gradients delivered before, where this call differentiated through them.
        of: the differentiated tensors, such as a loss.
        is_plain: whether it was a `tf.gradients` of these with respect to the targets, or that of a tape that watched
            all of it: `tf.gradients` can then repeat it.
        weights: for each of these its weights (`grad_ys`); empty where none has any.
        stopped: the tensors through which it was not differentiated (`stop_gradients`).
        preceding: the ops that `tf.control_dependencies` around the call named, as their first tensors.
    """

    first_op: int
    end_op: int
    gradients: tuple[TargetGradient, ...]
    cotangents: tuple[Cotangent, ...] = ()
    of: tuple[Place, ...] = ()
    is_plain: bool = False
    weights: tuple[Place | None, ...] = ()
    stopped: tuple[Place, ...] = ()
    preceding: tuple[Place, ...] = ()


def install() -> None:
    """Starts recording; a second call has no effect. Imports TensorFlow."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import backprop
    from tensorflow.python.framework.sparse_tensor import SparseTensor
    from tensorflow.python.ops import gradients_util

    install_measures()
    if not hasattr(backprop._gradient_function, _ATTRIBUTE):
        backprop._gradient_function = _noting_forward(backprop._gradient_function)
        pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
    if not hasattr(SparseTensor.__init__, _ATTRIBUTE):
        SparseTensor.__init__ = _marking_feeds(SparseTensor.__init__)
    if not hasattr(gradients_util._GradientsHelper, _ATTRIBUTE):
        gradients_util._GradientsHelper = _recording(gradients_util._GradientsHelper, "ys", "xs")
    if not hasattr(backprop.GradientTape.gradient, _ATTRIBUTE):
        backprop.GradientTape.gradient = _recording(backprop.GradientTape.gradient, "target", "sources")
        backprop.GradientTape._push_tape = _noting_ops(backprop.GradientTape._push_tape)
        backprop.GradientTape._pop_tape = _noting_ops(backprop.GradientTape._pop_tape)


def records_of(graph: Graph) -> tuple[GradientRecord, ...]:
    """The records of a graph, oldest first."""
    return tuple(getattr(graph, _ATTRIBUTE, ()))


def forward_op(op: Operation) -> Operation | None:
    """The forward op to which an op of autodiff belongs, where that is known."""
    return getattr(op, _FORWARD, None) or getattr(op, "_original_op", None)


def _noting_forward(function: Callable[..., Nest]) -> Callable[..., Nest]:
    """Wraps the function by which tapes compute the gradients of one op: notes that op for all ops created by it."""

    @functools.wraps(function)
    def wrapper(name: str, attributes: Nest, count: int, inputs: Nest, outputs: Nest, *args: Argument) -> Nest:
        import tensorflow as tf

        if tf.executing_eagerly():
            return function(name, attributes, count, inputs, outputs, *args)
        graph = tf.compat.v1.get_default_graph()
        first_op = graph.version
        result = function(name, attributes, count, inputs, outputs, *args)
        forward = _op_of(name, inputs or (), outputs or ())
        for op in graph.get_operations()[first_op:] if forward is not None and graph.version > first_op else ():
            if not hasattr(op, _FORWARD):
                setattr(op, _FORWARD, forward)
        return result

    setattr(wrapper, _ATTRIBUTE, True)
    return wrapper


def _op_of(name: str, inputs: Nest, outputs: Nest) -> Operation | None:
    """The op of a type with given inputs and outputs; a tape keeps only those that the gradient needs."""
    gave = next((tensor.op for tensor in outputs if hasattr(tensor, "op")), None)
    if gave is not None:
        return gave
    took = [{id(op): op for op in one.consumers() if op.type == name} for one in inputs if hasattr(one, "op")]
    common = set.intersection(*map(set, took)) if took else set()
    return took[0][common.pop()] if len(common) == 1 else None


def _recording(function: Callable[..., Nest], of: str, by: str) -> Callable[..., Nest]:
    """Wraps a function that differentiates its argument `of` with respect to its argument `by`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Argument, **kwargs: Argument) -> Nest:
        import tensorflow as tf

        if tf.executing_eagerly():
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        graph, targets = tf.compat.v1.get_default_graph(), bound.arguments[by]
        differentiated = bound.arguments.get("src_graph") or graph
        before = _delivered_before(differentiated, bound.arguments[of], targets)
        bound.arguments[by] = _with_more(targets, before, by)
        first_op, by_user = graph.version, differentiated is graph and not _INSIDE.get()
        with _inside():
            result, found = _without_more(function(*bound.args, **bound.kwargs), before, by)
        gradients = _gradients(targets, result) if by_user else ()
        cotangents = _cotangents(before, found)
        if gradients or cotangents:
            losses = _places(bound.arguments[of]) if by_user else ()
            is_plain = by_user and _is_plain(bound.arguments, of) and _has_watched(graph, bound.arguments)
            weights = _list_weights(bound.arguments) if is_plain else []
            record = GradientRecord(
                *(first_op, graph.version, gradients, cotangents, losses, is_plain),
                tuple(None if one is None else _place(one) for one in weights),
                _places(bound.arguments.get("stop_gradients") or []) if is_plain else (),
                _list_preceding(graph) if is_plain else (),
            )
            setattr(graph, _ATTRIBUTE, (*records_of(graph), record))
        return result

    setattr(wrapper, _ATTRIBUTE, True)
    return wrapper


def _marking_feeds(function: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of sparse tensors: marks those that are fed in a script's graph."""

    @functools.wraps(function)
    def wrapper(sparse: SparseTensor, *args: Argument, **kwargs: Argument) -> None:
        import tensorflow as tf

        from parallax.graph.batches import mark_sparse_feed

        function(sparse, *args, **kwargs)
        parts = (sparse.indices, sparse.values, sparse.dense_shape)
        if all(map(tf.is_symbolic_tensor, parts)) and not sparse.indices.graph.building_function:
            places, values, shape = (part.op for part in parts)
            if places.type == values.type == "Placeholder" and shape.type in ("Placeholder", "PlaceholderWithDefault"):
                mark_sparse_feed(places, values, shape)

    setattr(wrapper, _ATTRIBUTE, True)
    return wrapper


def _is_plain(arguments: Mapping[str, Argument], of: str) -> bool:
    """Whether arguments of autodiff are only tensors, their weights and targets."""
    import tensorflow as tf

    weights = _list_weights(arguments)
    unconnected = getattr(arguments.get("unconnected_gradients"), "value", None)
    tensors = (*_as_list(arguments[of]), *_as_list(arguments.get("stop_gradients") or []))
    are_tensors = all(map(tf.is_symbolic_tensor, (*tensors, *(one for one in weights if one is not None))))
    return are_tensors and unconnected in (None, "none") and len(weights) in (0, len(_as_list(arguments[of])))


def _list_weights(arguments: Mapping[str, Argument]) -> list[Nest]:
    """The weights of the differentiated tensors; None for those that have none, and empty where none has."""
    weights = _as_list(arguments.get("grad_ys", arguments.get("output_gradients")))
    return [] if all(one is None for one in weights) else weights


def _list_preceding(graph: Graph) -> tuple[Place, ...]:
    """The ops after which all ops that are created now run."""
    names = {op.name for op in graph._current_control_dependencies()}
    return tuple(Place(graph, f"{name}:0") for name in sorted(names))


def _noting_ops(function: Callable[..., None]) -> Callable[..., None]:
    """Wraps a method by which a tape starts or stops watching: notes the number of ops in the graph at that time."""

    @functools.wraps(function)
    def wrapper(tape: GradientTape, *args: Argument) -> None:
        import tensorflow as tf

        function(tape, *args)
        if not tf.executing_eagerly():
            setattr(tape, _NOTED, [*getattr(tape, _NOTED, ()), tf.compat.v1.get_default_graph().version])

    return wrapper


def _has_watched(graph: Graph, arguments: Mapping[str, Argument]) -> bool:
    """Whether a tape has watched each op between its targets and the differentiated tensors; true for `tf.gradients`.

    A function's graph is not checked: its batch is not opened.
    """
    if "self" not in arguments:
        return True
    if find_graphs_around(graph)[0]:
        return False
    noted = [*getattr(arguments["self"], _NOTED, ()), graph.version]
    watched = list(zip(noted[::2], noted[1::2], strict=False))
    targets, of = arguments["sources"], arguments["target"]
    reached = find_reachable_ops(list_ops(targets), []) & find_ops_behind(list_ops(of))
    between = reached - set(list_ops(targets))
    places = {op: place for place, op in enumerate(graph.get_operations()) if op in between}
    return all(any(first <= place < last for first, last in watched) for place in places.values())


@contextmanager
def _inside() -> Iterator[None]:
    """A context in which calls of autodiff are parts of an outer one."""
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def _with_more(targets: Nest, more: Sequence[Tensor], by: str) -> Nest:
    """The targets with additional ones: a list for `tf.gradients`, a structure for a tape."""
    if not more:
        return targets
    return [*_as_list(targets), *more] if by == "xs" else [targets, list(more)]


def _without_more(result: Nest, more: Sequence[Tensor], by: str) -> tuple[Nest, list[Gradient]]:
    """(the result for the user's targets, that for the additional ones)."""
    if not more:
        return result, []
    if by == "xs":
        return result[: -len(more)], list(result[-len(more) :])
    return result[0], list(result[1])


def _as_list(targets: Nest) -> list[Nest]:
    return list(targets) if isinstance(targets, (list, tuple)) else [targets]


def _gradients(targets: Nest, result: Nest) -> tuple[TargetGradient, ...]:
    """The delivered gradients, in the order of the targets; IndexedSlices are not split."""
    import tensorflow as tf

    target_gradients = []
    for target, gradient in zip(tf.nest.flatten(targets), tf.nest.flatten(result), strict=False):
        tensor = find_tensor(target)
        if gradient is None or not hasattr(tensor, "op"):
            continue
        if isinstance(gradient, tf.IndexedSlices):
            is_nested = isinstance(gradient.values, tf.IndexedSlices)
            rows, shape = (_place(gradient.values), _place(gradient.indices)), gradient.dense_shape
            target_gradients.append(
                TargetGradient(_place(tensor), *rows, is_nested, None if shape is None else _place(shape))
            )
        elif hasattr(gradient, "op"):
            target_gradients.append(TargetGradient(_place(tensor), _place(gradient), None))
    return tuple(target_gradients)


def _cotangents(gradients: Sequence[Tensor], found: Sequence[Gradient]) -> tuple[Cotangent, ...]:
    import tensorflow as tf

    pairs = zip(gradients, found, strict=True)
    # IndexedSlices (as for a gather of a gradient) are named by their values.
    tensors = [(g, c.values if isinstance(c, tf.IndexedSlices) else c) for g, c in pairs if c is not None]
    return tuple(Cotangent(_place(g), _place(c)) for g, c in tensors)


def _place(tensor: Tensor) -> Place:
    """The place of a tensor, or of the values of IndexedSlices."""
    return Place(tensor.graph, str(tensor.name))


def _delivered_before(graph: Graph, of: Nest, targets: Nest) -> list[Tensor]:
    """The gradients and cotangents between targets and the differentiated tensors.

    Autodiff computes their cotangents in any case: requesting them adds no op.
    """
    functions, outermost = find_graphs_around(graph)
    names: dict[Place, None] = {}
    for source in (*functions, outermost):
        for record in records_of(source):
            places = [g.values for g in record.gradients] + [c.tensor for c in record.cotangents]
            names.update({place: None for place in places if place.graph is source})
    if not names:
        return []
    behind = find_ops_behind(list_ops(of))
    delivered = [
        t for t in (p.graph.get_tensor_by_name(p.name) for p in names) if t.op in behind and t.dtype.is_floating
    ]
    reached = find_reachable_ops(list_ops(targets), functions) if delivered else set()
    target_ids = {id(t) for t in map(find_tensor, _as_list(targets))}
    return [t for t in delivered if t.op in reached and id(t) not in target_ids]


def _places(tensors: Tensor) -> tuple[Place, ...]:
    return tuple(map(_place, list_parts(tensors)))
