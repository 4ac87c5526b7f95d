"""Golden files: `pytest --regenerate` writes them anew; the difference is then read before it is committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="write the golden files anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Asserts that a text is that of a golden file."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--regenerate"):
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8"), f"{name} has changed; see --regenerate"

    return check
