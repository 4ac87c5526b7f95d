"""Parses the arguments of `run`: fetches and feeds of the user's graph, in lists per replica.

A fetch may be a tensor, operation, variable, name, or any nest of them; its result is a list with one entry per
replica. A feed is such a list; a value that is not a list applies to every replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.indexed_slices import IndexedSlicesValue

from parallax.analysis.reading.lazy.updates import LazyTable
from parallax.base.errors import SessionError
from parallax.base.types import FeedDict, Fetch, Fetches, Graph, Nest, Operation, Tensor, Value

REPLICAS = 1
"""Replicas per worker: one process trains on one device."""


class PerReplica(list[Any]):
    """A fetch's value, one entry per replica; `tf.train.global_step` and similar functions convert it to one scalar."""

    def __int__(self) -> int:
        (only,) = self
        return int(only)


class Fetchable:
    """The names that runs may fetch and feed: the user's graph, as passed to parallel_run.

    Args:
        graph: the user's graph.
        is_known: whether a name was in it then.
    """

    def __init__(self, graph: Graph, is_known: Callable[[str], bool]) -> None:
        self._graph, self._is_known = graph, is_known
        self._found: dict[int, tuple[Fetch, Tensor | Operation]] = {}  # tensors and ops are fetched repeatedly

    def element(self, thing: Fetch) -> Tensor | Operation:
        """Returns the tensor or operation of a fetch or feed.

        Raises:
            SessionError: it is not in the graph.
        """
        known = self._found.get(id(thing))
        if known is not None:
            return known[1]
        try:
            element = self._graph.as_graph_element(thing, allow_tensor=True, allow_operation=True)
        except (KeyError, ValueError, TypeError) as error:
            raise SessionError(_not_in_graph(thing, str(error.args[0]))) from error
        if not self._is_known(element.name):
            raise SessionError(_not_in_graph(thing, "it was added later."))
        if element is thing:
            self._found[id(thing)] = thing, element  # referenced, so that its id is not reused
        return element

    def name(self, thing: Fetch) -> str:
        """The name of that tensor or operation."""
        return str(self.element(thing).name)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One fetch: its component names, and the original object.

    Attributes:
        names: one name; several for a partitioned variable or a sparse, ragged or IndexedSlices tensor.
        like: the fetch itself.
    """

    names: tuple[str, ...]
    like: Fetch


@dataclass(frozen=True, slots=True)
class Request:
    """One `run`, in names of the user's graph.

    Attributes:
        structure: the fetches, each leaf a Leaf.
        names: all fetched names, in order.
        feeds: tensor name -> value.
    """

    structure: Nest
    names: tuple[str, ...]
    feeds: dict[str, Value]


def read_request(known: Fetchable, fetches: Fetches, feed_dict: FeedDict | None, per_replica: bool = True) -> Request:
    """Checks and names fetches and feeds.

    Args:
        known: the user's graph.
        fetches: as for `tf.compat.v1.Session.run`.
        feed_dict: tensor or name -> list with one entry per replica.
        per_replica: whether feeds are such lists, or plain values.

    Raises:
        SessionError: when something is not in the user's graph, or a list has the wrong length.
    """
    names: list[str] = []

    def leaf(fetch: Fetch) -> Leaf:
        found = Leaf(_names_of(known, fetch), fetch)
        names.extend(found.names)
        return found

    structure = map_structure(leaf, fetches)
    if feed_dict is not None and not isinstance(feed_dict, Mapping):
        raise SessionError(f"feed_dict must be a dict from tensors to values, got {feed_dict!r}.")
    feeds: dict[str, Value] = {}
    for key, value in (feed_dict or {}).items():
        one = _of_one_replica(key, value) if per_replica else value
        feeds.update(_feed(known, key, one))
    return Request(structure, tuple(names), feeds)


def map_structure(function: Callable[[Any], object], structure: Nest) -> Nest:
    """Applies a function to the leaves of nested lists, tuples, named tuples and dicts, keeping their form."""
    if isinstance(structure, list):
        return [map_structure(function, item) for item in structure]
    if isinstance(structure, tuple):
        items = [map_structure(function, item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    if isinstance(structure, Mapping):
        return {key: map_structure(function, item) for key, item in structure.items()}
    return function(structure)


def restore_structure(request: Request, values: Sequence[Value], is_plain: Callable[[Leaf], bool] | None) -> Nest:
    """Restores the structure of a request from the values of all its names.

    Args:
        request: the request.
        values: one for each name.
        is_plain: which fetches return plain values, not a list per replica; None for all.
    """
    remaining = iter(values)

    def one(leaf: Leaf) -> Value | PerReplica:
        value = _value(leaf, [next(remaining) for _ in leaf.names])
        return value if is_plain is None or is_plain(leaf) else PerReplica([value])

    return map_structure(one, request.structure)


def _value(leaf: Leaf, values: list[Value]) -> Value:
    """The value of one fetch from the values of its names."""
    if isinstance(leaf.like, tf.IndexedSlices):
        return IndexedSlicesValue(*values, *[None] * (3 - len(values)))
    if isinstance(leaf.like, tf.SparseTensor):
        return tf.compat.v1.SparseTensorValue(*values)
    if isinstance(leaf.like, tf.RaggedTensor):
        return _ragged_value(values[0], values[1:])
    if len(values) == 1:
        return values[0]
    cut_axes = [axis for axis, pieces in enumerate(leaf.like._get_partitions()) if pieces > 1]
    return np.concatenate(values, axis=cut_axes[0] if cut_axes else 0)


def _ragged_value(flat: Value, row_splits: Sequence[Value]) -> Value:
    """A ragged tensor's value; the outermost splits come first."""
    return tf.compat.v1.ragged.RaggedTensorValue(
        _ragged_value(flat, row_splits[1:]) if len(row_splits) > 1 else flat, row_splits[0]
    )


