"""A session on a GraphDef by names. It makes no Python objects of ops, which would cost more than a few steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session as c_api
from tensorflow.python.framework import c_api_util

from parallax.graph.view import GraphView

_WITHOUT_VALUE = re.compile(rb"\x0a(.)([A-Za-z_]\w*)\x12\x00", re.DOTALL)
"""A serialized entry of the map of attributes: length of the key, key, and a value of length 0."""
_LEFT_EMPTY = "_input_shapes"
"""TensorFlow itself leaves this attribute empty in functions without arguments, such as branches of constants."""


def as_written(config: Any = None) -> Any:
    """Returns the options of a session that runs a graph as it is written.

    TensorFlow's own rewriting and folding of a graph takes longer than a few steps of a small one.
    """
    config = config or tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return config


class NamedSession:
    """Runs a graph.

    Args:
        graph_def: the graph.
        config: of the session.

    Raises:
        ValueError: the graph is invalid.
    """

    def __init__(self, graph_def: Any, config: Any) -> None:
        self._view = GraphView(graph_def)
        self._session = tf.compat.v1.Session(graph=_imported(graph_def), config=config)
        self._callables: dict[tuple[tuple[str, ...], tuple[str, ...]], Any] = {}

    def __enter__(self) -> NamedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._callables.clear()
        self._session.close()

    def has(self, tensor: str) -> bool:
        """Returns whether the graph has a tensor."""
        try:
            self._view.dtype(tensor)
        except (KeyError, IndexError):
            return False
        return True

    def run(self, fetches: Sequence[str], feeds: Mapping[str, Any] | None = None) -> list[Any]:
        """Runs the graph once.

        Args:
            fetches: tensors and ops.
            feeds: values by tensor; they are converted to its type.

        Returns:
            The value of each fetch; None for an op.
        """
        if not fetches:
            return []
        feeds = feeds or {}
        tensors = tuple(dict.fromkeys(name for name in fetches if ":" in name and name not in feeds))
        key = (tuple(dict.fromkeys(name for name in fetches if name not in feeds)), tuple(feeds))
        if key not in self._callables:
            self._callables[key] = self._callable(tensors, *key)
        values = [np.asarray(value, self._numpy_type(tensor)) for tensor, value in feeds.items()]
        # Copied: a callable returns the memory of a reference variable, which the next run overwrites.
        given = [np.array(value) for value in self._callables[key](*values)]
        value_by_name = dict(zip(tensors, given, strict=True)) | dict(zip(feeds, values, strict=True))
        return [value_by_name.get(name) for name in fetches]

    def _callable(self, tensors: Sequence[str], fetches: Sequence[str], fed: Sequence[str]) -> Any:
        from tensorflow.core.protobuf import config_pb2

        options = config_pb2.CallableOptions(feed=fed, fetch=tensors, target=[n for n in fetches if ":" not in n])
        return self._session._make_callable_from_options(options)

    def _numpy_type(self, tensor: str) -> Any:
        return tf.as_dtype(self._view.dtype(tensor)).as_numpy_dtype


def _imported(graph_def: Any) -> Any:
    """Imports a graph as a tf.Graph that has its ops in TensorFlow's core only, not in Python.

    Raises:
        ValueError: the graph is invalid; or an attribute has no value, as after a lookup in a node without it.
            TensorFlow's result then depends on the processor, whose passes may or may not read the attribute.
    """
    written = graph_def.SerializeToString()
    without_value = {m[2].decode() for m in _WITHOUT_VALUE.finditer(written) if m[1][0] == len(m[2])}
    if empty := sorted(without_value - {_LEFT_EMPTY}):
        raise ValueError(f"Every attribute of a node must have a value, and {', '.join(empty)} have none.")
    graph = tf.Graph()
    options = c_api_util.ScopedTFImportGraphDefOptions()
    serialized = c_api.TF_NewBufferFromString(written)
    try:
        with graph._c_graph.get() as c_graph:
            results = c_api.TF_GraphImportGraphDefWithResults(c_graph, serialized, options.options)
            c_api_util.ScopedTFImportGraphDefResults(results)  # frees them
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(str(error)) from error
    finally:
        c_api.TF_DeleteBuffer(serialized)
    return graph
