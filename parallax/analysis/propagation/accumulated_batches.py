"""Checks that gradients of several batches can be accumulated for one update, in a graph whose tensors have layouts.

Each batch is then computed independently, as one process would: with its own statistics and its share of the loss. A
value computed from one batch alone must not reach the update, which covers all batches. An op that writes such a value
elsewhere runs with every batch.
"""

from __future__ import annotations

from parallax.analysis.layouts.training_graph import after_gradients, edges_outside
from parallax.analysis.propagation.states import Handle
from parallax.analysis.propagation.walk import Walk
from parallax.base.errors import GraphError
from parallax.graph.batches import batch_by_node
from parallax.graph.ops import state_op
from parallax.graph.view import Edge, node_of


def check_kept(walk: Walk) -> None:
    """Checks a finished traversal.

    Raises:
        GraphError: an update reads a value of one batch, or a gradient is no sum over the workers.
    """
    view, layouts = walk.view, walk.facts.layouts
    if layouts is None:
        return
    batches, delivered = batch_by_node(view), set[Edge]()
    for source in walk.facts.sources:
        delivered.update(edges_outside(view, source))
        fact = layouts.facts[source.values]
        if source.indices is None and not (fact.is_same or fact.is_sum):
            raise GraphError(
                f"With accumulate_steps, gradients are summed over batches, but the gradient {source.values!r} is not "
                f"a sum over the workers (they hold it as {fact.layout}). Leave accumulate_steps at 1."
            )
    after = after_gradients(view, walk.facts.sources) & walk.facts.training
    for node in sorted(after):
        for slot, tensor in enumerate(view.inputs(node)):
            before = node_of(tensor)
            if before in batches and before not in after and Edge(node, slot) not in delivered:
                raise GraphError(
                    f"With accumulate_steps, an update must not depend on {tensor!r}, which is computed from a single "
                    "batch. Compute conditions and learning rates from variables, or leave accumulate_steps at 1."
                )
    for node in sorted((walk.facts.training & batches.keys()) - after - walk.facts.initial):
        if not walk.facts.shared.isdisjoint(_find_written(walk, node)):
            raise GraphError(
                f"With accumulate_steps, an update covers several batches, but {view.op(node)} {node!r} updates "
                f"{_find_written(walk, node)[0]!r} in a loop, from a single batch. Leave accumulate_steps at 1."
            )


def find_batch_writes(walk: Walk) -> tuple[str, ...]:
    """The nodes that write values computed from one batch to variables of no update."""
    view, batches = walk.view, batch_by_node(walk.view)
    elsewhere = walk.facts.initial | after_gradients(view, walk.facts.sources)
    return tuple(node for node in view.nodes if node in batches and node not in elsewhere and _writes(walk, node))


def _writes(walk: Walk, node: str) -> bool:
    """Whether a node writes variables, none of which is trained or a slot."""
    variables = _find_written(walk, node)
    return bool(variables) and (walk.facts.shared | walk.assumptions.table_of.keys()).isdisjoint(variables)


def _find_written(walk: Walk, node: str) -> list[str]:
    """The variables that a node writes."""
    written = state_op(walk.view.op(node), len(walk.view.inputs(node)))
    handles = [walk.state_at(node, slot) for slot in written.state] if written is not None else []
    return [one.variable for one in handles if isinstance(one, Handle)]
