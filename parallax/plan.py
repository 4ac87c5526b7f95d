"""The plan: for every variable its route, owners, predicted bytes, the reason, and what was rejected.

A frozen value with JSON both ways. The same graph, number of workers and configuration give the same plan, byte for
byte, on every rank.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from parallax.errors import PlanError
from parallax.spec import GraphSpec, VariableClass

PLAN_VERSION = 1
ALLREDUCE, ALLGATHER, ALLTOALL, NO_ROUTE = "allreduce", "allgather", "alltoall", "none"
ROUTES = (ALLREDUCE, ALLGATHER, ALLTOALL)


@dataclass(frozen=True, slots=True)
class RouteCost:
    """What a route would send.

    Attributes:
        route: its name.
        sent_bytes: bytes that one worker sends per step, and receives as many; None when the touched rows are unknown.
        rounds: collectives that wait for each other, per step.
        note: why it was not taken, or cannot be.
    """

    route: str
    sent_bytes: int | None
    rounds: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class VariablePlan:
    """One variable in the plan.

    Attributes:
        name: the user's name.
        cls: its class.
        shape: whole shape.
        dtype: element type.
        route: how its gradients travel; `none` for untrained and local variables.
        owner_rows: for `alltoall` the rows that each worker owns, by rank; empty where every worker holds all rows.
        touched_rows: distinct rows that a worker is expected to read in a step (upper bound); None when unknown.
        cost: what the route sends.
        reason: why this route.
        rejected: the other routes.
        slots: names of the state that follows it.
        evidence: the ops that make its class.
    """

    name: str
    cls: VariableClass
    shape: tuple[int, ...]
    dtype: str
    route: str
    owner_rows: tuple[int, ...]
    touched_rows: int | None
    cost: RouteCost
    reason: str
    rejected: tuple[RouteCost, ...] = ()
    slots: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The routes of all variables of one graph for a number of workers.

    Attributes:
        version: of this format.
        fingerprint: of the graph.
        num_workers: W.
        variables: sorted by name.
        notes: what the user should know.
    """

    version: int
    fingerprint: str
    num_workers: int
    variables: tuple[VariablePlan, ...]
    notes: tuple[str, ...] = ()

    def variable(self, name: str) -> VariablePlan:
        """The plan of one variable.

        Raises:
            PlanError: when there is none of that name.
        """
        for variable in self.variables:
            if variable.name == name:
                return variable
        known = ", ".join(v.name for v in self.variables)
        raise PlanError(f"A variable must be one of the graph's, and {name!r} is not. The graph has: {known}.")

    def to_json(self) -> str:
        """The plan as indented JSON, keys in a fixed order."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def check_belongs_to(self, spec: GraphSpec, num_workers: int) -> None:
        """Raises PlanError when this plan was made for another graph or number of workers."""
        if self.fingerprint != spec.fingerprint:
            raise PlanError(
                f"A plan belongs to one graph: this one is for graph {self.fingerprint[:12]}, and the script built "
                f"graph {spec.fingerprint[:12]}. Make the plan anew with `parallax plan --json`."
            )
        if self.num_workers != num_workers:
            raise PlanError(
                f"A plan belongs to a number of workers: this one is for {self.num_workers}, and the job has "
                f"{num_workers}. Make the plan anew, or change the number of workers."
            )


def plan_from_json(text: str, name: str = "plan") -> Plan:
    """Reads a plan.

    Args:
        text: JSON as written by `Plan.to_json`.
        name: the file's name, for messages.

    Raises:
        PlanError: when it is no plan, or one of another version.
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"{name}:{error.lineno}: a plan file must be JSON, and this line is not: {error.msg}."
        ) from error
    version = raw.get("version") if isinstance(raw, dict) else None
    if version != PLAN_VERSION:
        raise PlanError(
            f"{name}: a plan file must be of version {PLAN_VERSION}, and this one is of {version!r}. Make it anew."
        )
    try:
        variables = tuple(_variable(v) for v in raw["variables"])
        return Plan(version, raw["fingerprint"], raw["num_workers"], variables, tuple(raw["notes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"{name}: a plan file must have every field that `Plan.to_json` writes: {error!r}.") from error


def _variable(raw: dict[str, Any]) -> VariablePlan:
    return VariablePlan(
        **{
            **raw,
            "cls": VariableClass(raw["cls"]),
            "cost": RouteCost(**raw["cost"]),
            "rejected": tuple(RouteCost(**r) for r in raw["rejected"]),
            **{key: tuple(raw[key]) for key in ("shape", "owner_rows", "slots", "evidence")},
        }
    )
