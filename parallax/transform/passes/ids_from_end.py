"""Pass: lets a pull resolve negative ids, which a graph counts from the end of a table, as Keras does.

`where(id < 0, id + rows, id)` is three small ops for each lookup. The op that prepares ids for sending reads every id
anyway.
"""

from __future__ import annotations

from parallax.graph.view import GraphView, node_of


def ids_before(view: GraphView, tensor: str, rows: int) -> str | None:
    """The ids before negative ones were counted from the end; None where a tensor has another origin.

    Args:
        view: the user's graph.
        tensor: ids of a lookup.
        rows: of its table.
    """
    node = node_of(tensor)
    if view.op(node) != "SelectV2":
        return None
    is_below, counted, ids = view.inputs(node)
    below, added = node_of(is_below), node_of(counted)
    if view.op(below) != "Less" or view.op(added) not in ("Add", "AddV2"):
        return None
    first, zero = view.inputs(below)
    terms = sorted(view.inputs(added), key=lambda term: term != ids)
    is_so = first == terms[0] == ids and _number(view, zero) == 0 and _number(view, terms[1]) == rows
    return ids if is_so else None


def _number(view: GraphView, tensor: str) -> int | None:
    """The integer value of a tensor, as a constant or as an element of a constant shape."""
    value = view.constant(tensor)
    node = node_of(tensor)
    if value is None and view.op(node) == "StridedSlice" and view.nodes[node].attr["shrink_axis_mask"].i == 1:
        whole, first = (view.constant(one) for one in view.inputs(node)[:2])
        if whole is not None and first is not None and whole.ndim == 1 and first.shape == (1,):
            value = whole[int(first[0])]
    return int(value) if value is not None and value.ndim == 0 and value.dtype.kind == "i" else None
