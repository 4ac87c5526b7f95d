"""The tier of tests that load no TensorFlow can be run, as `make check` does (conftest.py)."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT, SHARES, has_turn, pytest_collection_modifyitems, tier_of


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


def test_each_test_that_rotates_has_its_turn_once_in_a_few_days() -> None:
    tests, days = [f"tests/test_one.py::test[{number}]" for number in range(30)], range(20261127, 20261127 + SHARES)
    turns = {test: [day for day in days if has_turn(test, day)] for test in tests}
    assert all(len(found) == 1 for found in turns.values())
    assert {day for (day,) in turns.values()} == set(days)
    assert len({has_turn(test, days[0], group="a graph") for test in tests}) == 1


class Collected:
    """What the hook uses of a test that pytest has collected."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.marks = {"pure": pytest.mark.pure.mark, "rotates": pytest.mark.rotates.mark}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


@pytest.mark.parametrize(
    ("args", "all_shares", "is_quick"),
    [(["tests"], False, has_turn), (["tests"], True, lambda *_: True), (["a.py::test"], False, lambda *_: True)],
)
def test_a_test_without_its_turn_is_slow_unless_it_is_named_or_all_run(args, all_shares, is_quick) -> None:
    options = SimpleNamespace(all_shares=all_shares, graphs_seed=20261127)
    items = [Collected(f"tests/test_one.py::test[{number}]") for number in range(12)]
    pytest_collection_modifyitems(SimpleNamespace(args=args, option=options), items)
    assert [("slow" not in item.marks) == is_quick(item.nodeid, 20261127) for item in items] == [True] * 12
