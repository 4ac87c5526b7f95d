"""From a graph to its plan and rewrites: the one path that launcher, workers and command line share.

`analyse` reads and classifies a graph, `plan_for` returns a plan that can be executed, and `rewrites_of` lists the
changes that the graph needs. The launcher goes through all three, which proves that the plan can be executed. Each
worker goes through `analyse` and `rewrites_of` with the launcher's plan, and then transforms the graph for its rank.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parallax.analysis.auto_stages import StagedGraph
from parallax.analysis.cut.plan_stages import count_stages, cut_of_plan, examples_of_run
from parallax.analysis.layouts.layout_notes import check_gather_limit, note_values_by_batch
from parallax.analysis.measuring.live_bytes import live_bytes
from parallax.analysis.plan_file import plan_of_file
from parallax.analysis.plan_islands import check_for_islands, islands_of, plan_in_islands
from parallax.analysis.planner import get_training_mode, make_plan, part_routes, placements
from parallax.analysis.propagation.classify import classify
from parallax.analysis.propagation.propagate import propagate, walk_graph
from parallax.analysis.propagation.walk import NoRule
from parallax.analysis.reading.capture import CapturedGraph, capture
from parallax.analysis.routes.candidates import note_of_batches
from parallax.analysis.routes.peer_memory import peer_memory_cost
from parallax.analysis.whatif.memory import (
    FixedMemory,
    HostMemory,
    gradient_bytes,
    list_variable_memory,
    memory_plan,
    touched_rows,
)
from parallax.analysis.whatif.simulate import HostKind, simulate
from parallax.analysis.whatif.stage_memory import measure_stages, staged_memory_plan
from parallax.base.errors import GraphError, PlanError
from parallax.base.types import Graph
from parallax.cluster.plan_inputs import PlanInputs, read_measured
from parallax.graph.batches import has_numeric_length, is_of_front_end
from parallax.graph.garbage import without_collections
from parallax.graph.spec import GradientSource, GraphSpec, spec_from_json, spec_to_json
from parallax.plans.memory import PROFILE, MemoryPlan
from parallax.plans.plan import PS, Layout, Plan, PlanConstraints
from parallax.plans.rewrites import Rewrites
from parallax.plans.what_if import Simulation, WhatIf
from parallax.report.text import peer_memory_text
from parallax.settings.config import AUTO, Config
from parallax.settings.modes import check_supported

_OTHER_DOORS = (
    "To train a Keras model, `import parallax.keras` and call its fit; to train a step written as a tf.function, use "
    "`parallax.function`."
)


@dataclass(frozen=True, slots=True)
class AnalysedGraph:
    """A graph, analysed once."""

    captured: CapturedGraph
    spec: GraphSpec
    sources: tuple[GradientSource, ...]

    def to_json(self) -> str:
        """The classes, and the sources of gradients; `adopt_analysis` parses them."""
        return spec_to_json(self.spec, self.sources)


@without_collections
def analyse(
    graph: Graph,
    lazy_updates: bool = True,
    layouts: bool | None = None,
    synchronous: bool = True,
    accumulate_steps: int = 1,
) -> AnalysedGraph:
    """Captures and classifies a tf.Graph.

    Args:
        graph: the tf.Graph.
        lazy_updates: whether updates of whole tables are made by row, later (Config.lazy_updates).
        layouts: whether losses are analysed by the layouts of tensors (Config.layouts); None: where possible.
        synchronous: whether every step uses the gradients of all workers.
        accumulate_steps: the number of batches whose gradients an update uses.

    Raises:
        GraphError: when it cannot be trained in parallel.
    """
    if not hasattr(graph, "as_graph_def"):
        raise GraphError(
            f"single_gpu_graph must be a tf.Graph, got {graph!r}. Build the model inside `with graph.as_default():`. "
            + _OTHER_DOORS
        )
    if hasattr(graph, "capture"):
        raise GraphError(
            f"single_gpu_graph must be a graph that a session can run, but {graph.name!r} is the FuncGraph of a "
            f"traced function. {_OTHER_DOORS}"
        )
    if not graph.get_operations():
        raise GraphError(
            "single_gpu_graph is empty: variables and Keras models that are created eagerly belong to no tf.Graph. "
            f"Build the model inside `with graph.as_default():`. {_OTHER_DOORS}"
        )
    captured = capture(graph, by_row=lazy_updates, by_layouts=layouts, synchronous=synchronous)
    if layouts and captured.means:
        raise GraphError(
            "Config(layouts=True) needs a graph whose loss can be traced back to the batch, and this one cannot be: "
            f"{captured.means}. Leave the first dimension of the batch open (None), or remove layouts."
        )
    try:
        spec, sources = classify(captured, accumulate_steps)
    except GraphError as error:
        if not synchronous or layouts is not None or is_of_front_end(graph) or not captured.by_layouts:
            raise
        captured = capture(graph, by_row=lazy_updates, by_layouts=False, means=str(error).removesuffix("."))
        spec, sources = classify(captured, accumulate_steps)
    return AnalysedGraph(captured, spec, sources)


def analyse_for(graph: Graph, config: Config, synchronous: bool = True) -> AnalysedGraph:
    """Captures and classifies a tf.Graph by a configuration.

    Args:
        graph: the tf.Graph.
        config: the user's settings.
        synchronous: whether every step uses the gradients of all workers.

    Raises:
        GraphError: when it cannot be trained in parallel.
    """
    return analyse(graph, config.lazy_updates, config.layouts, synchronous, config.batches_per_update)


@without_collections
def adopt_analysis(
    graph: Graph, text: str, digest: str, lazy_updates: bool = True, synchronous: bool = True
) -> AnalysedGraph:
    """Captures a worker's graph and adopts the launcher's classes for it.

    Args:
        graph: the tf.Graph.
        text: `AnalysedGraph.to_json` of the launcher's analysis.
        digest: fingerprint of the worker's graph.
        lazy_updates: as the launcher's.
        synchronous: as the launcher's.
    """
    spec, sources = spec_from_json(text)
    captured = capture(graph, digest, lazy_updates, spec.layouts, synchronous)
    return AnalysedGraph(captured, replace(spec, fingerprint=digest), sources)


@without_collections
def plan_for(
    analysed: AnalysedGraph, layout: Layout, config: Config, synchronous: bool = True, hosts: Sequence[str] = ()
) -> Plan:
    """The plan of a graph, which can be executed: the given file's, or a new one.

    Args:
        analysed: the graph.
        layout: workers and servers.
        config: the user's settings; its profiles are read.
        synchronous: whether every step uses the gradients of all workers.
        hosts: addresses of the hosts, which a cluster profile must match; not checked when empty.

    Raises:
        PlanError: when the configuration requires the impossible, or a file does not belong to graph or job.
    """
    constraints = constraints_of(config, synchronous)
    if islands_of(layout, config) is not None:
        is_numeric = any(map(has_numeric_length, analysed.captured.view.nodes.values()))
        check_for_islands(config, synchronous, layout, is_numeric)
    if config.plan_file is None:
        measured = read_measured(config.cluster_profile, config.model_profile)
        if hosts:
            measured.check_names(hosts)
        plan = _new_plan(analysed, layout, config, constraints, measured)
        return _make_allowed_plan(plan, analysed, config)
    plan = plan_of_file(Path(config.plan_file), analysed.spec, layout, config, synchronous)
    return _make_allowed_plan(plan, analysed, config)


def _new_plan(
    analysed: AnalysedGraph, layout: Layout, config: Config, constraints: PlanConstraints, measured: PlanInputs
) -> Plan:
    """The best plan, or that of a model in stages, or of a job in islands."""
    islands = islands_of(layout, config)
    if islands is not None:
        return plan_in_islands(
            layout,
            config,
            islands,
            constraints,
            measured,
            analysed.spec,
            lambda own, terms, given: make_feasible_plan(analysed, own, terms, given),
        )
    return _plan_one_team(analysed, layout, config, constraints, measured)


def _plan_one_team(
    analysed: AnalysedGraph,
    layout: Layout,
    config: Config,
    constraints: PlanConstraints,
    measured: PlanInputs,
    batch: float = 1.0,
) -> Plan:
    """The best plan, or that of a model in stages, where all workers train together.

    Args:
        analysed: the graph, with the spec of the changed batch.
        layout: the workers.
        config: the user's settings.
        constraints: the user's requirements.
        measured: the profiles.
        batch: how many times as large the batch is.
    """
    if config.stages in (None, 1):
        return make_feasible_plan(analysed, layout, constraints, measured)

    def make(spec: GraphSpec, replicas: Layout, terms: PlanConstraints, given: PlanInputs) -> Plan:
        return make_feasible_plan(replace(analysed, spec=spec), replicas, terms, given)

    captured, spec, sources = analysed.captured, analysed.spec, analysed.sources
    check_supported("stages", config, constraints.synchronous, {})
    parts = max(1, layout.num_workers // count_stages(config))
    examples = config.examples or examples_of_run(captured.view, parts, constraints.accumulate_steps)
    examples = math.ceil(examples * batch)
    graph = StagedGraph(captured, spec, sources, layout, constraints, measured, examples, make)
    return graph.choose() if config.stages is None or config.stages == AUTO else graph.plan(config.stages)


def _make_allowed_plan(plan: Plan, analysed: AnalysedGraph, config: Config) -> Plan:
    """An executable plan within the limits set by the user."""
    rewrites = rewrites_of(analysed, plan)
    if config.gather_limit is not None:
        for layouts in rewrites.layouts:
            check_gather_limit(analysed.captured.view, layouts, plan.num_replicas, config.gather_limit)
    if plan.accumulate_steps > 1:
        added = note_values_by_batch(analysed.captured.view, rewrites, analysed.sources)
        batches_note = note_of_batches(plan.accumulate_steps)
        cut = f"each worker's part of a step's batch is cut into {plan.accumulate_steps} micro-batches"
        notes = list(plan.notes)
        for one in rewrites.micro_batches:  # a step without a batch is whole
            notes = [cut if note == batches_note else note for note in notes if one.steps or note != batches_note]
        plan = replace(plan, notes=(*notes, *(note for note in added if note not in notes)))
    return _with_peer_memory(plan, analysed, config)


def _with_peer_memory(plan: Plan, analysed: AnalysedGraph, config: Config) -> Plan:
    """The plan with the cost of state in the memory of other hosts, if that is enabled."""
    steps = config.ckpt_config.memory_steps
    if steps is None:
        return plan
    lazy = [one.table for one in analysed.captured.lazy if one.node]
    alone = [name for name, hosts in config.of_variables("memory_hosts").items() if hosts == 1]
    cost = peer_memory_cost(plan, analysed.spec, lazy, steps, alone)
    cluster = read_measured(config.cluster_profile, None).cluster
    rate = min((host.out_bytes_per_s for host in cluster.hosts), default=0.0) if cluster is not None else 0.0
    note = peer_memory_text(steps, cost.sent_bytes, cost.host_bytes, cost.sent_bytes / rate if rate else None)
    return plan if note in plan.notes else replace(plan, notes=(*plan.notes, note))


def constraints_of(config: Config, synchronous: bool = True) -> PlanConstraints:
    """The plan constraints of a configuration."""
    return PlanConstraints(
        run_option=config.run_option or "HYBRID",
        synchronous=synchronous,
        average_sparse=config.average_sparse,
        routes=config.of_variables("route"),
        touched_rows=config.of_variables("touched_rows"),
        partitions=config.of_variables("partitions"),
        merges_in_host=config.communication_config.ps_config.local_aggregation,
        wire_dtype=config.wire_dtype,
        accumulate_steps=config.batches_per_update,
        staleness=config.staleness,
    )


def simulation_of(
    analysed: AnalysedGraph,
    kinds: Sequence[HostKind],
    config: Config,
    synchronous: bool,
    what_if: WhatIf,
    hosts: Sequence[str] = (),
) -> Simulation:
    """The predictions for a graph on clusters of other sizes, each with an executable plan.

    Args:
        analysed: the graph.
        kinds: the hosts to copy.
        config: the user's settings; its profiles are read.
        synchronous: whether every step uses the gradients of all workers.
        what_if: sizes, and differences from the measured job.
        hosts: their addresses; a cluster profile must match these where there are several.

    Raises:
        PlanError: as `parallax.analysis.whatif.simulate.simulate`; when the profile belongs to other hosts.
    """
    if config.islands is not None:
        raise PlanError("parallax simulate is not supported yet with islands. Leave the islands out.")

    def plan(spec: GraphSpec, layout: Layout, constraints: PlanConstraints, measured: PlanInputs) -> Plan:
        return _plan_one_team(replace(analysed, spec=spec), layout, config, constraints, measured, what_if.batch)

    measured = read_measured(config.cluster_profile, config.model_profile)
    if len(hosts) > 1:
        measured.check_names(hosts)
    return simulate(analysed.spec, kinds, constraints_of(config, synchronous), measured, what_if, plan)


def memory_of(
    analysed: AnalysedGraph,
    plan: Plan,
    config: Config,
    hosts: Sequence[HostMemory],
    fixed: FixedMemory,
    synchronous: bool = True,
    examples: int = 0,
) -> MemoryPlan:
    """Compares the memory of a plan's processes with that of hosts, and finds the largest batch that fits.

    Args:
        analysed: the graph.
        plan: its plan.
        config: the settings that the plan was made with.
        hosts: the memory of each host; a cluster profile takes precedence.
        fixed: memory of processes besides variables and steps.
        synchronous: whether every step uses the gradients of all workers.
        examples: of a per-worker batch, where the graph leaves it open; 0 where that is unknown.
    """
    spec, constraints = analysed.spec, constraints_of(config, synchronous)
    measured = read_measured(config.cluster_profile, config.model_profile)
    if measured.cluster is not None:
        hosts = [HostMemory(one.name, one.memory_bytes, PROFILE) for one in measured.cluster.hosts]
    if plan.stages:
        stages = measure_stages(plan, spec, constraints, measured)
        examples = examples or examples_of_run(analysed.captured.view, plan.num_replicas, plan.accumulate_steps)
        return staged_memory_plan(plan, stages, examples, hosts, fixed)
    variables = list_variable_memory(spec, plan, constraints, measured)
    routes, placed = part_routes(spec, plan), placements(spec, plan)
    walk = walk_graph(analysed.captured, analysed.sources, routes, placements=placed)
    live = live_bytes(
        walk, gradient_bytes(variables), touched_rows(spec, constraints, measured), os.cpu_count() or 1, examples
    )
    return memory_plan(plan, variables, live, hosts, fixed)


def make_feasible_plan(
    analysed: AnalysedGraph, layout: Layout, constraints: PlanConstraints, measured: PlanInputs | None = None
) -> Plan:
    """A plan with as many of the requested variables on servers as possible.

    A variable that propagation cannot have on servers is refused for servers, with the reason, and the plan is made
    again, until propagation succeeds. Reasons are an op on a dense gradient that needs all its rows, or a moving
    average whose initial value queries whether a table is initialized.
    """
    refused: dict[str, str] = {}
    while True:
        plan = make_plan(analysed.spec, layout, replace(constraints, refused=refused), measured)
        try:
            rewrites_of(analysed, plan)
        except NoRule as error:
            name = next(v.name for v in analysed.spec.variables if error.part in [part.op for part in v.parts])
            if plan.variable(name).route != PS:
                raise
            refused[name] = error.reason
        else:
            return plan


def rewrites_of(analysed: AnalysedGraph, plan: Plan, equal_randomness: bool = False) -> Rewrites:
    """The rewrites of the graph for a plan; for verification all workers draw the same random numbers."""
    spec = analysed.spec
    rewrites = propagate(
        analysed.captured,
        analysed.sources,
        part_routes(spec, plan),
        equal_randomness,
        placements(spec, plan),
        get_training_mode(plan),
    )
    cut = cut_of_plan(analysed.captured, analysed.sources, plan)
    return rewrites if cut is None else replace(rewrites, stages=(cut,))
