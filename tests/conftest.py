"""Golden files: `pytest --regenerate` writes them anew; the difference is then read before it is committed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"

# What the hundreds of Python processes that tests start are without. Horovod imports Keras, and Keras all of matplotlib
# and scikit-learn where they are installed: a third of the time in which such a process is ready. They are for pictures
# and for one example's data (extras of pyproject.toml), whose tests ask for them.
WITHOUT = Path(__file__).parent / "without"
ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(WITHOUT)])
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # and they need not compile the project's modules each time


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the golden files anew")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes (`pytest -n 2`) the tests of a group run in one of them, one after the other."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


def group_of(nodeid: str) -> str:
    """A group is a file, which may have fixtures for all its tests, but for two folders.

    All tests on emulated hosts are one group: of two clusters at once each would disturb the other's rates and files.
    In tests/equality the tests of a job are one, and its name stands in `<>` in theirs.
    """
    file, _, test = nodeid.partition("::")
    if file.startswith("tests/lab/"):
        return "lab"
    job = re.search("<.*?>", test) if file.startswith("tests/equality/") else None
    return job[0] if job else file


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Asserts that a text is that of a golden file."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--regenerate"):
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8"), f"{name} has changed; see --regenerate"

    return check
