"""Forgets lengths of one process that a front end's step states, or requires, for axes of which workers have shares."""

from __future__ import annotations

from collections.abc import Iterable

from parallax.graph.batches import is_of_script
from parallax.graph.view import GraphView, split_tensor
from parallax.plans.layouts import LayoutRewrites

_SHAPES = "_output_shapes"


def with_open_shapes(view: GraphView, layouts: Iterable[LayoutRewrites]) -> GraphView:
    """The graph with open lengths of sharded axes in its recorded shapes; the graph itself where they are open.

    Args:
        view: the captured graph.
        layouts: the changes of layout.
    """
    if is_of_script(view):  # whose batches have the lengths of a worker's
        return view
    numbered = []
    for one in layouts:
        for tensor, layout in one.sharded.items():
            axes = (view.shape(tensor) or ())[layout.axis :]  # none of a list, whose layout is that of its stack
            if axes and axes[0] is not None:
                numbered.append((*split_tensor(tensor), layout.axis))
    if not numbered:
        return view
    copy = type(view.graph_def)()
    copy.CopyFrom(view.graph_def)
    nodes = {node.name: node for node in copy.node}
    for name, number, axis in numbered:
        node = nodes[name]
        node.attr[_SHAPES].list.shape[number].dim[axis].size = -1
        if node.op == "EnsureShape" and not node.attr["shape"].shape.unknown_rank:
            node.attr["shape"].shape.dim[axis].size = -1
    return GraphView(copy)
