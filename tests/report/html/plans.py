"""Plans and simulations for tests of the views; from profiles written down by hand, without TensorFlow."""

from __future__ import annotations

from dataclasses import replace

from parallax.analysis.planner import make_plan
from parallax.analysis.whatif.simulate import HostKind, simulate
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import GraphSpec, Slot
from parallax.plans.plan import Layout, Plan, PlanConstraints
from parallax.plans.what_if import Simulation, WhatIf
from tests.analysis.measured import MB, equal_hosts, model, table
from tests.analysis.specs import dense, sparse, spec


def language_model() -> GraphSpec:
    """Two tables, one of them small, and three dense layers."""
    embedding = replace(
        sparse("embedding", (100_000, 64), 640),
        slots=(Slot("embedding/Adam", (), 64, 4),),
        evidence=("embedding_lookup (ResourceGather) reads its rows", "<update> takes (values, indices)"),
    )
    layers = [dense("lstm/kernel", (256, 512)), dense("lstm/bias", (512,)), dense("out/kernel", (512, 64))]
    return spec(embedding, *layers, sparse("positions", (300, 64), 250))


def measured(hosts: int = 4, rate: float = 25 * MB) -> PlanInputs:
    of = language_model()
    tables = (table("embedding", 400.0, 700.0, 1.1), table("positions", 250.0, 280.0))
    profile = model(*tables, of=of, compute_s=0.020, session_s=0.001, memory_bytes=300 * MB)
    return PlanInputs(equal_hosts(hosts, rate), profile, "cluster.json", "profile.json")


def timed(rate: float = 25 * MB) -> Plan:
    """Four hosts, times known."""
    return make_plan(language_model(), Layout((1, 1, 1, 1), (0, 1)), None, measured(4, rate))


def untimed() -> Plan:
    """Two hosts with two workers each and a server, no profile, one variable on the servers, one of unknown rows."""
    of = replace(language_model(), variables=(*language_model().variables, sparse("words <b>", (5000, 8), None)))
    layout, constraints = Layout((2, 2), (0, 1)), PlanConstraints(routes={"embedding": "ps"})
    return make_plan(of, layout, constraints)


def simulated(
    what_if: WhatIf | None = None, known: PlanInputs | None = None, kind: HostKind | None = None
) -> Simulation:
    def plan(of: GraphSpec, layout: Layout, constraints: PlanConstraints, there: PlanInputs) -> Plan:
        return make_plan(of, layout, constraints, there)

    wanted = what_if or WhatIf((4, 64, 512))
    return simulate(language_model(), [kind or HostKind()], PlanConstraints(), known or measured(), wanted, plan)


def with_flips() -> Plan:
    """Four hosts; the route of the one table depends on the links and on its touched rows."""
    of = spec(dense("kernel", (256, 512)), dense("bias", (512,)), sparse("emb", (2000, 64), 400))
    known = PlanInputs(
        equal_hosts(4), model(table("emb", 300.0), of=of, compute_s=0.020), "cluster.json", "profile.json"
    )
    return make_plan(of, Layout((1, 1, 1, 1)), None, known)
