"""Computes the bytes of each variable that a plan's hosts store, and other parts of a plan that several views share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from parallax.plans.plan import NO_ROUTE, Plan, VariablePlan
from parallax.report.plan_table import value_bytes


@dataclass(frozen=True, slots=True)
class Holding:
    """Values of one variable on one host, excluding slots.

    Attributes:
        name: of the variable.
        route: of its gradients.
        held_bytes: on the host.
        what: as text: copies, rows, or partitions.
    """

    name: str
    route: str
    held_bytes: int
    what: str


def list_holdings(plan: Plan, most: int) -> tuple[tuple[Holding, ...], ...]:
    """For each host the variables that it stores, by name; for the first `most` hosts only."""
    holdings_by_host: list[list[Holding]] = [[] for _ in plan.hosts[:most]]
    hosts = plan.layout.host_by_rank
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.variables}
    for variable in plan.variables:
        whole, total = value_bytes(variable), sum(variable.owner_rows) or 1
        rows = [0] * len(plan.hosts)
        stage = stage_of.get(variable.name)
        team = hosts if stage is None else [hosts[rank] for rank in plan.grid.find_team(stage)]
        for owner, owned in enumerate(variable.owner_rows):
            rows[plan.servers[owner] if variable.servers else team[owner]] += owned
        for host, workers in enumerate(map(team.count, range(len(plan.hosts[:most])))):
            if variable.owner_rows:
                if rows[host]:
                    words = f"{rows[host]:,} of {total:,} rows"
                    holdings_by_host[host].append(
                        Holding(variable.name, variable.route, whole * rows[host] // total, words)
                    )
            elif workers:
                words = "a copy in every worker" + ("" if stage is None else " of its stage")
                holdings_by_host[host].append(Holding(variable.name, variable.route, workers * whole, words))
    return tuple(tuple(of_host) for of_host in holdings_by_host)


def memory_by_host(plan: Plan) -> tuple[tuple[int, int, int], ...]:
    """For each host the bytes of values with slots, of exchange buffers, and of all other measured memory."""
    bytes_by_host = [[0, 0, 0] for _ in plan.hosts]
    for process in plan.prediction.memory:
        for place, count in enumerate((process.values_bytes, process.exchange_bytes, process.model_bytes)):
            bytes_by_host[process.host][place] += count
    return tuple((values, buffers, model) for values, buffers, model in bytes_by_host)


def sent_by_route(plan: Plan) -> Mapping[str, tuple[int, int, int]]:
    """Route -> bytes that one worker sends in a step, number of variables, and number of those of unknown bytes.

    The bytes of `ps` are those between a worker and the servers in both directions.
    """
    bytes_by_route: dict[str, tuple[int, int, int]] = {}
    for variable in find_trained(plan):
        sent, count, unknown = bytes_by_route.get(variable.route, (0, 0, 0))
        known = variable.cost.sent_bytes
        bytes_by_route[variable.route] = (sent + (known or 0), count + 1, unknown + (known is None))
    return dict(sorted(bytes_by_route.items()))


def find_trained(plan: Plan) -> list[VariablePlan]:
    """The variables with a route, by name."""
    return [v for v in plan.variables if v.route != NO_ROUTE]


_EXACT_BYTES = 1000
"""Terms are whole bytes: from this size on their rate is exact to a thousandth."""


def rate_now(plan: Plan) -> float | None:
    """Bytes per second of the slowest link that limits any of the plan's costs; None without times or links."""
    rates = [
        term.link_bytes / term.seconds
        for variable in plan.variables
        for cost in (variable.cost, *variable.rejected)
        for term in cost.terms
        if term.what == "link" and term.seconds > 0 and term.link_bytes >= _EXACT_BYTES
    ]
    return min(rates, default=None)
