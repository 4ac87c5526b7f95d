"""What a plan says of layouts: which ops mix examples of the global batch, and therefore take tensors whole."""

from __future__ import annotations

from parallax.analysis.layouts.find_layouts import Layouts
from parallax.graph.view import GraphView

_SHOWN = 3


def notes_of_layouts(view: GraphView, layouts: Layouts) -> tuple[str, ...]:
    """One sentence, or none where no op needs a gathered tensor."""
    if not layouts.mixing:
        return ()
    named = [f"{view.op(node)} {node!r}" for node in layouts.mixing]
    listed = ", ".join(named[:_SHOWN]) + (f" and {len(named) - _SHOWN} more ops" if len(named) > _SHOWN else "")
    return (f"{listed} take tensors of the global batch: these are all-gathered in every step",)
