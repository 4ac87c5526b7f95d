"""Scripts on two workers that check themselves: each rank says at its end that all was good."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

SCRIPTS = Path(__file__).parent / "scripts"
RUN = ("-m", "parallax.entry.cli", "run", "--workers", 2)


def check(done):
    assert done.status == 0, str(done)
    for rank in (0, 1):
        assert "all good" in done.lines(rank), str(done)
    of_tensorflow = re.compile(r"^\[\d\] .*(absl::InitializeLog|port\.cc:|is deprecated)", re.MULTILINE)
    assert not of_tensorflow.search(done.stderr), str(done)


@pytest.mark.rotates
def test_a_session_takes_and_gives_what_its_conventions_say(start, tmp_path):
    seen = []
    # Once with the command, once as Python starts a script.
    for kind, command in (("reference", RUN), ("resource", ())):
        done = start(*command, SCRIPTS / "conventions.py", kind, tmp_path).finish()
        check(done)
        assert sum("printed loss" in line for rank in (0, 1) for line in done.lines(rank)) == 2, str(done)
        seen.append([line for rank in (0, 1) for line in done.lines(rank) if line.startswith("noise")])
    assert len(seen[0]) == 2 and seen[0] == seen[1], "random numbers of one seed must repeat"


@pytest.mark.parametrize("kind", ["resource"])
def test_hooks_run_on_the_users_graph(start, tmp_path, kind):
    check(start(*RUN, SCRIPTS / "hooked_loop.py", kind, tmp_path).finish())


# With variables of the other kind: tests/runtime/checkpoint, and what a session gives in the first test here.
@pytest.mark.rotates
@pytest.mark.parametrize("kind", [pytest.param("reference", marks=pytest.mark.slow), "resource"])
def test_state_is_restored_saved_assigned_and_read_whole(start, tmp_path, kind):
    check(start(*RUN, SCRIPTS / "state.py", kind, tmp_path).finish())


# On servers what is trained so is held against one process by a job of tests/equality.
@pytest.mark.rotates
@pytest.mark.parametrize("option", ["HYBRID", pytest.param("PS", marks=pytest.mark.slow)])
def test_gradients_are_kept_over_several_batches(start, tmp_path, option):
    done = start(*RUN, SCRIPTS / "kept.py", option, tmp_path).finish()
    check(done)
    assert done.stderr.count("The gradients of the last 1 batches were not applied") == 1
    assert "note: each update takes the gradients of 3 batches of every worker" in done.stdout
    assert done.stderr.count("PARALLAX INFO: Guard: ") == 1


def test_one_worker_alone_is_traced_while_a_rate_keeps_its_default(start, tmp_path):
    check(start(*RUN, SCRIPTS / "traced_alone.py", tmp_path / "traces").finish())
    assert len(list((tmp_path / "traces").rglob("run_meta_*"))) == 2


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("other", "told"),
    [("train", "the job stalled: a run that every rank must take part in"), ("gradient_1:0", "Have all workers fetch")],
)
def test_workers_that_fetch_other_parts_of_one_message_are_told(start, other, told):
    done = start(*RUN, SCRIPTS / "fetches_apart.py", other).finish()
    assert done.status != 0 and told in done.stderr, str(done)
    assert all("alike" in done.lines(rank) and "went on" not in done.lines(rank) for rank in (0, 1)), str(done)


# That one seed draws the same again is shown by the first test here too, and that it seeds what the script does not by
# tests/transform.
@pytest.mark.rotates
@pytest.mark.parametrize("kinds", [["reference"], pytest.param(["reference", "resource"], marks=pytest.mark.slow)])
def test_batches_come_from_pipelines_in_the_graph(start, tmp_path, kinds):
    drawn = []
    for kind in kinds:
        done = start(*RUN, SCRIPTS / "pipelines.py", kind, tmp_path).finish()
        check(done)
        drawn.append([line for rank in (0, 1) for line in done.lines(rank) if line.startswith("drawn")])
        assert drawn[0][0] != drawn[0][1]
    assert drawn == drawn[:1] * len(kinds), "the seed of a job gives all that the script does not seed"
