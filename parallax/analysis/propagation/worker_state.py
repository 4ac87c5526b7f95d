"""Finds untrained variables that every worker writes from its per-worker batch while training reads them.

Workers would then train with differing values, none of which one process would have, as it writes them from all
batches. rules_state.py refuses such a write. The plan notes the remaining cases (rows of each worker's own examples). A
variable that training only writes, such as the count of a metric, changes no result.
"""

from __future__ import annotations

from collections.abc import Iterable

from parallax.analysis.propagation.states import SAME, FedScalars, Handle, Same
from parallax.analysis.propagation.walk import GraphFacts, Walk
from parallax.base.errors import GraphError
from parallax.graph.batches import is_partial_sum
from parallax.graph.ops import state_op
from parallax.graph.view import Edge, node_of

_SHOWN = 3
_PART = (
    "Gradients depend on variable {name!r}, but each worker holds only a part of it, since it was created with "
    "aggregation='sum'; one process would compute other gradients. Remove the aggregation and write a mean over the "
    "batch, or compute the loss without the variable."
)
_PIPELINES = ("IteratorGetNext", "QueueDequeue", "ReaderRead")
_SOURCES = ("Placeholder", *_PIPELINES)


def note_local_state(walk: Walk) -> tuple[str, ...]:
    """The plan's note on such variables of a finished traversal, in one sentence."""
    read = sorted(walk.facts.read & walk.assumptions.local_variables)
    if not read:
        return ()
    names = [walk.facts.captured.variables[v].logical_name for v in read]
    listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return (
        f"training can read {listed}, which each worker writes from its own batch, where one process would write it "
        "from the global batch",
    )


def check_parts(known: GraphFacts) -> None:
    """Refuses gradients that depend on a variable of which each worker has a part, such as a metric's count.

    Raises:
        GraphError: they do.
    """
    for variable in sorted(known.captured.variables.keys() & known.read - known.after_gradients):
        if is_partial_sum(known.captured.view.nodes[variable]):
            raise GraphError(_PART.format(name=known.captured.variables[variable].logical_name))


def check_read_by_training(walk: Walk, node: str, slots: Iterable[int], variable: str) -> bool:
    """Requires that untrained state on which gradients depend is written with values of the global batch.

    Returns:
        Whether the variable stores rows of each worker's own examples; False where nothing of the batch is written.

    Raises:
        GraphError: it stores no rows, and an input or a predicate depends on the per-worker batch.
    """
    view, known = walk.view, walk.facts
    if variable in known.shared or variable not in known.read - known.after_gradients or node in known.initial:
        return False
    inputs = view.inputs(node)
    edges = [Edge(node, slot) for slot in slots if not isinstance(walk.state_at(node, slot), Same | Handle)]
    edges = [edge for edge in edges if not _is_chosen(walk, edge) and is_of_batch(walk, inputs[edge.slot])]
    if edges and keeps_rows(walk, node, variable):
        return True
    differing = [branch for branch in known.branches[node] if not walk.agrees((branch,))]
    predicates = [one.predicate for one in differing if not one.is_loop and is_of_batch(walk, one.predicate)]
    if edges:
        how = f"with {inputs[edges[0].slot]!r}, which each worker computes from its own batch and which cannot be"
    elif predicates:
        how = f"if {predicates[0]!r}, which each worker computes from its own batch and which cannot be"
    elif any(branch.is_loop for branch in differing):
        how = "in a loop that may run a different number of times on each worker, so its value cannot be"
    else:
        return False
    raise GraphError(
        f"Gradients depend on {known.captured.variables[variable].logical_name!r}, but {view.op(node)} {node!r} "
        f"writes it {how} aggregated over the workers. Leave the first dimension of the batch open (None) so that the "
        "value can be traced to it, train the variable by a gradient, or compute the loss without the variable."
    )


def _is_chosen(walk: Walk, edge: Edge) -> bool:
    """Whether an input is equal on all workers except for a fed scalar that selects a branch."""
    tensor, layouts = walk.view.inputs(edge.node)[edge.slot], walk.facts.layouts
    fact = None if layouts is None else layouts.facts.get(tensor)
    return fact is not None and fact.is_same and isinstance(walk.state_at(edge.node, edge.slot), FedScalars)


def keeps_rows(walk: Walk, node: str, variable: str) -> bool:
    """Whether a write gives a variable an entry for each example of a per-worker batch, as for state between batches.

    A scatter writes rows by number, which are none of the batch's. One axis of the variable must have the length of a
    batch of fixed length; a variable without a static shape is assumed to have one.
    """
    view = walk.view
    state = state_op(view.op(node), len(view.inputs(node)))
    shape = walk.facts.captured.variables[variable].part.shape
    if state is None or state.kind not in ("assign", "delta"):
        return False
    if shape is None:
        return True
    sources = [view.shape(t) for one in view.nodes if _is_source(walk, one) for t in view.outputs(one)]
    return any(source and source[0] is not None and source[0] in shape for source in sources)


def is_of_batch(walk: Walk, tensor: str) -> bool:
    """Whether a value depends on a feed or a pipeline; otherwise it is drawn, counted, or a constant.

    A feed of no step that training does not read counts as a constant.
    """
    if walk.states[tensor] == SAME:
        return False
    view, made_of = walk.view, walk.view.ancestors([node_of(tensor)])
    if not any(_is_source(walk, node) for node in made_of):
        return False
    sources = [node for node in made_of if view.op(node).startswith(_SOURCES)]
    return any(node in walk.facts.training or view.op(node).startswith(_PIPELINES) for node in sources)


def _is_source(walk: Walk, node: str) -> bool:
    return walk.view.op(node).startswith(_SOURCES) and walk.view.shape(f"{node}:0") != ()
