"""Jobs of N workers equal one process on the global batch: by every route, on several numbers of workers and servers.

A job trains many cases (program.py), and each is then a test of its own. All other optimizers and graphs are trained in
memory (test_in_memory.py), and in jobs too by `pytest -m slow`.

Tolerance: after 5 float32 steps, the norm of the difference is at most 1e-5 of the variable's norm. Sums over workers
are taken in another order than in one process, which costs some 1e-7 a step; the largest seen is 5e-7.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from parallax.plans.half_precision import ROUNDING
from tests.equality.cases import KEPT_ROUTES, KEPT_SERVER_ROUTES, cases
from tests.warm_worker import fork_workers

TOLERANCE = 1e-5
STEPS = 5
TIME_LIMIT_S = 500
LAUNCH = (sys.executable, "-m", "tests.launched")
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(TIME_LIMIT_S + 60)


class Job(NamedTuple):
    """Processes that train cases, one after the other.

    Attributes:
        workers: how many.
        servers: how many TensorFlow servers they have.
        parts: which cases, as program.py takes them.
        is_slow: not in the test command.
    """

    workers: int
    servers: int
    parts: tuple[str, ...]
    is_slow: bool = False

    def __str__(self) -> str:
        return f"<{self.workers} workers, {self.servers} servers, {', '.join(self.parts)}>"


def slow(*job: Any) -> Job:
    return Job(*job, is_slow=True)


def trained_by(names_by_job: Mapping[Job, Sequence[str]]) -> Callable[[Any], Any]:
    """Parametrizes a test with jobs and cases; the tests of a job are a group (tests/conftest.py)."""
    return pytest.mark.parametrize(
        ("job", "case"), [_param(job, n) for job, found in names_by_job.items() for n in found]
    )


def trained_whole(*jobs: Job) -> Callable[[Any], Any]:
    """Parametrizes a test with jobs."""
    return pytest.mark.parametrize("job", [_param(job) for job in jobs])


def _param(job: Job, *values: Any) -> Any:
    name = "-".join(map(str, (job, *values[:1])))
    return pytest.param(job, *values, id=name, marks=[pytest.mark.slow] * job.is_slow)


ON_SERVERS = "resource, ps"
"""The cases with resource variables, all of them on servers that can be."""
TO_SERVERS = " ps as "
"""Half precision on the way to servers and back."""
ONCE, ONCE_ALONE = "optimizers once", "optimizers once without servers"
OF_JOBS = "models in jobs"
# Every job costs more than most of its cases: those of some workers are in as few as can be.
ONE = slow(1, 2, (f"{ONCE_ALONE}:Adagrad|Adam", f"{ONCE}:Adagrad|Adam"))
TWO = Job(2, 2, (f"{OF_JOBS} without servers", OF_JOBS, "kept in jobs", "kept in jobs without servers"))
# Each type on each route once; several exchanges by the last. Other pairs of type and route are for `-m slow`.
ROUNDED = "Adagrad, clipped, resource, a"
HALF_BY_ROUTE = "|".join(
    (
        f"{ROUNDED}lltoall as bfloat16",
        f"{ROUNDED}llgather as float16",
        f"{ROUNDED}llreduce as bfloat16",
        "sampled softmax, resource, alltoall as float16",
    )
)
HALF_TO_SERVERS = "resource, ps as bfloat16|resource, hybrid ps as float16"
# Several slots, and moments that all decay: exchanges are the same for all others, which are trained in memory.
TWO_ON_ONE_SERVER = Job(
    2, 1, (f"{ONCE}:Ftrl, |LazyAdam", f"wire:{HALF_TO_SERVERS}", f"wire without servers:{HALF_BY_ROUTE}")
)
ALL_WIRES = slow(2, 1, (f"wire:{TO_SERVERS}", "wire without servers"))
# One of each way to update: rows added, one slot, moments of which all decay, several slots.
UPDATES = "GradientDescent|Momentum|Adam|Ftrl"
ALL_UPDATES = slow(2, 1, (f"{ONCE}:{UPDATES}", f"{ONCE_ALONE}:{UPDATES}"))
# All that these leave out.
ON_WORKERS = [slow(workers, 0, ("optimizers",)) for workers in (1, 2, 4)]
GRAPHS = [slow(2, 0, ("models:resource",)), slow(2, 0, ("models:reference",))]
GRAPHS_ON_SERVERS = slow(2, 2, (f"models:{ON_SERVERS}",))
KEPT = [slow(2, 0, ("kept in short",)), slow(2, 2, ("kept in short",))]
GRID = [slow(workers, servers, (f"optimizers:{ON_SERVERS}",)) for workers in (1, 2, 4) for servers in (1, 2, 3)]

# Three workers share rows unevenly, or some own more of them: the short cases have several tables in an exchange.
SHORT_SHARED = "several tables, resource, alltoall|several tables, reference, alltoall"
SHORT_OWNED = ["Adam, clipped, resource, unequal owners", "partitioned, mod, resource, unequal owners"]
FRONTS = ("fronts in short", "kept by fronts in short")
THREE = Job(
    3,
    2,
    (
        f"models without servers:{SHORT_SHARED}",
        f"owners:{'|'.join(SHORT_OWNED)}",
        *FRONTS,
    ),
)
MORE_SHARED = ("several tables", "bags, clipped", "partitioned, mod", "moving averages", "two losses")
OWNER_JOBS = {
    # A job for each route: both kinds of exchanges have the same names, which open once.
    route: [slow(workers, 0, (f"owners:{route}",)) for workers in (2, 3, 4)]
    for route in ("unequal owners", "unequal by host")
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Job -> case -> what came of it; a job runs once."""
    folder = tmp_path_factory.mktemp("equality")

    @lru_cache
    def run(job: Job) -> tuple[str, dict[str, Any]]:
        result = folder / f"{len(list(folder.iterdir()))}.json"  # names of jobs may be longer than those of files
        argv = [*LAUNCH, str(job.workers), "-m", "tests.equality.program", str(result), str(job.servers), *job.parts]
        # A launcher that is killed takes the whole job with it.
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env=fork_workers(os.environ),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            return "\n".join((done.stdout + done.stderr).splitlines()[-30:]), {}
        return "", json.loads(result.read_text())

    def found(job: Job) -> dict[str, Any]:
        trouble, of_cases = run(job)
        assert not trouble, trouble
        return of_cases

    return found


