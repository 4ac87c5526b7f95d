"""Finds the state of every tensor on a worker, and from the states the rewrites that the given routes need.

The traversal visits the user's graph in topological order. The rules of single ops are in visit_node.py and in the
modules that it names. A newly found slot variable, a variable found to be per-worker, or a changed kind of gradient
pieces restarts the traversal. The rewrites follow from the last traversal (collect_rewrites.py). They name nodes and
edges only (parallax/plans/rewrites.py), and need neither Horovod nor a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial

from parallax.analysis.layouts.find_layouts import Layouts, find_applied_gradients, find_layouts, replicate_all
from parallax.analysis.layouts.training_graph import TrainingGraph
from parallax.analysis.propagation import visit_node
from parallax.analysis.propagation.collect_rewrites import collect_rewrites
from parallax.analysis.propagation.gradient_pieces import find_piece_kinds, mark_sparse_gradients, marked_by
from parallax.analysis.propagation.walk import Assumptions, GraphFacts, Walk
from parallax.analysis.propagation.worker_state import check_parts
from parallax.analysis.reading.capture import CapturedGraph, variable_of_tensor
from parallax.analysis.reading.gradients import followed_variable, gradient_updates, is_in_loop
from parallax.analysis.reading.lowering.function_bodies import Functions, functions_of
from parallax.base.errors import GraphError, ParallaxError
from parallax.graph.batches import is_of_script, is_partial_sum
from parallax.graph.control_flow import branches_of
from parallax.graph.garbage import without_collections
from parallax.graph.ops import state_op
from parallax.graph.spec import GradientSource
from parallax.graph.view import node_of
from parallax.plans.rewrites import Placement, Rewrites, Table, TrainingMode


@without_collections
def propagate(
    captured: CapturedGraph,
    sources: tuple[GradientSource, ...],
    routes: Mapping[str, str],
    equal_randomness: bool = False,
    placements: Mapping[str, Placement] | None = None,
    terms: TrainingMode | None = None,
) -> Rewrites:
    """Finds the changes by which N workers train as one process would; the result is cached.

    Args:
        captured: the graph.
        sources: where autodiff delivers gradients (gradients.find_gradients).
        routes: variable op -> `alltoall`, `allgather`, `allreduce`, `ps` or `raw`, for every part whose gradient comes
            as IndexedSlices; dense gradients are all-reduced unless their variable is placed on servers.
        equal_randomness: whether all workers draw the same random numbers (for verification).
        placements: variable op -> the placement of its rows, for all on servers and for those that workers own by a
            pattern.
        terms: the mode in which the workers train.

    Raises:
        NoRule: a part's route cannot be executed; the message names the op.
        GraphError: no route is correct for this graph.
    """
    terms, placements = terms or TrainingMode(), placements or {}
    cache_key = (sources, frozenset(routes.items()), equal_randomness, frozenset(placements.items()), terms)
    remembered = captured.remembered
    if cache_key not in remembered:
        remembered[cache_key] = collect_rewrites(
            walk_graph(captured, sources, routes, equal_randomness, placements), terms
        )
    rewrites: Rewrites = remembered[cache_key]
    return rewrites


def walk_graph(
    captured: CapturedGraph,
    sources: tuple[GradientSource, ...],
    routes: Mapping[str, str],
    equal_randomness: bool = False,
    placements: Mapping[str, Placement] | None = None,
) -> Walk:
    """The last traversal, from which the rewrites follow; its `states` contain the state of every tensor."""
    known = _begin(captured, sources, routes, equal_randomness, placements or {})
    check_parts(known)
    order = captured.view.topological_order()
    walk = _first_walk(known, order)
    while (assumptions := _find_otherwise(walk)) is not None:
        walk = _walk(known, assumptions, order)
    return walk


def _begin(
    captured: CapturedGraph,
    sources: tuple[GradientSource, ...],
    routes: Mapping[str, str],
    equal_randomness: bool,
    placements: Mapping[str, Placement],
) -> GraphFacts:
    """The inputs of a traversal.

    Raises:
        GraphError: losses are analysed by layouts, and an op has no rule.
    """
    view = captured.view
    functions = functions_of(view, lambda op: visit_node.differs(op, equal_randomness))
    applied = find_applied_gradients(view, sources)
    sources = tuple(source for source in applied if not is_in_loop(view, source))
    spread = {part for part, route in routes.items() if route == "alltoall"}
    updates = gradient_updates(captured, applied)
    initializers = {v.initializer for v in captured.variables.values() if v.initializer}
    training = view.ancestors(updates - initializers)
    delivered = [node_of(t) for s in applied for t in s.tensors]
    dense_sources: dict[str, list[GradientSource]] = {}
    for source in sources:
        if source.indices is None:
            dense_sources.setdefault(source.values, []).append(source)
    initial = view.ancestors(initializers)
    return GraphFacts(
        captured=captured,
        sources=sources,
        routes=routes,
        tables={
            part: _make_table(captured, part, placements.get(part, Placement()))
            for part in sorted(spread | placements.keys())
        },
        shared=visit_node.shared_variables(captured, applied, updates),
        training=training,
        read=view.computed_of(updates - initializers),
        initial=initial,
        initializers=initializers,
        dense_sources=dense_sources,
        equal_randomness=equal_randomness,
        after_gradients=training - view.ancestors(delivered),
        branches=branches_of(view),
        functions=functions,
        layouts=_find_layouts_once(captured, sources, functions) if captured.by_layouts else None,
    )


def _find_layouts_once(captured: CapturedGraph, sources: tuple[GradientSource, ...], functions: Functions) -> Layouts:
    """The layouts of a step's tensors, or why there are none; computed once."""
    if sources not in captured.remembered:
        view, variables, differs = (
            captured.view,
            captured.variables,
            partial(visit_node.differs, equal_randomness=False),
        )
        initial = view.ancestors({v.initializer for v in variables.values() if v.initializer})
        steps = _find_steps(captured, initial) if is_of_script(view) else None
        autodiff = frozenset[str]().union(*(record.ops for record in captured.records))
        random, replaced = visit_node.is_random, captured.replaced
        graph = TrainingGraph(view, variables, sources, initial, functions, differs, random, steps, autodiff, replaced)
        try:
            captured.remembered[sources] = find_layouts(graph) if captured.synchronous else replicate_all(graph)
        except GraphError as error:
            captured.remembered[sources] = error
    layouts: Layouts | GraphError = captured.remembered[sources]
    if isinstance(layouts, GraphError):
        raise layouts
    return layouts


