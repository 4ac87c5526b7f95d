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
from parallax.functions.batches.split_batch import BatchPart
from parallax.functions.tracing.served_graph import PYTHON_OPS

_AT_ONCE = 16
"""Rows that are processed concurrently."""
_OTHER_DRAWS = 7919
"""The difference between the seeds of two workers."""
_HARMLESS = frozenset(
    """
    StatefulPartitionedCall PartitionedCall If StatelessIf While StatelessWhile Case StatelessCase
    Assert Print PrintV2 Placeholder _Arg _Retval
    """.split()
)
"""Ops that are registered as stateful, or because of their functions, which are checked separately."""


@dataclass(frozen=True, eq=False)
class RowPipeline:
    """The functions that are applied in sequence to each row.

    Attributes:
        graph: a serialized GraphDef.
        feeds: names of placeholders, [n, ...]: the source elements of rows, flat.
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
        """The pipeline of functions, the first of which reads elements.

        Args:
            functions: traced by tf.data; `can_move` is true of each.
            elements: tf.TensorSpecs of the first one's inputs, flat.
            rows: tf.TensorSpecs of the last one's results, flat.
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

    def is_like(self, computed: Sequence[Array], expected: Sequence[Array]) -> bool:
        """Whether the rows that two processes computed from the same elements are alike."""
        if self.draws:
            return [one.shape for one in computed] == [one.shape for one in expected]
        return all(map(_are_alike, computed, expected))


class RawRows:
    """One component of the source elements of a batch's rows.

    Attributes:
        array: [n, ...].
        pipeline: the pipeline that computes the rows.
        shape: of the array.
    """

    def __init__(self, array: TensorLike, pipeline: RowPipeline) -> None:
        self.array, self.pipeline = array, pipeline
        self.shape: tuple[int, ...] = tuple(array.shape)


class RunningPipeline:
    """A pipeline in this process, which computes rows in a thread.

    Args:
        pipeline: the pipeline.
        rank: of this worker; random numbers differ among ranks.
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
        """The rows computed from elements, flat, [n, ...] each."""
        results = self._session.run(
            list(self._pipeline.results), dict(zip(self._pipeline.feeds, elements, strict=True))
        )
        return [np.asarray(one) for one in results]

    def start(self, share: BatchPart) -> Future[BatchPart]:
        """Starts to compute the rows of a share of elements."""
        return self._thread.submit(lambda: BatchPart(tuple(self.make(share.arrays)), share.rows, share.total))

    def close(self) -> None:
        """Ends the pipeline after pending rows are computed."""
        self._thread.shutdown()
        self._session.close()


def can_move(function: ConcreteFunction) -> bool:
    """Whether a function traced by tf.data may be called in another process: it has no state except random draws."""
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
    """Whether a node draws numbers from seeds; a node without seeds draws others in each process."""
    return "seed2" in node.attr and bool(node.attr["seed"].i or node.attr["seed2"].i)


def _nodes(definition: GraphDef) -> Iterator[NodeDef]:
    """All nodes of a GraphDef, including those of its functions."""
    return chain(definition.node, *(one.node_def for one in definition.library.function))


def _call(function: ConcreteFunction, arguments: Sequence[Tensor]) -> list[Tensor]:
    """The flat results of a function in the current graph; captured tensors become constants."""
    graph = function.graph
    captured = [tf.constant(np.asarray(one)) for one in function.captured_inputs]
    value_by_input = {one.name: value for one, value in zip(graph.inputs, [*arguments, *captured], strict=True)}
    output_names = [one.name for one in graph.outputs]
    outputs: list[Tensor] = tf.import_graph_def(graph.as_graph_def(), value_by_input, output_names, name="row")
    return outputs


def _are_alike(computed: Array, expected: Array) -> bool:
    if computed.shape != expected.shape or computed.dtype != expected.dtype:
        return False
    is_float = np.issubdtype(computed.dtype, np.floating)
    return np.allclose(computed, expected, equal_nan=True) if is_float else bool((computed == expected).all())
