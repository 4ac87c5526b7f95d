"""Pass: replaces the number of shards and the index of this worker's shard with constants.

Both are placeholders with defaults that carry a mark, so that all processes build one graph though their shards differ.
Marks in functions count too: a one-shot iterator copies its dataset into one.
"""

from __future__ import annotations

import tensorflow as tf

from parallax.base.types import GraphDef
from parallax.graph.shard import MARK, NUM_SHARDS, mark_of
from parallax.transform.building.editor import Worker


def set_shards(graph_def: GraphDef, worker: Worker) -> None:
    """Sets the marked nodes (parallax/graph/shard.py), also in functions, as those of one-shot iterators.

    Args:
        graph_def: modified in place.
        worker: the worker whose graph it is.
    """
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            mark = mark_of(node)
            if not mark:
                continue
            value = worker.size if mark == NUM_SHARDS else worker.rank
            node.op = "Const"
            del node.input[:]
            node.attr.clear()
            node.attr[MARK].s = mark
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64, shape=[]))
            node.attr["dtype"].type = tf.int64.as_datatype_enum
