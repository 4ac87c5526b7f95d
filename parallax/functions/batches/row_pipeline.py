"""An input pipeline's function of each row, as a graph that workers on other hosts run on their own rows.

The script's process then reads and sends only the source of each row (a path, a serialized example), not decoded
images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from parallax.base.types import Array, ConcreteFunction, GraphDef, NodeDef, Tensor, TensorLike, TypeSpec
from parallax.functions.batches.shares import Share
from parallax.functions.tracing.served_graph import PYTHON_OPS

_AT_ONCE = 16
"""How many rows are worked on at the same time."""
_OTHER_DRAWS = 7919
"""By which the seeds of two workers differ."""
_HARMLESS = frozenset(
    """
    StatefulPartitionedCall PartitionedCall If StatelessIf While StatelessWhile Case StatelessCase
    Assert Print PrintV2 Placeholder _Arg _Retval
    """.split()
)
"""Stateful by their definition, or for what they call, which is looked at by itself."""


@dataclass(frozen=True, eq=False)
class RowPipeline:
    """The functions that are called one after the other for each row.

    Attributes:
        graph: a serialized GraphDef.
        feeds: names of placeholders, [n, ...]: what rows are made of, flat.
        results: names of tensors, [n, ...]: the rows, flat.
        draws: whether a function draws random numbers.
    """

    graph: bytes
    feeds: tuple[str, ...]
    results: tuple[str, ...]
    draws: bool

    @staticmethod
    def of(
        functions: Sequence[ConcreteFunction], elements: Sequence[TypeSpec], rows: Sequence[TypeSpec]
    ) -> RowPipeline:
        """The pipeline of functions, the first of which takes elements.

        Args:
            functions: traced by tf.data; `can_move` is true of each.
            elements: tf.TensorSpecs of what the first one takes, flat.
            rows: tf.TensorSpecs of what the last one gives, flat.
        """

        def each(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
            for function in functions:
                parts = _call(function, parts)
            return tuple(parts)

        with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
            feeds = tuple(tf.compat.v1.placeholder(one.dtype, [None, *one.shape]) for one in elements)
            made = tuple(tf.TensorSpec(one.shape, one.dtype) for one in rows)
            called = tf.autograph.experimental.do_not_convert(each)
            results = tf.map_fn(called, feeds, fn_output_signature=made, parallel_iterations=_AT_ONCE)
        whole = graph.as_graph_def()
        names = tuple(one.name for one in feeds), tuple(one.name for one in results)
        return RowPipeline(whole.SerializeToString(), *names, any(map(_has_seeds, _nodes(whole))))

    def is_like(self, found: Sequence[Array], expected: Sequence[Array]) -> bool:
        """Whether rows that two processes have made of the same elements are alike."""
        if self.draws:
            return [one.shape for one in found] == [one.shape for one in expected]
        return all(map(_are_alike, found, expected))


class RawRows:
    """One part of what the rows of a batch are made of.

    Attributes:
        array: [n, ...].
        pipeline: by which the rows are made.
        shape: of the array.
    """

    def __init__(self, array: TensorLike, pipeline: RowPipeline) -> None:
        self.array, self.pipeline = array, pipeline
        self.shape: tuple[int, ...] = tuple(array.shape)


class RunningPipeline:
    """A pipeline in this process, which makes rows in a thread.

    Args:
        pipeline: the pipeline.
        rank: of this worker, by which its random numbers are others than those of the next one.
    """

    def __init__(self, pipeline: RowPipeline, rank: int = 0) -> None:
        self._pipeline = pipeline
        definition = tf.compat.v1.GraphDef.FromString(pipeline.graph)
        for node in filter(_has_seeds, _nodes(definition)):
            node.attr["seed2"].i += rank * _OTHER_DRAWS
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(definition, name="")
        options = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        self._session = tf.compat.v1.Session(graph=graph, config=options)
        self._thread = ThreadPoolExecutor(1, "rows")

    def make(self, elements: Sequence[Array]) -> list[Array]:
        """The rows that are made of elements, flat, [n, ...] each."""
        found = self._session.run(list(self._pipeline.results), dict(zip(self._pipeline.feeds, elements, strict=True)))
        return [np.asarray(one) for one in found]

    def start(self, share: Share) -> Future[Share]:
        """Begins to make the rows of a share of elements."""
        return self._thread.submit(lambda: Share(tuple(self.make(share.arrays)), share.rows, share.total))

    def close(self) -> None:
        """Ends it, when it has made what it has begun."""
        self._thread.shutdown()
        self._session.close()


def can_move(function: ConcreteFunction) -> bool:
    """Whether a function that tf.data has traced may be called in another process: it has no state but of draws."""
    if any(one.dtype in (tf.resource, tf.variant) for one in (*function.graph.inputs, *function.graph.outputs)):
        return False
    definition = function.graph.as_graph_def()
    called = {one.signature.name for one in definition.library.function}
    return all(node.op in called or _is_movable(node) for node in _nodes(definition))


def _is_movable(node: NodeDef) -> bool:
    definition = op_def_registry.get(node.op)
    if definition is None or node.op in PYTHON_OPS or node.op == "EagerPyFunc":
        return False
    return not definition.is_stateful or node.op in _HARMLESS or "seed2" in node.attr


def _has_seeds(node: NodeDef) -> bool:
    """Whether a node draws numbers from seeds; those without any draw others in each process."""
    return "seed2" in node.attr and bool(node.attr["seed"].i or node.attr["seed2"].i)


def _nodes(definition: GraphDef) -> Iterator[NodeDef]:
    """All nodes of a GraphDef, those of its functions too."""
    return chain(definition.node, *(one.node_def for one in definition.library.function))


def _call(function: ConcreteFunction, arguments: Sequence[Tensor]) -> list[Tensor]:
    """What a function gives in the current graph, flat; what it captures becomes constants."""
    graph = function.graph
    captured = [tf.constant(np.asarray(one)) for one in function.captured_inputs]
    given = {one.name: value for one, value in zip(graph.inputs, [*arguments, *captured], strict=True)}
    wanted = [one.name for one in graph.outputs]
    found: list[Tensor] = tf.import_graph_def(graph.as_graph_def(), given, wanted, name="row")
    return found


def _are_alike(found: Array, expected: Array) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    is_float = np.issubdtype(found.dtype, np.floating)
    return np.allclose(found, expected, equal_nan=True) if is_float else bool((found == expected).all())