def _find_steps(captured: CapturedGraph, initial: Set[str]) -> Set[str]:
    """The ancestors of writes to variables, except for initial values and for per-worker counters."""
    view, steps = captured.view, []
    for node in view.nodes:
        state = state_op(view.op(node), len(view.inputs(node))) if node not in initial else None
        handles = [view.inputs(node)[slot] for slot in state.state] if state is not None else []
        written = [captured.variables.get(variable_of_tensor(view, captured.variables, one)) for one in handles]
        if any(one is not None and not one.is_local for one in written):
            steps.append(node)
    return view.ancestors(steps) - initial


def _first_walk(facts: GraphFacts, order: list[str]) -> Walk:
    """Assumes that variables named like slots are slots; where one is not, the traversal finds the slots itself."""
    alone = Assumptions({part: part for part in facts.tables}, local_variables=_find_worker_variables(facts.captured))
    named = _expect_slots(facts.captured, facts.tables)
    try:
        walk = _walk(facts, replace(alone, table_of={**alone.table_of, **named}), order)
        if not named.keys() - walk.confirmed:
            return walk
    except ParallaxError:
        if not named:
            raise
    return _walk(facts, alone, order)


def _find_worker_variables(captured: CapturedGraph) -> frozenset[str]:
    """Variables of which each worker has a part, or, where workers take steps of their own, that are declared local."""
    variables, nodes = captured.variables, captured.view.nodes
    return frozenset(
        name
        for name, one in variables.items()
        if is_partial_sum(nodes[name]) or (one.is_local and not captured.synchronous)
    )


def _walk(facts: GraphFacts, assumptions: Assumptions, order: list[str]) -> Walk:
    walk = Walk(facts, assumptions)
    mark_sparse_gradients(walk)
    for node in order:
        visit_node.visit(walk, node)
    return walk


def _find_otherwise(walk: Walk) -> Assumptions | None:
    """The assumptions of the next traversal; None when this one confirmed its own."""
    assumed = walk.assumptions
    assumptions = Assumptions(
        table_of={**assumed.table_of, **walk.new_members},
        local_variables=assumed.local_variables | walk.new_local_variables,
        kinds=find_piece_kinds(walk),
    )
    is_new = (
        assumptions.table_of.keys() != assumed.table_of.keys() or assumptions.local_variables != assumed.local_variables
    )
    if is_new or marked_by(walk, assumptions.kinds) != marked_by(walk, assumed.kinds):
        return assumptions
    walk.assumptions = replace(assumed, kinds=assumptions.kinds)
    return None


def _expect_slots(captured: CapturedGraph, tables: Mapping[str, Table]) -> dict[str, str]:
    """Variable op -> table op, for variables that by name and shape are slots; a traversal must confirm them."""
    named = {op: followed_variable(captured, op) for op in captured.variables}
    return {op: table for op, table in named.items() if table in tables}


def _make_table(captured: CapturedGraph, part: str, placement: Placement) -> Table:
    variable = captured.variables[part]
    shape = variable.part.shape
    return Table(
        op=part,
        rows=variable.part.rows,
        row_shape=shape[1:],
        dtype=variable.dtype,
        members=(part,),
        variable=variable.logical_name,
        servers=placement.servers,
        replicated=placement.replicated,
        is_scalar=not shape,
        pattern=placement.pattern,
    )