def names(section: str, wanted: str = "") -> list[str]:
    """The cases with servers whose name has `wanted`."""
    return [case.name for case in cases(section, 1) if wanted in case.name]


def names_of(job: Job, section: str) -> list[str]:
    """The cases of a part of a job."""
    (wanted,) = (part.partition(":")[2] for part in job.parts if part.partition(":")[0] == section)
    found = [case.name for case in cases(section, job.servers, job.workers)]
    return [name for name in found if any(word in name for word in wanted.split("|"))]


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


@pytest.mark.rotates
@trained_by(
    {
        ONE: names_of(ONE, ONCE_ALONE),
        ALL_UPDATES: names_of(ALL_UPDATES, ONCE_ALONE),
        **{job: names_of(job, "optimizers") for job in ON_WORKERS},
    }
)
def test_every_optimizer_equals_one_process(results: Any, case: str, job: Job) -> None:
    check(results(job)[case])


@pytest.mark.rotates
@trained_by({TWO: [c.name for c in cases(OF_JOBS)], **{job: names_of(job, "models") for job in GRAPHS}})
def test_every_graph_equals_one_process(results: Any, case: str, job: Job) -> None:
    check(results(job)[case])


@pytest.mark.rotates
@trained_whole(THREE, *(slow(3, 0, (f"models:{model}",)) for model in MORE_SHARED))
def test_three_workers_that_share_rows_unevenly_equal_one_process(results: Any, job: Job) -> None:
    section = job.parts[0].partition(":")[0]
    found = names_of(Job(job.workers, 0, job.parts), section)
    assert found
    for case in found:
        check(results(job)[case])


ON_GRID = {
    ONE: names_of(ONE, ONCE),
    TWO_ON_ONE_SERVER: names_of(TWO_ON_ONE_SERVER, ONCE),
    ALL_UPDATES: names_of(ALL_UPDATES, ONCE),
    **dict.fromkeys(GRID, names("optimizers", ON_SERVERS)),
}


@pytest.mark.rotates
@trained_by(ON_GRID)
def test_every_optimizer_on_servers_equals_one_process(results: Any, case: str, job: Job) -> None:
    found = results(job)[case]
    check(found)
    # AdmittedFtrl reads and writes a dense variable in one update, which has no rule on servers.
    dense = "dense by allreduce" if case.startswith("AdmittedFtrl") else "dense by ps"
    trained = {"emb": "sparse by ps", "bias": "sparse by ps", "w": dense}
    assert {name: found["routes"][name] for name in trained} == trained


