"""Jobs of two islands: fit, evaluate, predict and a function, beside plain Keras on each island's rows."""

from pathlib import Path

import pytest

from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers, write  # noqa: F401

SCRIPT = Path(__file__).parent / "scripts" / "islands.py"


@pytest.mark.timeout(300)
@pytest.mark.rotates
@pytest.mark.parametrize("workers", [2, 4])
def test_fit_in_islands_is_plain_keras_on_their_rows(start, workers):  # noqa: F811
    done = start(*CLI, "run", "--workers", workers, SCRIPT).finish()
    assert done.status == 0, str(done)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.partition(" ")[0].islower())
    for what in ("differs", "predicts", "evaluates"):
        assert max(map(float, told[what].split())) <= 1e-5, told
    assert told["steps"] == "(16, 1) True"
    assert told["refused"].startswith("The job ended")
    assert "a batch of 1 was given for 2 islands. Take larger batches" in done.stderr, str(done)
