"""N workers equal one process on the joined batch: every optimizer, route, clipping and number of workers and servers,
and more graphs than those. One job for a number of workers and servers trains them all (program.py); each case is then
a test of its own.

Tolerance: after 5 float32 steps, the norm of the difference is at most 1e-5 of the variable's norm. Sums over workers
are taken in another order than in one process, which costs some 1e-7 a step; the largest seen is 5e-7.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from parallax.wire import ROUNDING
from tests.equality.cases import KEPT_ROUTES, KEPT_SERVER_ROUTES, cases

TOLERANCE = 1e-5
STEPS = 5
TIME_LIMIT_S = 500
LAUNCH = """
import sys
from parallax.cluster import local_cluster
from parallax.runtime.job import Job
from parallax.runtime.launch import launch
sys.exit(launch(Job(("-m", "tests.equality.program", *sys.argv[2:]), local_cluster(int(sys.argv[1]), ""))))
"""
MORE_WORKERS = ("several tables", "bags, clipped", "partitioned, mod", "moving averages", "two losses")
ON_SERVERS = "resource, ps"
"""The cases with resource variables, all of them on servers that can be."""
# The rest of the grid is slow.
IN_SHORT = [(1, 2), (2, 1)]
GRID = [
    pytest.param(workers, servers, marks=[] if (workers, servers) in IN_SHORT else pytest.mark.slow)
    for workers in (1, 2, 4)
    for servers in (1, 2, 3)
]

# Owners with unequal shares: two cases in short, one with several tables in an exchange; all of them are slow.
SHORT_OWNED = ["Adam, clipped, resource, unequal owners", "partitioned, mod, resource, unequal owners"]
ALL_OWNED = [(case.name, workers) for case in cases("owners") for workers in (2, 3, 4)]

# Three workers, of whom one has no server on its host.
SHORT_FRONTED = [
    "Adam, clipped, resource, ps by fronts",
    "Adam, clipped, resource, ps by fronts as bfloat16",
    "chained, resource, ps by fronts",
]

# Gradients kept over two or three batches: each kind of piece, each way, and what no rule takes; all of them are slow.
SHORT_KEPT = [
    "Adam, clipped, resource, alltoall over 3",
    "Momentum, clipped, resource, allgather over 2",
    "Ftrl, clipped, resource, allreduce over 3",
    "positions, resource, alltoall over 3",
    "positions, mixed, resource, allgather over 2",
    "bags, clipped, resource, alltoall over 3",
    "bags, clipped, reference, unequal by host over 2",
    "partitioned, mod, resource, alltoall over 3",
    "clip rows, resource, allreduce over 3",
    "sorted rows, resource, allgather over 2",
    "alternating, same, resource, alltoall over 3",
    "several tables, resource, alltoall over 3",
]
SHORT_KEPT_SERVED = ["Adam, clipped, resource, ps over 3", "positions, resource, hybrid ps over 2"]
SHORT_KEPT_FRONTED = ["Adam, clipped, resource, ps by fronts over 2"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(section, workers, filter, servers) -> case -> what came of it; a job runs once."""
    folder = tmp_path_factory.mktemp("equality")

    @lru_cache
    def run(section: str, workers: int, wanted: str = "", servers: int = 0) -> dict[str, Any]:
        result = folder / f"{section}-{workers}-{wanted}-{servers}.json"
        argv = [sys.executable, "-c", LAUNCH, str(workers), str(result), section, wanted, str(servers)]
        root = Path(__file__).resolve().parent.parent.parent
        # A launcher that is killed takes the whole job with it.
        done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
        assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    return run


def names(section: str, wanted: str = "") -> list[str]:
    """The cases with servers whose name has `wanted`."""
    return [case.name for case in cases(section, 1) if wanted in case.name]


