"""A job as a call with a result, from scripts that go on after it, and for functions."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parent / "scripts" / "called.py"


def test_a_script_goes_on_after_calls_with_what_their_workers_gave(start):
    done = start("-m", "parallax.cli", "run", "--workers", 2, SCRIPT, "script").finish()
    assert done.status == 0, done
    own = [line for line in done.stdout.splitlines() if line.split()[:1] in (["first"], ["failed"], ["goes"], ["at"])]
    first, *rest = own
    failed = "failed 1 The job ended with exit status 1. What failed is printed above."
    assert rest == [failed, "goes on with [] []", "at exit"], done  # neither threads nor memory of the jobs are left
    assert float(first.split()[1]) > 0, done
    # Workers leave at the call that their job is for, through the script's clauses, whatever of its threads still runs.
    # Those of the second call take the first one's result over.
    assert done.lines(1) == ["finally", first, "finally"] and done.lines(0)[:2] == ["finally", first], done
    assert "rank 1 failed with exit status 1. The job was ended.\nTraceback" in done.stderr, done
    assert f"ValueError: no data after {first.split()[1]}" in done.stderr, done


def test_a_function_is_called_here_and_by_the_workers(start):
    done = start(SCRIPT, "function").finish()
    assert done.status == 0, done
    (gave,) = [line for line in done.stdout.splitlines() if line.startswith("function gave")]
    assert float(gave.split()[2].rstrip(",")) > 0 and gave.endswith("call 1"), done


def test_commands_that_start_nothing_end_at_the_first_call(start):
    done = start("-m", "parallax.cli", "plan", SCRIPT, "script").finish()
    assert done.status == 0 and done.stdout.count("Plan for 2 workers") == 1, done
    assert "goes on" not in done.stdout, done


def test_a_verification_of_a_call_is_refused(start):
    done = start("-m", "parallax.cli", "verify", SCRIPT, "script").finish()
    assert done.status == 1 and "`parallax verify` compares a graph that is given to parallel_run" in done.stderr, done