@pytest.mark.rotates
@trained_by({job: names_of(job, "wire without servers") for job in (TWO_ON_ONE_SERVER, ALL_WIRES)})
def test_half_precision_on_the_wire_is_one_process_but_for_its_rounding(results: Any, case: str, job: Job) -> None:
    check_rounded(case, results(job)[case])


@pytest.mark.rotates
@trained_by({job: names_of(job, "wire") for job in (TWO_ON_ONE_SERVER, ALL_WIRES)})
def test_half_precision_to_servers_is_one_process_but_for_its_rounding(results: Any, case: str, job: Job) -> None:
    check_rounded(case, results(job)[case])


# Three workers, of whom one has no server on its host.
@pytest.mark.rotates
@trained_by({THREE: [c.name for c in (*cases("fronts in short"), *cases("kept by fronts in short"))]})
def test_servers_asked_by_two_of_three_workers_equal_one_process(results: Any, case: str, job: Job) -> None:
    check_as_sent(case, results(job)[case])


@pytest.mark.rotates
@trained_by({slow(2, 2, ("fronts",)): [case.name for case in cases("fronts")]})
def test_every_graph_on_servers_asked_by_fronts_equals_one_process(results: Any, case: str, job: Job) -> None:
    check_as_sent(case, results(job)[case])


@pytest.mark.rotates
@trained_by(
    {
        TWO: [*(c.name for c in cases("kept in jobs")), *names("kept in jobs")],
        **{job: [c.name for c in cases("kept in short", job.servers)] for job in KEPT},
    }
)
def test_gradients_of_several_batches_equal_one_process(results: Any, case: str, job: Job) -> None:
    check(results(job)[case])


@pytest.mark.rotates
@trained_whole(
    *(slow(workers, 0, (f"kept:resource, {route}",)) for route in KEPT_ROUTES for workers in (1, 2, 4)),
    *(slow(2, 2, (f"kept:resource, {route}",)) for route in KEPT_SERVER_ROUTES),
)
def test_every_graph_with_kept_gradients_equals_one_process(results: Any, job: Job) -> None:
    found = results(job)
    wanted = job.parts[0].partition(":")[2]
    assert sorted(found) == sorted(c.name for c in cases("kept", job.servers) if wanted in c.name)
    for result in found.values():
        check(result)


@pytest.mark.rotates
@trained_by({THREE: SHORT_OWNED})
def test_three_owners_with_unequal_shares_or_none_equal_one_process(results: Any, case: str, job: Job) -> None:
    check(results(job)[case])


@pytest.mark.rotates
@trained_by(
    dict.fromkeys(OWNER_JOBS["unequal owners"], [c.name for c in cases("owners") if c.route == "unequal owners"])
)
def test_every_graph_with_unequal_owners_equals_one_process(results: Any, case: str, job: Job) -> None:
    check(results(job)[case])


@pytest.mark.rotates
@trained_by(
    dict.fromkeys(OWNER_JOBS["unequal by host"], [c.name for c in cases("owners") if c.route == "unequal by host"])
)
def test_every_graph_with_unequal_owners_and_merging_hosts_equals_one_process(
    results: Any, case: str, job: Job
) -> None:
    check(results(job)[case])


@pytest.mark.rotates
@trained_by({slow(2, 2, ("optimizers",)): names("optimizers")})
def test_both_kinds_of_variables_and_plans_with_servers_equal_one_process(results: Any, case: str, job: Job) -> None:
    check(results(job)[case])


@pytest.mark.rotates
@trained_by({TWO: names(OF_JOBS), GRAPHS_ON_SERVERS: names("models", ON_SERVERS)})
def test_every_graph_on_servers_equals_one_process(results: Any, case: str, job: Job) -> None:
    check(results(job)[case])


@pytest.mark.rotates
@trained_whole(
    *(slow(2, 2, (f"models:{kind}",)) for kind in ("resource, hybrid ps", "reference, ps", "reference, hybrid ps"))
)
def test_every_graph_partly_on_servers_or_with_references_equals_one_process(results: Any, job: Job) -> None:
    found = results(job)
    assert sorted(found) == sorted(names("models", job.parts[0].partition(":")[2]))
    for result in found.values():
        check(result)