def check(result: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    assert result["differences"]
    assert {n: d for n, d in result["differences"].items() if not d <= tolerance} == {}


def check_rounded(case: str, result: dict[str, Any]) -> None:
    """Half precision: as `parallax verify` has it, the rounding once for each step; and it shows that it was there."""
    wire = case.rsplit(" as ", 1)[1]
    check(result, STEPS * ROUNDING[wire])
    assert max(result["differences"].values()) > (0 if "allreduce as bfloat16" in case else 10 * 2.0**-24)


def check_as_sent(case: str, result: dict[str, Any]) -> None:
    """With half precision or without."""
    if " as " in case:
        check_rounded(case, result)
    else:
        check(result)


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("case", [c.name for c in cases("optimizers")])
def test_every_optimizer_equals_one_process(results: Any, case: str, workers: int) -> None:
    check(results("optimizers", workers)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", [c.name for c in cases("models")])
def test_every_graph_equals_one_process(results: Any, case: str) -> None:
    check(results("models", 2)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=[] if m == MORE_WORKERS[0] else pytest.mark.slow) for m in MORE_WORKERS]
)
def test_three_workers_that_share_rows_unevenly_equal_one_process(results: Any, model: str) -> None:
    found = results("models", 3, model)
    assert found
    for result in found.values():
        check(result)


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize(("workers", "servers"), GRID)
@pytest.mark.parametrize("case", names("optimizers", ON_SERVERS))
def test_every_optimizer_on_servers_equals_one_process(results: Any, case: str, workers: int, servers: int) -> None:
    check(results("optimizers", workers, ON_SERVERS, servers)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", [c.name for c in cases("wire")])
def test_half_precision_on_the_wire_is_one_process_but_for_its_rounding(results: Any, case: str) -> None:
    check_rounded(case, results("wire", 2)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", names("wire", " ps as "))
def test_half_precision_to_servers_is_one_process_but_for_its_rounding(results: Any, case: str) -> None:
    check_rounded(case, results("wire", 2, " ps as ", 1)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", SHORT_FRONTED)
def test_servers_asked_by_two_of_three_workers_equal_one_process(results: Any, case: str) -> None:
    check_as_sent(case, results("fronts", 3, "|".join(SHORT_FRONTED), 2)[case])


@pytest.mark.slow
@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", [case.name for case in cases("fronts")])
def test_every_graph_on_servers_asked_by_fronts_equals_one_process(results: Any, case: str) -> None:
    check_as_sent(case, results("fronts", 2, "", 2)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", SHORT_OWNED)
def test_three_owners_with_unequal_shares_or_none_equal_one_process(results: Any, case: str) -> None:
    check(results("owners", 3, "|".join(SHORT_OWNED))[case])


@pytest.mark.slow
@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize(("case", "workers"), ALL_OWNED)
def test_every_graph_with_unequal_owners_equals_one_process(results: Any, case: str, workers: int) -> None:
    route = case.rsplit(", ", 1)[1]  # a job for each: both kinds of exchanges have the same names, which open once
    check(results("owners", workers, route)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", SHORT_KEPT)
def test_gradients_of_several_batches_equal_one_process(results: Any, case: str) -> None:
    check(results("kept", 2, "|".join(SHORT_KEPT))[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", SHORT_KEPT_SERVED)
def test_gradients_of_several_batches_on_servers_equal_one_process(results: Any, case: str) -> None:
    check(results("kept", 2, "|".join(SHORT_KEPT_SERVED), 2)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", SHORT_KEPT_FRONTED)
def test_gradients_of_several_batches_by_fronts_equal_one_process(results: Any, case: str) -> None:
    check(results("kept by fronts", 3, "|".join(SHORT_KEPT_FRONTED), 2)[case])


@pytest.mark.slow
@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("route", KEPT_ROUTES)
def test_every_graph_with_kept_gradients_equals_one_process(results: Any, route: str, workers: int) -> None:
    found = results("kept", workers, f"resource, {route}")
    assert found
    for result in found.values():
        check(result)


@pytest.mark.slow
@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("route", KEPT_SERVER_ROUTES)
def test_every_graph_with_kept_gradients_on_servers_equals_one_process(results: Any, route: str) -> None:
    found = results("kept", 2, f"resource, {route}", 2)
    assert found
    for result in found.values():
        check(result)


@pytest.mark.slow
@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", names("optimizers"))
def test_both_kinds_of_variables_and_plans_with_servers_equal_one_process(results: Any, case: str) -> None:
    check(results("optimizers", 2, "", 2)[case])


@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("case", names("models", ON_SERVERS))
def test_every_graph_on_servers_equals_one_process(results: Any, case: str) -> None:
    check(results("models", 2, ON_SERVERS, 2)[case])


@pytest.mark.slow
@pytest.mark.timeout(TIME_LIMIT_S + 60)
@pytest.mark.parametrize("kind", ["resource, hybrid ps", "reference, ps", "reference, hybrid ps"])
def test_every_graph_partly_on_servers_or_with_references_equals_one_process(results: Any, kind: str) -> None:
    found = results("models", 2, kind, 2)
    assert list(found) == names("models", kind)
    for result in found.values():
        check(result)


@pytest.mark.parametrize(
    ("case", "routes"),
    [
        ("tied, resource, alltoall", {"emb": "mixed by allreduce"}),
        ("whole regulariser, resource, alltoall", {"emb": "mixed by allreduce"}),
        ("conditional, resource, alltoall", {"emb": "not shardable by allgather"}),
        ("sampled softmax, resource, alltoall", {"softmax_b": "sparse by alltoall", "softmax_w": "sparse by alltoall"}),
        ("bags, clipped, reference, alltoall", {"emb": "sparse by alltoall"}),
        ("partitioned, div, resource, alltoall", {"emb": "sparse by alltoall"}),
        ("function, resource, alltoall", {"emb": "sparse by alltoall"}),
        ("sorted rows, resource, alltoall", {"emb": "not shardable by allgather"}),
    ],
)
def test_the_routes_are_those_that_the_graph_allows(results: Any, case: str, routes: dict[str, str]) -> None:
    assert routes.items() <= results("models", 2)[case]["routes"].items()


@pytest.mark.parametrize(
    ("case", "routes"),
    [
        ("tied, resource, ps", {"emb": "mixed by ps"}),
        ("whole regulariser, resource, ps", {"emb": "mixed by ps", "w": "dense by ps"}),
        ("conditional, resource, ps", {"emb": "not shardable by allgather", "w": "dense by ps"}),
        ("loop, resource, ps", {"emb": "dense by ps", "w": "dense by ps"}),
        ("sampled softmax, resource, ps", {"softmax_b": "sparse by ps", "softmax_w": "sparse by ps"}),
        ("partitioned, div, resource, ps", {"emb": "sparse by ps", "w": "dense by ps"}),
        ("several tables, resource, ps", {**dict.fromkeys("abcdef", "sparse by ps"), "w": "dense by ps"}),
    ],
)
def test_what_can_be_on_servers_is_there(results: Any, case: str, routes: dict[str, str]) -> None:
    assert routes.items() <= results("models", 2, ON_SERVERS, 2)[case]["routes"].items()


@pytest.mark.parametrize("case", names("optimizers", ON_SERVERS))
def test_every_optimizer_was_on_servers(results: Any, case: str) -> None:
    found = results("optimizers", 4, ON_SERVERS, 3)[case]["routes"]
    trained = {"emb": "sparse by ps", "bias": "sparse by ps", "w": "dense by ps"}
    assert {name: found[name] for name in trained} == trained
