"""`parallax run --trace`: files of each rank, the merged one, and the rank that the others waited for."""

import json
import re
from pathlib import Path

import pytest

from parallax.runtime.trace.ops import KINDS

pytestmark = pytest.mark.timeout(150)

LATE = Path(__file__).parent / "scripts" / "late.py"
HIDDEN = (
    r"Communication hidden on rank \d: (\d+) % of (\d+) % possible \((\d+) % where steps overlap\); shortest schedule "
    r"of its ops ([\d.]+) ms \(([\d.]+) where steps overlap\); measured ([\d.]+) ms\."
)
RUN = ("-m", "parallax.entry.cli", "run", "--workers", 2)


def events_of(path):
    """The events of a file, as {pid: {row: [event, ...]}}; rows that have none too."""
    rows, found = {}, {}
    events = json.loads(path.read_text())["traceEvents"]
    for event in events:
        if event["name"] == "thread_name":
            rows[event["pid"], event["tid"]] = event["args"]["name"]
            found.setdefault(event["pid"], {}).setdefault(event["args"]["name"], [])
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["name"], event
            found[event["pid"]][rows[event["pid"], event["tid"]]].append(event)
    return found


@pytest.mark.rotates
def test_a_rank_that_is_late_for_every_step_is_named(start, tmp_path):
    done = start(*RUN, "--trace", "traces", "--trace-steps", "2-4", LATE).finish()
    assert done.status == 0, str(done)
    folder = tmp_path / "traces"
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.json", "rank-1.json", "summary.txt", "trace.json"]
    merged = events_of(folder / "trace.json")
    assert merged.keys() == {0, 1}
    for rank, rows in merged.items():
        assert rows.keys() >= {"step", *KINDS}, rank
        assert [event["name"] for event in rows["step"]] == ["step 2", "step 3", "step 4"], "runs that do not train"
        assert all(rows[kind] for kind in ("pull", "compute", "push", "all-reduce")), rank
        alone = events_of(folder / f"rank-{rank}.json")
        assert alone.keys() == {rank} and alone[rank]["waiting"] == rows["waiting"] and alone[rank]["ops"]
    long = [event for event in merged[0]["waiting"] if event["dur"] > 150_000]  # it sleeps 200 ms
    assert [event["name"] for event in long] == ["waiting for rank 1"] * 3, str(done)
    text = (folder / "summary.txt").read_text()
    assert "\nThe slowest is rank 1 on host " in text, text
    (told,) = re.findall(rf"^{HIDDEN}$", text, re.MULTILINE)
    hidden, possible, overlapping, shortest, period, measured = map(float, told)
    assert hidden <= possible <= overlapping <= 100, text
    assert 0 < period <= shortest <= measured, text
    assert [line for line in done.lines(0) if line in text.splitlines()] == text.splitlines(), str(done)


@pytest.mark.rotates
def test_servers_have_rows_and_asynchronous_workers_wait_for_nobody(start, write, tmp_path):
    # The environment asks for the same as the command, and the script has fewer steps than wished.
    wish = {"PARALLAX_TRACE": "traces", "PARALLAX_TRACE_STEPS": "1-9", "PARALLAX_WORKERS": "2"}
    done = start(LATE, "--asynchronous", "--steps", 3, **wish).finish()
    assert done.status == 0, str(done)
    merged = events_of(tmp_path / "traces" / "trace.json")
    for rows in merged.values():
        assert [event["name"] for event in rows["step"]] == ["step 1", "step 2"] and rows["server 0"]
    assert "Trace of steps 1 to 2" in done.stdout and "No rank waited for another" in done.stdout, str(done)


@pytest.mark.rotates
def test_a_worker_that_dies_in_traced_steps_ends_the_job(start, tmp_path):
    done = start(*RUN, "--trace", "traces", "--trace-steps", "1-4", LATE, "--leave", 3).finish()
    assert done.status == 5 and "rank 1 failed with exit status 5" in done.stderr, str(done)
    assert not (tmp_path / "traces" / "trace.json").exists()


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trace", "file/traces"), "--trace must name a writable folder"),
        (("--trace", "traces", "--trace-steps", "4-2"), "--trace-steps must be A-B"),
        (("--trace-steps", "2-4"), "--trace-steps 2-4 needs --trace DIR"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_before_the_start(start, write, words, message):
    write("file", "")
    done = start(*RUN, *words, LATE).finish()
    assert done.status == 1 and message in done.stderr and "Traceback" not in done.stderr, str(done)
    assert "trained" not in done.stdout and "Plan for" not in done.stdout, str(done)
