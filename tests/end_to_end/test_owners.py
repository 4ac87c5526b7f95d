"""Owners by the pattern of a plan file: whole reads and writes, bytes, and checkpoints that any other pattern reads."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(150)

SCRIPT = Path(__file__).parent / "scripts" / "owned.py"
ROWS, WIDTH = 24, 3
ROW_BYTES = 4 + 2 * 4 * WIDTH  # the id and the row of a pull, the row of a push


def told(done, word):
    """What follows a word at the start of a line, the same on all ranks."""
    lines = {line.split("] ", 1)[1] for line in done.stdout.splitlines() if f"] {word} " in line}
    assert len(lines) == 1, str(done)
    return lines.pop().removeprefix(f"{word} ")


@pytest.fixture
def trained(start, tmp_path):
    """Runs the script under a pattern."""

    def trained(workers, pattern, steps):
        plan = tmp_path / f"plan-{workers}.json"
        words, folder = ("--workers", workers, SCRIPT), tmp_path / "checkpoints"
        if not plan.exists():
            made = start(
                "-m", "parallax.entry.cli", "plan", "--json", plan, *words, "-", tmp_path / "checkpoints", 0
            ).finish()
            assert made.status == 0, str(made)
        raw = json.loads(plan.read_text())
        raw["variables"][0]["owner_pattern"] = pattern
        plan.write_text(json.dumps(raw))
        done = start("-m", "parallax.entry.cli", "run", *words, plan, folder, steps).finish()
        assert done.status == 0, str(done)
        return done

    return trained


@pytest.mark.rotates
def test_a_plan_file_says_who_owns_which_rows(trained):
    done = trained(3, [2, 0, 0, 2], 3)
    assert "2 owners" in done.stdout
    assert told(done, "assigned") == "True"
    assert told(done, "before") != told(done, "after")
    # Of each worker's rows those that it owns stay: a half, none, a half.
    left = 3 * ROWS * 2 * ROW_BYTES
    assert told(done, "bytes") == f"{left} {left}"


@pytest.mark.slow
def test_a_job_goes_on_under_another_pattern_where_the_last_one_ended(trained):
    first = trained(3, [2, 0, 0, 2], 3)
    second = trained(2, [1], 2)
    assert "Resumed from step 3" in second.stdout
    assert told(second, "before") == told(first, "after") != told(second, "after")
    left = 2 * ROWS * 1 * ROW_BYTES
    assert told(second, "bytes") == f"{left} {left}"
    third = trained(2, [], 0)
    assert told(third, "before") == told(second, "after")
