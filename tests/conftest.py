"""Which tier a test is of, which tests are in the test command, and which run one after the other; golden files.

Tiers are markers, by folder and by what a file names: `pytest -m pure` loads no TensorFlow. `pytest --regenerate`
writes the golden files anew; the difference is then read before it is committed.

Of the tests marked `rotates(days=N)` one in N (default `SHARES`) runs each day, by its place in its file and the date,
and the others are `slow` that day.
`pytest --graphs-seed YYYYMMDD` runs the share, and trains the graphs of the grammar, of another day; with
`--all-shares`, and where a test is named (`FILE::TEST`), no test is slow by the date.
"""

from __future__ import annotations

import datetime
import gc
import os
import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import parallax  # noqa: F401  # before TensorFlow, which is imported faster then (parallax/base/after_import.py)

GOLDEN = Path(__file__).parent / "golden"

# What the hundreds of Python processes that tests start are without. Horovod imports Keras, and Keras all of matplotlib
# and scikit-learn where they are installed: a third of the time in which such a process is ready. They are for pictures
# and for one example's data (extras of pyproject.toml), whose tests ask for them.
WITHOUT = Path(__file__).parent / "without"
ROOT = Path(__file__).parents[1]
GIVEN = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # another Keras, say
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), str(WITHOUT), *filter(None, GIVEN)]))
# With it a forked `parallax` (tests/warm.py) needs no new Python to have hashes alike in all processes.
os.environ["PYTHONHASHSEED"] = "0"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # and they need not compile the project's modules each time


TIERS = {
    "tests/lab/": "lab",
    "tests/examples/": "graph",
    "tests/keras/": "graph",
    "tests/end_to_end/": "job",
    "tests/functions/test_jobs.py": "job",
    "tests/functions/test_shared_arrays.py": "job",
    "tests/functions/test_request_queue.py": "graph",
    "tests/equality/test_in_memory.py": "graph",
    "tests/equality/": "job",
    "tests/runtime/guard/": "job",
    "tests/runtime/islands/": "graph",
    "tests/runtime/replan/test_better.py": "graph",
    "tests/runtime/sums/": "job",
    "tests/book/": "job",
    "tests/keras/test_fit_jobs.py": "job",
    "tests/keras/test_stage_jobs.py": "job",
    "tests/keras/test_driven_jobs.py": "job",
    "tests/fences/": "job",
    "tests/compat/test_drivers.py": "job",
    "tests/compat/test_loop.py": "job",
    "tests/runtime/checkpoint/test_checkpoint.py": "job",
    "tests/bench/test_race.py": "job",
    "tests/analysis/reading/test_missed_updates.py": "graph",
    "tests/analysis/test_plan_islands.py": "graph",
    "tests/bench/test_keras.py": "graph",
    "tests/runtime/checkpoint/test_links.py": "graph",
    "tests/runtime/replan/test_requested.py": "graph",
    "tests/graph/test_ownership.py": "graph",
    "tests/graph/test_row_cuts.py": "graph",
    "tests/runtime/calibrate/test_calibrate.py": "graph",
    "tests/runtime/trace/test_trace.py": "graph",
    "tests/runtime/worker/test_exchange_report.py": "graph",
    "tests/runtime/launcher/test_launch.py": "job",
    "tests/runtime/launcher/test_forked_workers.py": "job",
    "tests/runtime/checkpoint/test_owner.py": "graph",
    "tests/runtime/test_launching.py": "graph",
    "tests/runtime/test_wire.py": "graph",
}
"""By how a file's path begins; of the other files those that name TensorFlow are `graph`, and the rest `pure`."""
NAMES_TENSORFLOW = re.compile(r"\btensorflow\b|\bimport record\b|\bops\.exactness\b")