def _names_of(known: Fetchable, fetch: Fetch) -> tuple[str, ...]:
    if fetch is None:
        raise SessionError("A fetch must be a tensor, operation, variable or name of the user's graph, got None.")
    pieces = getattr(fetch, "_variable_list", None) or [fetch]
    if isinstance(fetch, tf.IndexedSlices):
        pieces = [t for t in (fetch.values, fetch.indices, fetch.dense_shape) if t is not None]
    elif isinstance(fetch, tf.SparseTensor):
        pieces = [fetch.indices, fetch.values, fetch.dense_shape]
    elif isinstance(fetch, tf.RaggedTensor):
        pieces = [fetch.flat_values, *fetch.nested_row_splits]
    return tuple(known.name(piece) for piece in pieces)


def check_computed(name: str, tables: Sequence[LazyTable]) -> None:
    """Refuses values that only an update of a full table would compute, when rows are updated instead.

    Raises:
        SessionError: no op computes it any more.
    """
    table = next((one.table for one in tables if name.split(":")[0] in one.removed), None)
    if table is not None:
        raise SessionError(
            f"{name!r} can be neither fetched nor fed: it is part of an update of all rows of {table!r}, which "
            "Parallax makes row by row. Fetch the variables, or set Config(lazy_updates=False)."
        )


def _not_in_graph(thing: Fetch, reason: str) -> str:
    name = getattr(thing, "name", thing)
    return (
        f"{name!r} can be neither fetched nor fed, since it is not in the graph that was passed to parallel_run: "
        f"{reason} Build everything that the loop uses before parallel_run."
    )


def _of_one_replica(key: Fetch, value: Value) -> Value:
    """The feed of the one replica."""
    if not isinstance(value, list) and type(value) is not tuple:
        return value
    if len(value) != REPLICAS:
        name = getattr(key, "name", key)
        raise SessionError(
            f"A feed that is a list must have one entry per replica, and there is {REPLICAS} replica: {name!r} has "
            f"{len(value)} entries. Write {{{name}: [batch]}}."
        )
    return value[0]


def _feed(known: Fetchable, key: Fetch, value: Value) -> dict[str, Value]:
    if isinstance(key, tf.SparseTensor):
        parts = (key.indices, key.values, key.dense_shape)
        return {known.name(t): v for t, v in zip(parts, value, strict=True)}
    tensor = known.element(key)
    if not hasattr(tensor, "dtype"):
        raise SessionError(f"A feed must be a tensor, but {tensor.name!r} is an operation. Feed one of its outputs.")
    return {str(tensor.name): value}
