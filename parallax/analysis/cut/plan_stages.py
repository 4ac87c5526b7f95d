"""Plans a model in stages: the plan of its replicas, each of which has one worker for each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from parallax.analysis.cut.stage_cut import CutRates, GraphCut, graph_cut
from parallax.analysis.reading.capture import CapturedGraph
from parallax.base.errors import PlanError
from parallax.graph.batches import first_batches, full_length
from parallax.graph.cut.graph_to_cut import size_bytes
from parallax.graph.spec import GradientSource, GraphSpec, VariableSpec
from parallax.graph.view import EXAMPLES, GraphView, node_of
from parallax.plans.model_stages import StageCut, StagePlan, WorkerGrid
from parallax.plans.plan import ALLGATHER, ALLREDUCE, ALLTOALL, NO_ROUTE, Layout, Plan, PlanConstraints
from parallax.settings.config import AUTO, Config


def count_stages(config: Config) -> int:
    """The number of stages in a configuration; 1 for none, and where the planner chooses."""
    if config.stages in (None, AUTO):
        return 1
    return config.stages if isinstance(config.stages, int) else len(config.stages) + 1


def layout_of_replicas(layout: Layout, stages: int, is_by_stage: bool = False) -> Layout:
    """The layout of a job in terms of replicas, each on the host of its first stage.

    Args:
        layout: of all workers.
        stages: of a replica.
        is_by_stage: whether consecutive workers have the same stage; else they form a replica.

    Raises:
        PlanError: the workers are not a multiple of the stages.
    """
    workers = layout.num_workers
    if workers % stages:
        raise PlanError(
            f"The number of workers must be a multiple of the number of stages: {workers} workers were given, and "
            f"{stages} stages. Change either."
        )
    if stages == 1:
        return layout
    hosts = layout.host_by_rank
    firsts = [hosts[rank] for rank in WorkerGrid(stages, workers // stages, is_by_stage).find_team(0)]
    return Layout(tuple(firsts.count(host) for host in range(len(layout.hosts))))


def check_micro_batches(view: GraphView, replicas: int, micro_batches: int) -> None:
    """Refuses more micro-batches than a full batch has examples for, where its length is known.

    Raises:
        PlanError: says how many there are.
    """
    lengths = [full_length(view.nodes[node]) for node in view.nodes_of(["Placeholder"])]
    least = min((length for length in lengths if length), default=0)
    if 0 < least < replicas * micro_batches:
        raise PlanError(
            f"Each micro-batch of each replica must have an example of a batch: a batch has {least} examples, and "
            f"there are {replicas} replicas x {micro_batches} micro-batches. Ask for fewer micro_batches, or take "
            "larger batches."
        )


def examples_of_run(view: GraphView, workers: int, batches: int) -> int:
    """The examples of a worker's batch in a run; 1 where the graph has a fixed batch, 0 where it leaves the batch open.

    Args:
        view: the graph.
        workers: the number of workers, each with the whole model.
        batches: into which each worker's part of a step's batch is cut.
    """
    for node in view.nodes.values():
        if full_length(node):
            return max(1, full_length(node) // (workers * batches))
        if EXAMPLES in node.attr:
            return int(node.attr[EXAMPLES].i)
    return 0 if first_batches(view) else 1


def plan_in_stages(
    captured: CapturedGraph,
    spec: GraphSpec,
    sources: tuple[GradientSource, ...],
    layout: Layout,
    stages: int | Sequence[str],
    constraints: PlanConstraints,
    rates: CutRates,
    make: Callable[[Layout, PlanConstraints], Plan],
    is_by_stage: bool = False,
) -> Plan:
    """The plan of a model that is cut into stages.

    Args:
        captured: the graph.
        spec: its variables.
        sources: where gradients leave autodiff.
        layout: of all workers.
        stages: how many stages, or where they end.
        constraints: what else is wanted.
        rates: the measurements by which cuts are compared.
        make: plans for workers that have the whole model.
        is_by_stage: whether consecutive workers have the same stage; else they form a replica.

    Raises:
        PlanError: when it cannot be.
    """
    count = stages if isinstance(stages, int) else len(stages) + 1
    replicas = layout_of_replicas(layout, count, is_by_stage)
    check_micro_batches(captured.view, replicas.num_workers, constraints.accumulate_steps)
    found = get_graph_cut(captured, sources)
    ends = found.find_best_ends(count, rates) if isinstance(stages, int) else found.check_ends(stages)
    plan = make(replicas, replace(constraints, run_option="MPI"))
    _check_routes(plan)
    made = _stages_of(found, found.cut_at(ends), ends, spec, plan, rates)
    run_option = constraints.run_option
    return replace(plan, hosts=layout.hosts, servers=(), run_option=run_option, stages=made, is_by_stage=is_by_stage)


def _check_routes(plan: Plan) -> None:
    for variable in plan.variables:
        if variable.route not in (ALLREDUCE, ALLGATHER, ALLTOALL, NO_ROUTE):
            raise PlanError(
                f"With stages a variable must go between workers, and {variable.name} goes by {variable.route}. Leave "
                "its route out, or stages."
            )


def get_graph_cut(captured: CapturedGraph, sources: tuple[GradientSource, ...]) -> GraphCut:
    """The possible cuts of a graph, computed once."""
    key = ("stages", sources)
    if key not in captured.remembered:
        captured.remembered[key] = graph_cut(captured, sources)
    found: GraphCut = captured.remembered[key]
    return found


def cut_of_plan(captured: CapturedGraph, sources: tuple[GradientSource, ...], plan: Plan) -> StageCut | None:
    """The assignment of a graph's nodes to stages in a plan; None where every worker has all nodes.

    Raises:
        PlanError: the graph lacks stages of the plan.
    """
    if not plan.stages:
        return None
    return get_graph_cut(captured, sources).cut_at([stage.ends for stage in plan.stages[:-1]])


def _stages_of(
    found: GraphCut,
    cut: StageCut,
    ends: tuple[tuple[str, ...], ...],
    spec: GraphSpec,
    plan: Plan,
    rates: CutRates,
) -> tuple[StagePlan, ...]:
    """The plan's entry for each stage."""
    costs = found.member_seconds(rates)
    of_member = [cut.places[nodes[0]] for nodes in found.forward.members]
    messages = [one for one in found.list_messages(cut) if one.tensor]
    trained = [v for v in spec.variables if v.gradients]
    forward, variable_bytes = found.forward.number_members(), found.count_variable_bytes(cut)
    activations = found.measure_activations(cut)
    stages = []
    for stage in range(cut.count):
        stage_variables = [v for v in trained if _stage_of(v, cut.places) == stage]
        cost_s = sum(cost for cost, at in zip(costs, of_member, strict=True) if at == stage)
        sent = [0] * cut.count
        for m in messages:
            sent[m.target] += size_bytes(found.view, m.tensor) if m.source == stage else 0
        begins = [m.tensor for m in messages if m.target == stage and node_of(m.tensor) in forward]
        stages.append(
            StagePlan(
                ends=ends[stage] if stage < len(ends) else (),
                begins=tuple(dict.fromkeys(begins)),
                variables=tuple(v.name for v in stage_variables),
                parameters=sum(v.value_bytes // v.dtype_bytes for v in stage_variables),
                held_bytes=variable_bytes[stage]
                + (sum(v.value_bytes for v in stage_variables) if plan.accumulate_steps > 1 else 0),
                cost_share=cost_s / (sum(costs) or 1.0),
                sent_bytes=sum(sent),
                sent_to=tuple(sent),
                kept_bytes=activations[stage].kept,
                most_bytes=activations[stage].most,
                run_s=None if rates.run_s is None else cost_s,
            )
        )
    return tuple(stages)


def _stage_of(variable: VariableSpec, places: Mapping[str, int]) -> int:
    return min(places.get(part.op, 0) for part in variable.parts)
