"""Feeds a graph whose fixed batch was opened as the script feeds the graph that it built.

The script may feed a constant, such as the zeros in which a recurrent state begins, and fetch values of the batch's
length that read no input. In the opened graph, other tensors have taken that constant's place, and the length is that
of an input.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from parallax.base.types import Value
from parallax.graph.batches import find_substitutes, fixed_length, is_opened
from parallax.graph.view import GraphView, node_of


class FixedBatch:
    """Maps feeds and fetches of a graph for a fixed batch to the same graph with an open batch.

    Args:
        view: the graph with an open batch.
        fixed: the graph that the script built.

    Attributes:
        substitutes: tensor of the script's graph -> the tensors that some ops read in its place.
    """

    def __init__(self, view: GraphView, fixed: GraphView) -> None:
        self._fixed = fixed
        self.substitutes = find_substitutes(view)
        self._sources = {
            f"{name}:0": (view.inputs(name)[0], _make_zeros(view, name))
            for name, node in view.nodes.items()
            if is_opened(node)
        }

    def find_unread_sources(self, nodes: Iterable[str], fed: Iterable[str]) -> dict[str, Value]:
        """The inputs that a run in the script's graph does not read, with zeros of the fixed length to feed.

        A run of the opened graph may read their length.

        Args:
            nodes: that the run fetches.
            fed: tensors that it feeds.
        """
        begin, fed = set(nodes), frozenset(fed)
        if not begin <= self._fixed.nodes.keys():
            return {}
        read = self._fixed.ancestors(begin, fed)
        unread = {name: one for name, one in self._sources.items() if one[0] not in fed and node_of(one[0]) not in read}
        return {name: zeros for name, (_, zeros) in unread.items() if zeros is not None}

    def find_made_from(self, name: str) -> str:
        """A tensor with substitutes that is computed from another constant of the script's graph; empty if none is."""
        node = node_of(name)
        if node not in self._fixed.nodes or self._fixed.constant(name) is None:
            return ""
        made = (one for one in self.substitutes if one != name and node_of(one) in self._fixed.nodes)
        return next((one for one in made if node in self._fixed.ancestors([node_of(one)])), "")


def _make_zeros(view: GraphView, source: str) -> Value | None:
    """Zeros of a source's fixed length, with one entry along all other open axes; None if there is no zero."""
    dims = view.shape(f"{source}:0") or ()
    dtype = tf.as_dtype(view.dtype(f"{source}:0"))
    if dtype in (tf.variant, tf.resource):
        return None
    shape = [fixed_length(view.nodes[source]), *(1 if n is None else n for n in dims[1:])]
    return np.full(shape, b"", object) if dtype == tf.string else np.zeros(shape, dtype.as_numpy_dtype)
