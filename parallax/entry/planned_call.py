"""A call of the script after its checks and planning, before anything is started."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from parallax.analysis.graph_decisions import GraphDecisions
from parallax.analysis.graph_to_plan import AnalysedGraph, analyse_for, plan_for
from parallax.base.errors import PlanError
from parallax.base.status_line import clear_status
from parallax.base.types import Graph
from parallax.cluster.machines import Cluster
from parallax.cluster.profile_files import check_writable
from parallax.graph.local_statistics import mark_normalizations
from parallax.plans.plan import Plan
from parallax.report.logger import log
from parallax.report.plan_table import plan_table
from parallax.runtime.launcher.job import layout_of
from parallax.runtime.make_job import check_profile, cluster_of
from parallax.runtime.measure.options import measure_options
from parallax.runtime.replan.options import check_possible, replan_options
from parallax.runtime.trace.options import make_ready, trace_options
from parallax.runtime.worker.random_state import draw_seed
from parallax.settings import checks
from parallax.settings.config import OWN, Config, list_ineffective_settings
from parallax.settings.environment import Settings, settings
from parallax.settings.merge import merge_settings
from parallax.settings.modes import resolve_sync

_OPTIONS = {"memory": "--memory", "html": "--html", "measure": "--measure"}
"""Features that not every kind of plan supports: settings, and their options."""
_UNSUPPORTED = {"stages": ("measure",), "islands": ("memory", "html", "measure")}
"""By kind of plan the features that it does not support yet."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `parallel_run`, or of `plan`.

    Attributes:
        graph: the user's tf.Graph; None before it is known.
        resource_info: a resource file; None for workers on this machine.
        sync: whether every step uses the gradients of all workers.
        config: settings, checked again, merged with the command line's.
        requested: the settings of this process from the command line or the launcher.
        decisions: in a worker that has the graph from the launching process, that process's rewrites.
    """

    graph: Graph
    resource_info: str | Path | None
    sync: bool
    config: Config
    requested: Settings
    decisions: GraphDecisions | None = None


def checked_call(
    graph: Graph, resource_info: str | Path | None, sync: bool | str, passed_config: Config | None
) -> Call:
    """Checks the arguments of a call; the command line overrides the script's configuration."""
    config = checks.instance_of("parallax_config", passed_config, Config)
    requested = settings()
    config = merge_settings(replace(config), requested)  # checked again, and later assignments have no effect
    is_synchronous, config = resolve_sync(sync, config)
    if hasattr(graph, "get_operations"):  # the analysis refuses anything else
        mark_normalizations(graph, config.batch_norm == OWN)
    return Call(graph, resource_info, is_synchronous, config, replace(requested, compute_dtype=config.compute_dtype))


class PlannedCall(NamedTuple):
    """The plan and cluster of a call, before its job is started."""

    analysed: AnalysedGraph
    cluster: Cluster
    plan: Plan


def plan_call(call: Call) -> PlannedCall:
    """Analyses and plans a graph for the machines of a job.

    Raises:
        ParallaxError: graph, plan, configuration or resource file are invalid.
    """
    for line in list_ineffective_settings(call.config):
        log.info(line)
    analysed = analyse_for(call.graph, call.config, call.sync)
    cluster = checked_cluster(call)
    return PlannedCall(analysed, cluster, plan_on(cluster, analysed, call))


def plan_on(cluster: Cluster, analysed: AnalysedGraph, call: Call) -> Plan:
    """A plan of an analysed graph for some machines.

    Raises:
        PlanError: there are stages or islands, and a requested feature does not support these yet.
    """
    plan = plan_for(analysed, layout_of(cluster), call.config, call.sync, [host.address for host in cluster.hosts])
    for kind in [name for name in _UNSUPPORTED if getattr(plan, name)]:
        requested = [_OPTIONS[name] for name in _UNSUPPORTED[kind] if getattr(call.requested, name) is not None]
        if requested:
            raise PlanError(f"{requested[0]} is not supported yet with {kind}. Leave it out, or the {kind}.")
    return plan


def checked_cluster(call: Call) -> Cluster:
    """The machines of a job, if it passes all checks except planning."""
    config = call.config
    if config.ckpt_config.keeps_state and call.graph is not None:  # workers may start before there is a graph
        from parallax.runtime.checkpoint.checkpoints import check_global_step

        check_global_step(call.graph, config.ckpt_config)  # otherwise every worker would refuse it
    check_possible(replan_options(config, call.requested), config)
    cluster = cluster_of(call.resource_info, config, call.requested)
    check_profile(config, cluster.num_workers)
    options = config.communication_config.mpi_config.mpirun_options or ()
    return replace(cluster, mpirun_options=(*cluster.mpirun_options, *options))


def check_outputs(call: Call, cluster: Cluster) -> None:
    """Prepares, or refuses, the files that a job writes for its launching process on this machine."""
    trace = trace_options(call.requested.trace, call.requested.trace_steps)
    measure = measure_options(call.requested)
    if trace is not None and any(host.is_this_machine for host in cluster.hosts):
        make_ready(trace.folder)
    if measure is not None and measure.path is not None and cluster.hosts[0].is_this_machine:
        check_writable(measure.path)


def show_plan(plan: Plan, config: Config) -> int:
    """Prints a plan, and the seed if it is drawn; returns the seed."""
    seed = config.seed if config.seed is not None else draw_seed()
    clear_status()
    sys.stdout.write(plan_table(plan) + (f"Seed {seed}\n" if config.seed is None else ""))
    sys.stdout.flush()
    return seed
