"""Coordinates of a plan among the kinds of distributed training, for each group of variables.

They say how the work is split, when an update sees those of other workers, and how values travel. The axes are those of
surveys of distributed deep learning (Mayer and Jacobsen, 2020; Langer et al., 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

from parallax.plans.plan import ALLGATHER, ALLREDUCE, ALLTOALL, NO_ROUTE, PS, Plan, VariablePlan

_EXCHANGES = {ALLREDUCE: "all-reduce", ALLGATHER: "all-gather", ALLTOALL: "all-to-all", PS: "servers"}
DATA, SHARDED, STAGED = "data parallel", "data parallel with sharded rows", "in stages"
SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The position of a group of variables on each axis.

    Attributes:
        variables: names.
        split: how the work on them is split over the workers.
        updates: when an update sees those of other workers: `synchronous`, `asynchronous`, or within a bound.
        exchange: how gradients and values travel.
    """

    variables: tuple[str, ...]
    split: str
    updates: str
    exchange: str

    @property
    def is_plain(self) -> bool:
        """Whether this is synchronous data parallelism."""
        return self.split != STAGED and self.updates == SYNCHRONOUS


def locate(plan: Plan) -> tuple[Coordinates, ...]:
    """The coordinates of a plan's trained variables, in the order of their first names."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for variable in plan.variables:
        if variable.route != NO_ROUTE:
            position = _split(plan, variable), _updates(plan), _EXCHANGES[variable.route]
            groups.setdefault(position, []).append(variable.name)
    return tuple(Coordinates(tuple(names), *position) for position, names in groups.items())


def _split(plan: Plan, variable: VariablePlan) -> str:
    if plan.stages:
        return STAGED
    return SHARDED if variable.owner_rows else DATA


def _updates(plan: Plan) -> str:
    if plan.islands is not None:
        return f"{SYNCHRONOUS} within islands"
    if plan.synchronous:
        return SYNCHRONOUS
    return ASYNCHRONOUS if plan.staleness is None else f"at most {plan.staleness} runs apart"
