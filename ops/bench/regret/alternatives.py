"""All choices for a small model with their predicted step times, to check the planner and measure its regret."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from parallax.analysis.routes.candidates import list_candidates
from parallax.analysis.routes.owners import Shares, equal_shares
from parallax.analysis.search.route_all import problem_of, setting_of
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import Layout, PlanConstraints


@dataclass(frozen=True, slots=True)
class Alternative:
    """One choice for the whole model.

    Attributes:
        routes: variable -> route, for variables whose seconds are known.
        servers: variable on servers -> for each part, the server of each partition.
        step_s: the predicted step time.
    """

    routes: dict[str, str]
    servers: dict[str, tuple[tuple[int, ...], ...]]
    step_s: float


def alternatives(
    spec: GraphSpec, layout: Layout, constraints: PlanConstraints, measured: PlanInputs, slots: tuple[int, ...] = ()
) -> Iterator[Alternative]:
    """Yields every choice of routes and servers that fits into memory; the first variable's options vary slowest.

    Args:
        spec: the spec of the graph.
        layout: the workers, and the servers that may be started.
        constraints: the user's constraints; their routes are fixed.
        measured: the planner's inputs, with a cluster profile.
        slots: slots of each worker in the pattern of owners; empty for equal shares.

    Raises:
        PlanError: there is no cluster profile.
    """
    if measured.cluster is None:
        raise PlanError("Predicted steps need a cluster profile. Measure one with `parallax calibrate`.")
    setting, _ = setting_of(
        list_candidates(spec, layout, constraints, measured), layout, constraints, measured, measured.cluster
    )
    problem = problem_of(setting, Shares(slots) if slots else equal_shares(layout.num_workers))
    for picks in itertools.product(*(range(len(options)) for options in problem.options)):
        if problem.fits(picks):
            chosen = [(n, o[p]) for n, o, p in zip(problem.names, problem.options, picks, strict=True)]
            yield Alternative(
                {name: option.route for name, option in chosen},
                {name: option.servers for name, option in chosen if option.servers},
                problem.step_seconds(picks),
            )
