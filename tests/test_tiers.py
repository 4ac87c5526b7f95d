"""The tier of tests that load no TensorFlow can be run, as `make check` does (conftest.py)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT, SHARES, has_turn, pytest_collection_modifyitems, shares_of, tier_of


def test_no_file_of_the_pure_tier_imports_tensorflow() -> None:
    argv = [sys.executable, "-m", "pytest", "-m", "pure", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_file_is_of_the_tier_of_its_folder_or_of_what_it_names() -> None:
    files = {
        "tests/lab/test_lab.py": "lab",
        "tests/end_to_end/test_session.py": "job",
        "tests/exactness/test_exactness.py": "graph",
        "tests/analysis/test_planner.py": "pure",
    }
    assert {file: tier_of(ROOT / file) for file in files} == files


class Collected:
    """What the hook uses of a test that pytest has collected."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = nodeid
        self.marks = [one.mark for one in (pytest.mark.pure, *(marks or (pytest.mark.rotates,)))]

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return (mark for mark in self.marks if mark.name == name)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(self.iter_markers(name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


DAYS = range(20261127, 20261127 + SHARES)


def turns_of(items: list[Collected]) -> dict[str, list[int]]:
    return {test: [day for day in DAYS if has_turn(*share, day)] for test, share in shares_of(items).items()}


def test_each_test_that_rotates_has_its_turn_once_in_a_few_days_of_which_each_has_as_many() -> None:
    items = [Collected(f"tests/test_{file}.py::test[{n}]") for file in ("one", "other") for n in range(50)]
    turns = turns_of(items)
    assert list(turns) == [item.nodeid for item in items] and all(len(found) == 1 for found in turns.values())
    of_a_day = Counter(day for test, (day,) in turns.items() if "one" in test)
    assert of_a_day.keys() == set(DAYS) and set(of_a_day.values()) == {2, 3}
    assert turns == {**turns_of(items[:50]), **turns_of(items[50:])}, (
        "a file alone has the shares that it has beside others"
    )


def test_tests_of_a_group_have_their_turn_together_and_what_is_slow_anyway_has_none() -> None:
    graph, slow = pytest.mark.rotates(group="a graph"), (pytest.mark.rotates, pytest.mark.slow)
    items = [Collected(f"tests/test_one.py::test[{n}]", graph) for n in range(5)]
    items += [Collected("tests/test_one.py::test_slow", *slow), Collected("tests/test_one.py::test_next")]
    shares = shares_of(items)
    assert len({shares[item.nodeid] for item in items[:5]}) == 1 and "tests/test_one.py::test_slow" not in shares
    assert shares["tests/test_one.py::test_next"] == ((shares[items[0].nodeid][0] + 1) % SHARES, SHARES)


def test_tests_of_a_job_have_their_turn_together_as_often_as_the_rarest_mark_says() -> None:
    often, rare = pytest.mark.rotates(days=5), pytest.mark.rotates
    jobs = [f"tests/equality/test_one.py::test[<{job}>-{n}]" for job in ("two", "three") for n in range(2)]
    items = [*(Collected(name, often) for name in jobs), Collected("tests/equality/test_one.py::other", often, rare)]
    turns = turns_of(items)
    assert turns[jobs[0]] == turns[jobs[1]] != turns[jobs[2]] == turns[jobs[3]]
    assert [len(turns[item.nodeid]) for item in items] == [SHARES // 5] * 4 + [1]


@pytest.mark.parametrize(
    ("args", "all_shares", "is_quick"),
    [(["tests"], False, has_turn), (["tests"], True, lambda *_: True), (["a.py::test"], False, lambda *_: True)],
)
def test_a_test_without_its_turn_is_slow_unless_it_is_named_or_all_run(args, all_shares, is_quick) -> None:
    options = SimpleNamespace(all_shares=all_shares, graphs_seed=20261127)
    items = [Collected(f"tests/test_one.py::test[{number}]") for number in range(12)]
    shares = shares_of(items)
    pytest_collection_modifyitems(SimpleNamespace(args=args, option=options), items)
    is_slow = [item.get_closest_marker("slow") is not None for item in items]
    assert is_slow == [not is_quick(*shares[item.nodeid], 20261127) for item in items]
