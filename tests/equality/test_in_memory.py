"""N workers in memory equal one process on the global batch: every optimizer, graph and route (test_equality.py: jobs).

The workers' graphs are one graph (in_memory.py), so each case costs a tenth of what it costs in a job. Every worker is
held against the one process, within the tolerance of jobs, and what all must hold alike must be so bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.equality.cases import Case, cases
from tests.equality.in_memory import InMemory
from tests.equality.test_equality import check

pytestmark = pytest.mark.rotates(days=3)


class Workers(NamedTuple):
    """Some workers in memory, with some servers.

    Attributes:
        workers: how many.
        servers: how many.
        section: which cases.
        wanted: what a case's name must have.
    """

    workers: int
    servers: int
    section: str
    wanted: str = ""

    def cases(self) -> list[Case]:
        return [c for c in cases(self.section, self.servers, self.workers) if self.wanted in c.name]


def trained_by(parts: int, *all_workers: Workers, but: str = "over all routes") -> list[Any]:
    """The cases of all, as parameters, in so many parts with each its share of the graphs.

    A graph, which is built once for as many workers, has its cases one after the other, and all on one day. Tests of a
    part are a group (tests/conftest.py).
    """
    by_graph: dict[str, list[tuple[Workers, Case]]] = {}
    for workers in all_workers:
        for case in workers.cases():
            if but not in case.name:
                by_graph.setdefault(case.graph, []).append((workers, case))
    what = " and ".join(dict.fromkeys(f"{one.workers} workers in memory, {one.section}" for one in all_workers))
    numbered = sorted(enumerate(by_graph.values()), key=lambda one: one[0] % parts)
    return [
        pytest.param(
            workers,
            case,
            id=f"<{what}, part {number % parts}>-{case.name}",
            marks=pytest.mark.rotates(group=case.graph),
        )
        for number, of_graph in numbered
        for workers, case in of_graph
    ]


BY_MEANS = ("adapted in a function",)
"""A step within a loss, in a fixed batch that cannot be opened: each worker takes that step by its own loss."""


@pytest.fixture(scope="module")
def equal() -> Callable[[Workers, Case], dict[str, Any]]:
    """Trains a case, holds it against the one process and says what came of it; a graph is kept for its next route."""
    last: dict[Any, InMemory] = {}

    def equal(workers: Workers, case: Case) -> dict[str, Any]:
        key = (case.graph, workers.workers)
        if key not in last:
            last.clear()
            last[key] = InMemory(case, workers.workers)
        found = last[key].result(case, workers.servers)
        assert found["unequal"] == []
        if case.name.startswith(BY_MEANS):
            assert last[key].reason_for_means
        else:
            check(found)
        return found

    return equal


ROUTES = {
    "bags, clipped, reference, alltoall": {"emb": "sparse by alltoall"},
    "tied, resource, alltoall": {"emb": "mixed by allreduce"},
    "whole regulariser, resource, alltoall": {"emb": "mixed by allreduce"},
    "conditional, resource, alltoall": {"emb": "not shardable by allgather"},
    "sampled softmax, resource, alltoall": {"softmax_b": "sparse by alltoall", "softmax_w": "sparse by alltoall"},
    "partitioned, div, resource, alltoall": {"emb": "sparse by alltoall"},
    "function, resource, alltoall": {"emb": "sparse by alltoall"},
    "sorted rows, resource, alltoall": {"emb": "not shardable by allgather"},
    "tied, resource, ps": {"emb": "mixed by ps"},
    "whole regulariser, resource, ps": {"emb": "mixed by ps", "w": "dense by ps"},
    "conditional, resource, ps": {"emb": "not shardable by allgather", "w": "dense by ps"},
    "loop, resource, ps": {"emb": "dense by ps", "w": "dense by ps"},
    "sampled softmax, resource, ps": {"softmax_b": "sparse by ps", "softmax_w": "sparse by ps"},
    "partitioned, div, resource, ps": {"emb": "sparse by ps", "w": "dense by ps"},
    "several tables, resource, ps": {**dict.fromkeys("abcdef", "sparse by ps"), "w": "dense by ps"},
    # Written a second time when one worker alone is known to have read what was written first.
    "sharpness-aware, resource, ps": {"one": "dense by allreduce", "two": "dense by allreduce"},
    "adversaries, clipped, resource, ps": {"critic/two/kernel": "dense by ps"},
}
"""Which routes a graph allows, and what of it can be on servers."""

GRAPHS = trained_by(6, Workers(2, 0, "models in pairs"), Workers(2, 2, "models", "resource, ps"))


@pytest.mark.parametrize(("workers", "case"), GRAPHS)
def test_every_graph_equals_one_process(equal: Any, workers: Workers, case: Case) -> None:
    found = equal(workers, case)
    wanted = ROUTES.get(case.name, {})
    assert {name: found["routes"][name] for name in wanted} == wanted


FIXED = [
    "rate, fed, reference, alltoall",  # no update comes before the gradients that read a reference variable
    "clip rows, resource, allgather",  # constants as long as the batch are made of its gradient
    "samples in parts, resource, alltoall",  # one batch of open length, and one of fixed length beside it
    "bags, clipped, resource, alltoall",
    "sampled softmax, resource, allreduce",
    "partitioned, div, resource, alltoall",
]


@pytest.mark.parametrize("name", FIXED)
def test_a_graph_for_a_fixed_batch_equals_one_process(name: str) -> None:
    (case,) = [one for one in cases("models") if one.name == name]
    found = InMemory(case, 2).result(case)
    assert found["unequal"] == []
    check(found)


OPENED = [
    "loop, resource, alltoall",
    "conditional, resource, alltoall",
    "old conditional, reference, alltoall",
    "gradient penalty in a function, resource, alltoall",  # TensorFlow itself asks for gradients of a function
    "translation, resource, alltoall",
    "recommender, resource, alltoall",  # thresholds that are repeated over the batch
]


@pytest.mark.parametrize("name", OPENED)
def test_a_graph_for_a_fixed_batch_is_opened(name: str) -> None:
    (case,) = [one for one in cases("models") if one.name == name]
    of_case = InMemory(case, 2)
    found = of_case.result(case)
    assert (of_case.reason_for_means, found["unequal"]) == ("", [])
    check(found)


KEPT_BY_LAYOUTS = [
    "sums of tables, resource, alltoall over 3",  # two gradients with pieces of the same ids
    "bags, sum, resource, allgather over 2",  # row numbers that all workers gather
    "tokens in front, time major, resource, allreduce over 3",
    "partitioned, mod, resource, alltoall over 3",
    "Adam, clipped, resource, alltoall over 3",
]


@pytest.mark.parametrize("name", KEPT_BY_LAYOUTS)
def test_several_batches_of_an_update_equal_one_process_by_layouts(name: str) -> None:
    (case,) = [one for one in cases("kept") if one.name == name]
    found = InMemory(case, 2, layouts=True).result(case)
    assert found["unequal"] == []
    check(found)


def test_the_routes_are_those_of_graphs_that_are_trained() -> None:
    assert ROUTES.keys() <= {param.values[1].name for param in GRAPHS}


@pytest.mark.parametrize(
    ("workers", "case"),
    [p for n in (2, 3) for p in trained_by(1, Workers(n, 0, "optimizers in pairs"))],
)
def test_every_optimizer_equals_one_process(equal: Any, workers: Workers, case: Case) -> None:
    equal(workers, case)


@pytest.mark.parametrize(
    ("workers", "case"), [p for n in ((1, 2), (2, 1)) for p in trained_by(1, Workers(*n, "optimizers in pairs"))]
)
def test_every_optimizer_on_servers_equals_one_process(equal: Any, workers: Workers, case: Case) -> None:
    found = equal(workers, case)
    reads_itself = "AdmittedFtrl" in case.name  # what every worker holds is not read and written there in one update
    trained = {"emb": "sparse by ps", "bias": "sparse by ps", "w": f"dense by {'allreduce' if reads_itself else 'ps'}"}
    assert {name: found["routes"][name] for name in trained} == trained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "case"),
    [
        p
        for n in (1, 2, 4)
        for section in ("optimizers", "kept optimizers")
        for p in trained_by(4, Workers(n, 0, section), but=" by host")
    ],
)
def test_every_optimizer_by_every_route_clipped_or_not_equals_one_process(
    equal: Any, workers: Workers, case: Case
) -> None:
    equal(workers, case)


@pytest.mark.parametrize(
    ("workers", "case"),
    # Merging within a host takes a job.
    trained_by(1, Workers(2, 0, "kept in short"), Workers(2, 2, "kept in short"), but=" by host"),
)
def test_gradients_of_several_batches_equal_one_process(equal: Any, workers: Workers, case: Case) -> None:
    equal(workers, case)
