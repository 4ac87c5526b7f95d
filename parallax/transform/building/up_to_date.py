"""An op after which all rows of a lazily updated table have all updates; for readers that a pass does not know."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from parallax.graph.row_updates import row_update_ops
from parallax.types import Operation


def up_to_date(op: str, tables: Sequence[tuple[str, ...]]) -> list[Operation]:
    """What whoever reads or writes a variable in the default graph must wait for; nothing for most variables.

    Args:
        op: that holds the variable.
        tables: the variable ops of each lazily updated table of the graph, its own first.
    """
    members = next((members for members in tables if op in members), None)
    if members is None:
        return []
    graph = tf.compat.v1.get_default_graph()
    states = [graph.get_tensor_by_name(f"{member}:0") for member in members]
    with tf.device(states[0].device or None), tf.control_dependencies(None):
        made = row_update_ops().parallax_bring_up_to_date(states=states, T=states[0].op.get_attr("dtype"))
    return [made]
