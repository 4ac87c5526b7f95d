"""Reads what a user passes to `run`: fetches and feeds of the user's graph, in lists per replica.

A fetch may be a tensor, operation, variable, name, or any nest of them; it comes back as a list with one entry per
replica. A feed is such a list; what is no list counts for every replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parallax.errors import SessionError

REPLICAS = 1
"""Replicas a worker: one process trains on one device."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One fetch: the names it is made of, and what it was.

    Attributes:
        names: one name; several for a partitioned variable or a sparse, ragged or IndexedSlices tensor.
        like: the fetch itself.
    """

    names: tuple[str, ...]
    like: Any


@dataclass(frozen=True, slots=True)
class Request:
    """One `run`, in names of the user's graph.

    Attributes:
        structure: what was asked for, each leaf a Leaf.
        names: all names asked for, in order.
        feeds: tensor name -> value.
    """

    structure: Any
    names: tuple[str, ...]
    feeds: dict[str, Any]


def read_request(graph: Any, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Request:
    """Checks and names fetches and feeds.

    Args:
        graph: the user's graph.
        fetches: as for `tf.compat.v1.Session.run`.
        feed_dict: tensor or name -> list with one entry per replica.

    Raises:
        SessionError: when something is not in the user's graph, or a list has the wrong length.
    """
    names: list[str] = []

    def leaf(fetch: Any) -> Leaf:
        found = Leaf(_names_of(graph, fetch), fetch)
        names.extend(found.names)
        return found

    structure = map_structure(leaf, fetches)
    feeds: dict[str, Any] = {}
    for key, value in (feed_dict or {}).items():
        feeds.update(_feed(graph, key, value))
    return Request(structure, tuple(names), feeds)


def map_structure(function: Callable[[Any], Any], structure: Any) -> Any:
    """Applies a function to the leaves of nested lists, tuples, named tuples and dicts, keeping their form."""
    if isinstance(structure, list):
        return [map_structure(function, item) for item in structure]
    if isinstance(structure, tuple):
        items = [map_structure(function, item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    if isinstance(structure, Mapping):
        return {key: map_structure(function, item) for key, item in structure.items()}
    return function(structure)


def put_together(leaf: Leaf, values: list[Any]) -> Any:
    """The value of one fetch from the values of its names."""
    import numpy as np
    import tensorflow as tf

    if isinstance(leaf.like, tf.IndexedSlices):
        return tf.compat.v1.IndexedSlicesValue(*values, *[None] * (3 - len(values)))
    if isinstance(leaf.like, tf.SparseTensor):
        return tf.compat.v1.SparseTensorValue(*values)
    if isinstance(leaf.like, tf.RaggedTensor):
        return tf.compat.v1.ragged.RaggedTensorValue(*values[:2])
    return np.concatenate(values) if len(values) > 1 else values[0]


def _names_of(graph: Any, fetch: Any) -> tuple[str, ...]:
    import tensorflow as tf

    if fetch is None:
        raise SessionError("A fetch must be a tensor, operation, variable or name of the user's graph, and is None.")
    pieces = getattr(fetch, "_variable_list", None) or [fetch]
    if isinstance(fetch, tf.IndexedSlices | tf.SparseTensor | tf.RaggedTensor):
        pieces = tf.nest.flatten(fetch, expand_composites=True)
    return tuple(str(_element(graph, piece).name) for piece in pieces)


def _element(graph: Any, thing: Any) -> Any:
    """The tensor or operation that something stands for in the user's graph."""
    try:
        return graph.as_graph_element(thing, allow_tensor=True, allow_operation=True)
    except (KeyError, ValueError, TypeError) as error:
        name = getattr(thing, "name", thing)
        raise SessionError(
            f"A fetch or feed must be in the graph that was given to parallel_run, and {name!r} is not: {error} "
            "Build everything that the loop uses before parallel_run."
        ) from error


def _feed(graph: Any, key: Any, value: Any) -> dict[str, Any]:
    import tensorflow as tf

    if isinstance(value, list) or type(value) is tuple:
        if len(value) != REPLICAS:
            name = getattr(key, "name", key)
            raise SessionError(
                f"A feed must be a list with one entry per replica: {name!r} was given {len(value)} entries for "
                f"{REPLICAS} replica. Write {{{name}: [batch]}}."
            )
        (value,) = value
    if isinstance(key, tf.SparseTensor):
        parts = (key.indices, key.values, key.dense_shape)
        return {str(_element(graph, t).name): v for t, v in zip(parts, value, strict=True)}
    tensor = _element(graph, key)
    if not hasattr(tensor, "dtype"):
        raise SessionError(f"A feed must be a tensor, and {tensor.name!r} is an operation. Feed one of its outputs.")
    return {str(tensor.name): value}
