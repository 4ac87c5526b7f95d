"""The page of a plan in a browser: its script runs, sorts and searches, and the browser has nothing to say of it.

A folder in PARALLAX_SCREENSHOTS keeps the pictures; without it they are in the test's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from parallax.report.html.page import plan_page
from parallax.report.html.simulation_page import simulation_page
from tests.report.html.plans import simulated, timed, untimed, with_flips
from tests.report.html.test_page import Page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LIMIT_S = 60

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium is installed (Debian's package `chromium`)"),
    pytest.mark.timeout(3 * LIMIT_S),
]


def show(folder: Path, name: str, text: str, fragment: str = "", height: int = 1900) -> tuple[str, list[str]]:
    """What the browser made of a page once its scripts ran, and what it wrote to its console."""
    file = folder / f"{name}.html"
    file.write_text(text, encoding="utf-8")
    pictures = Path(os.environ.get("PARALLAX_SCREENSHOTS") or folder)
    pictures.mkdir(parents=True, exist_ok=True)
    options = (
        "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run "
        "--enable-logging=stderr --dump-dom"
    ).split()
    done = subprocess.run(
        [
            BROWSER or "",
            *options,
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size=1440,{height}",
            f"--screenshot={pictures / name}.png",
            f"{file.as_uri()}{fragment}",
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert (pictures / f"{name}.png").stat().st_size > 10_000
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def rows(dom: str) -> list[tuple[str, bool, bool]]:
    """(name, whether it is shown, whether it is open) of the table's variables, as they stand."""
    found = Page(dom).of_class("variable")
    return [(str(a["data-name"]), "hidden" not in a, "opened" in str(a["class"])) for a in found]


def test_the_page_sorts_searches_and_opens_by_its_address(tmp_path: Path) -> None:
    dom, said = show(tmp_path, "plan", plan_page(timed()), "#sort=-bytes&find=dense&open=lstm/kernel")
    assert said == []
    assert rows(dom) == [  # by bytes sent, most first; both tables do not have the word
        ("lstm/kernel", True, True),
        ("out/kernel", True, False),
        ("embedding", False, False),
        ("positions", False, False),
        ("lstm/bias", True, False),
    ]
    page = Page(dom)
    assert "3 of 5" in page.words
    assert [a["data-key"] for t, a in page.elements if a.get("aria-sort") == "descending"] == ["bytes"]


def test_the_pictures_are_there_after_the_script_ran(tmp_path: Path) -> None:
    dom, said = show(tmp_path, "flips", plan_page(with_flips()))
    assert said == [] and [name for name, shown, _ in rows(dom) if shown] == ["bias", "emb", "kernel"]
    page = Page(dom)
    pictures = [a["class"] for tag, a in page.elements if tag == "svg"]
    assert pictures == ["timeline", "routes", "hosts", "link-flips", "touched-flips"]
    assert len(page.of_class("phase")) == 4 and len(page.of_class("flip")) == 5 and len(page.of_class("host")) == 4


def test_values_that_are_unknown_come_last_when_sorted(tmp_path: Path) -> None:
    dom, said = show(tmp_path, "untimed", plan_page(untimed()), "#sort=-touched")
    assert said == []
    assert [name for name, _, _ in rows(dom)][:3] == ["positions", "embedding", "lstm/bias"]


def test_a_simulation_is_drawn(tmp_path: Path) -> None:
    dom, said = show(tmp_path, "simulation", simulation_page(simulated()))
    assert said == []
    page = Page(dom)
    assert [a["class"] for tag, a in page.elements if tag == "svg"] == ["throughput", "steps", "by-route"]
    assert len(page.of_class("size")) == 3


def test_an_error_of_a_script_would_be_seen(tmp_path: Path) -> None:
    broken = plan_page(timed()).replace("read();\n</script>", "read();\nnothing.there();\n</script>")
    assert broken != plan_page(timed())
    _, said = show(tmp_path, "broken", broken)
    assert len(said) == 1 and "nothing is not defined" in said[0]