def tier_of(file: Path) -> str:
    """`pure` (no TensorFlow), `graph` (one process), `job` (mpirun) or `lab` (emulated hosts)."""
    path = file.relative_to(ROOT).as_posix()
    found = next((tier for begin, tier in TIERS.items() if path.startswith(begin)), None)
    return found or ("graph" if NAMES_TENSORFLOW.search(file.read_text(encoding="utf-8")) else "pure")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m pure` no other file is imported, which would load TensorFlow."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and only_pure(config) and tier_of(collection_path) != "pure" else None


def only_pure(config: pytest.Config) -> bool:
    return str(config.option.markexpr).split()[:1] == ["pure"]


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(tier_of(item.path))


def pytest_sessionstart(session: pytest.Session) -> None:
    if only_pure(session.config):
        sys.meta_path.insert(0, WithoutTensorFlow())


class WithoutTensorFlow:
    """Refuses its import: a test that needs it is in the wrong tier."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "tensorflow":
            raise ImportError(
                "A pure test imports TensorFlow: let its file name it, or see TIERS in tests/conftest.py."
            )


SHARES = 20


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as slow what rotates and has its turn on another day.

    What takes longest comes first: of two processes none then waits long for the other's last group.
    """
    names_a_test = any("::" in arg for arg in config.args)
    if not (names_a_test or config.option.all_shares):
        shares = shares_of(items)
        for item in items:
            if item.nodeid in shares and not has_turn(*shares[item.nodeid], config.option.graphs_seed):
                item.add_marker(pytest.mark.slow)
    longest = ("lab", "job", "graph", "pure")
    items.sort(key=lambda item: next(n for n, tier in enumerate(longest) if item.get_closest_marker(tier)))


def shares_of(items: list[pytest.Item]) -> dict[str, tuple[int, int]]:
    """By its node id, (share, number of shares) of each test that rotates and is not slow anyway.

    The tests of a file are dealt out in their order: each day has as many of them as any other, and those with
    neighbouring parameters, which take alike, come on different days. Tests of one `group`, or of one job of
    tests/equality, are dealt out as one. Where several marks apply, the largest number of days counts.
    """
    shares: dict[str, tuple[int, int]] = {}
    units: dict[tuple[str, int], dict[str, int]] = {}
    for item in items:
        marks = [] if item.get_closest_marker("slow") is not None else list(item.iter_markers("rotates"))
        if marks:
            file = item.nodeid.partition("::")[0]
            days = max(mark.kwargs.get("days", SHARES) for mark in marks)
            numbers = units.setdefault((file, days), {})
            group = next((mark.kwargs["group"] for mark in marks if "group" in mark.kwargs), None)
            number = numbers.setdefault(group or find_job(item.nodeid) or item.nodeid, len(numbers))
            shares[item.nodeid] = ((zlib.crc32(file.encode()) + number) % days, days)
    return shares


def has_turn(share: int, days: int, day: int) -> bool:
    """Whether a share of the tests that rotate is in the test command on a day, YYYYMMDD."""
    return (share + day) % days == 0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves what all tests share out of the searches for garbage, of which Keras alone asks for one a model."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file, the same of what its tests have left behind in caches."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the golden files anew")
    today = f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%d}"
    help_of_seed = "the day of the tests that rotate, and seed of the grammar's graphs (default: today's date)"
    parser.addoption("--graphs-seed", type=int, default=int(today), help=help_of_seed)
    parser.addoption("--all-shares", action="store_true", help="run the tests that rotate, whatever the day")


def pytest_report_header(config: pytest.Config) -> str:
    return f"graphs of the grammar, and tests that rotate: --graphs-seed {config.option.graphs_seed}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes (`pytest -n 2`) the tests of a group run in one of them, one after the other."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # by how many tests a group has, which says little of how long it takes

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


def group_of(nodeid: str) -> str:
    """A group is a file, which may have fixtures for all its tests, but for two folders and a file.

    All tests on emulated hosts are one group: of two clusters at once each would disturb the other's rates and files.
    In tests/equality the tests of a job, or of some workers in memory, are one, whose name stands in `<>` in theirs.
    Where each test takes long and shares nothing with others, each is a group.
    """
    file = nodeid.partition("::")[0]
    if file.startswith("tests/lab/"):
        return "lab"
    if file == "tests/exactness/test_exactness.py":
        return nodeid
    return find_job(nodeid) or file


def find_job(nodeid: str) -> str:
    """The job, or the workers in memory, of a test in tests/equality; empty for others."""
    job = re.search("<.*?>", nodeid) if nodeid.startswith("tests/equality/") else None
    return job[0] if job else ""


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Asserts that a text is that of a golden file."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--regenerate"):
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8"), f"{name} has changed; see --regenerate"

    return check
