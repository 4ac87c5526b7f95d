"""Plans a job in islands: the plan of one of them, which is the same for all, and how they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from parallax.analysis.timing.meeting_seconds import predict_meeting, profile_of_island
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import GraphSpec
from parallax.plans.island_plan import IslandPlan
from parallax.plans.plan import ALLGATHER, ALLREDUCE, ALLTOALL, NO_ROUTE, Layout, Plan, PlanConstraints
from parallax.settings.config import Config
from parallax.settings.modes import check_supported


def islands_of(layout: Layout, config: Config) -> IslandPlan | None:
    """The islands of a job; None where there is only one, so that all workers train together.

    Raises:
        PlanError: the workers cannot be cut into them, or the setting does not fit their number.
    """
    wanted = config.islands
    if wanted is None:
        return None
    count = layout.islands
    if count > 1 and wanted.count not in (None, count):
        raise PlanError(
            f"The resource file must name as many islands as Islands(count=...) says: it names {count}, and "
            f"count={wanted.count} was given. Leave count out."
        )
    if count == 1 and len(layout.hosts) > 1 and wanted.count is not None:
        raise PlanError(
            f"On several hosts the resource file says which hosts are an island, and count={wanted.count} was given. "
            "Leave count out, and give each host an `island: NAME`."
        )
    count = wanted.count or count
    workers = layout.num_workers
    if workers % count:
        raise PlanError(
            f"Each island must have equally many workers, and {workers} workers were given for {count} islands. Make "
            "the workers a multiple of the islands."
        )
    if wanted.simultaneous and count > 1 and wanted.pull >= 2 / (count + 1):
        raise PlanError(
            f"With simultaneous=True, pull must be below 2 / (islands + 1), or islands and centre move apart: with "
            f"{count} islands below {2 / (count + 1):.4g}, and pull={wanted.pull} was given. Take a smaller pull."
        )
    if count == 1:
        return None
    settings = (wanted.every, wanted.outer_rate, wanted.outer_momentum, wanted.pull, wanted.simultaneous)
    return IslandPlan(count, *settings, wanted.wire_dtype)


def check_for_islands(config: Config, synchronous: bool, layout: Layout, has_numeric_length: bool = False) -> None:
    """Refuses configurations that islands do not support.

    Args:
        config: the user's settings.
        synchronous: whether every step uses the gradients of all workers.
        layout: the workers.
        has_numeric_length: whether the graph may compute with the length of the global batch as a number.

    Raises:
        PlanError: names the unsupported part.
    """
    others = {
        "hosts for servers only (workers: 0)": 0 in layout.hosts,
        "a model in stages (stages)": config.stages not in (None, 1),
        "a plan file (plan_file)": config.plan_file is not None,
        "partitions that are searched (search_partitions)": config.search_partitions,
        "restarts without some hosts (restart.min_hosts)": config.restart.min_hosts is not None,
        "a batch length that is a number (x.shape[0], or the batch_size of keras.Input)": has_numeric_length,
    }
    check_supported("islands", config, synchronous, others)


def layout_of_island(layout: Layout, islands: int) -> Layout:
    """The layout of the first of some islands of equally many consecutive workers."""
    own = Counter(layout.host_by_rank[: layout.num_workers // islands])
    return Layout(tuple(own.values()))


def plan_in_islands(
    layout: Layout,
    config: Config,
    islands: IslandPlan,
    constraints: PlanConstraints,
    measured: PlanInputs,
    spec: GraphSpec,
    make: Callable[[Layout, PlanConstraints, PlanInputs], Plan],
) -> Plan:
    """The plan of a job in islands.

    Args:
        layout: of all workers.
        config: the user's settings.
        islands: how they meet.
        constraints: what else is wanted.
        measured: profiles of all hosts, and of a worker's steps.
        spec: the variables.
        make: plans for workers that train together.

    Raises:
        PlanError: when it cannot be, or is not supported yet.
    """
    check_for_islands(config, constraints.synchronous, layout)
    of_island = profile_of_island(measured, layout, islands.count)
    plan = make(layout_of_island(layout, islands.count), replace(constraints, run_option="MPI"), of_island)
    for variable in plan.variables:
        if variable.route not in (ALLREDUCE, ALLGATHER, ALLTOALL, NO_ROUTE):
            raise PlanError(
                f"In islands a variable must go between workers, and {variable.name} goes by {variable.route}. Leave "
                "its route out, or islands."
            )
    islands = predict_meeting(islands, plan, spec, layout.hosts, constraints, measured)
    return replace(
        plan,
        hosts=layout.hosts,
        servers=(),
        run_option=constraints.run_option,
        islands=islands,
        profiles=measured.used,
    )
