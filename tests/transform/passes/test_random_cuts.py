"""No cut of a graph makes its stages wait for each other: random cuts of random graphs, all-reduces joined."""

import graphlib
import random
from dataclasses import replace

import pytest

from ops.exactness.grammar import program
from ops.exactness.script import Script
from ops.exactness.transport import combine_workers
from parallax.analysis.cut.plan_stages import get_graph_cut
from parallax.analysis.graph_to_plan import analyse, make_feasible_plan, rewrites_of
from parallax.base.errors import ParallaxError
from parallax.graph.view import GraphView
from parallax.plans.plan import PlanConstraints, one_host
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform

pytestmark = pytest.mark.rotates(days=3)

SEED, GRAPHS, CUTS, REPLICAS = 20261128, 50, 20, 2


def random_ends(found, draw):
    """The ends of two to four stages, anywhere in the forward pass."""
    members = len(found.forward.members)
    at = sorted(draw.sample(range(1, members), min(members - 1, draw.randint(1, 3))))
    return [found._last_ops(begin, end) for begin, end in zip((0, *at), at, strict=False)]


def check_order(graph_defs, stages):
    """Raises CycleError if a node of some stage waits for itself, over messages and all-reduces too."""
    view = GraphView(combine_workers(graph_defs, stages=stages))
    before = {
        node: [one for one in view.predecessors(node) if view.op(one) not in ("NextIteration", "RefNextIteration")]
        for node in view.nodes
    }
    graphlib.TopologicalSorter(before).prepare()


@pytest.mark.rotates
@pytest.mark.parametrize(
    "cuts", [pytest.param(1, marks=pytest.mark.rotates), pytest.param(CUTS, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("number", range(GRAPHS))
def test_no_stage_waits_for_itself(number, cuts):
    native_ops()
    script = Script.load(program(SEED, number, REPLICAS).source())
    graph, _ = script.graph(script.rows)
    try:
        analysed = analyse(graph)
        plan = make_feasible_plan(analysed, one_host(REPLICAS, 0), PlanConstraints())
        rewrites = rewrites_of(analysed, plan)
        found = get_graph_cut(analysed.captured, analysed.sources)
    except ParallaxError as error:  # a program that one process alone can train
        pytest.skip(str(error))
    draw = random.Random(number)
    for _ in range(cuts):
        ends = random_ends(found, draw)
        graphs = [
            transform(
                analysed.captured.view,
                replace(rewrites, stages=(found.cut_at(ends),)),
                Worker(replica, REPLICAS, 1, stage=stage),
            ).graph_def
            for replica in range(REPLICAS)
            for stage in range(len(ends) + 1)
        ]
        check_order(graphs, len(ends) + 1)
