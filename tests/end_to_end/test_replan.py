"""Jobs that go over to another plan while they run: they train as one process does, and as they would have without."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from parallax.cluster.plan_inputs import read_measured
from parallax.cluster.profiles import AlphaBeta, ClusterProfile, HostProfile
from parallax.plans.plan import read_plan

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "replanned.py"
CLI = ("-m", "parallax.entry.cli")
TOLERANCE = 1e-5  # float32 sums in another order
MACHINE = "hosts:\n- address: localhost\n  workers: 2\n  servers: 2\n"
SERVED = ("pull", "push")


def profile(slow=(), operations=("allreduce", "allgather", "alltoall")):
    """Links by which bytes cost so much that the route with the fewest is far ahead of all others but the slow ones."""
    lines = {one: AlphaBeta(1e-4, 1e-5, 1e-3 if one in slow else 1e-6, 0.1, 9) for one in operations}
    return ClusterProfile(1, (HostProfile("localhost", 2, 64 << 30, 0.0, 0.0),), {}, lines).to_json()


@pytest.fixture
def poor(start, write):
    """Writes a plan file by routes that are asked for, and a cluster profile by which others are better."""

    def poor(routes, *arguments, slow=("allgather",), servers=False, **more):
        where = ("-r", write("machines", MACHINE)) if servers else ("--workers", 2)
        write("cluster.json", profile(slow, ("allreduce", "allgather", "alltoall", *(SERVED if servers else ()))))
        settings = json.dumps({"routes": routes, **more})
        done = start(*CLI, "plan", *where, "--json", "poor.json", SCRIPT, settings, *arguments).finish()
        assert done.status == 0, str(done)
        return (*where, "--plan", "poor.json", "--cluster", "cluster.json", "--replan-steps", 3)

    return poor


def printed(done, word):
    """What worker 0 printed after a word, as values."""
    return json.loads(next(line.removeprefix(f"{word} ") for line in done.lines(0) if line.startswith(f"{word} ")))


def check_equal(found, wanted):
    for name, value in wanted.items():
        difference = np.linalg.norm(np.subtract(found[name], value))
        assert difference <= TOLERANCE * max(np.linalg.norm(value), 1e-12), name


BY_ALL = {"emb": "allreduce", "other": "allgather"}


@pytest.mark.rotates
def test_two_workers_that_change_their_plan_equal_one_process_slots_included(start, poor):
    words = poor(BY_ALL, "fed", "resource", 0)
    verify = ("verify", *words, "--replan", "on", "--steps", 6, "--feeds", f"{SCRIPT}:feeds", "--fetch", "train")
    done = start(*CLI, *verify, SCRIPT, "{}", "fed", "resource", 0).finish()
    assert done.status == 0 and "2 workers and one process are equal after 6 steps" in done.stdout, str(done)
    assert "After 3 steps: " in done.stdout and "less, below" not in done.stdout, str(done)
    assert "emb: allreduce, held by every worker -> alltoall, held by 2 owners" in done.stdout, str(done)
    assert "other: allgather, held by every worker -> alltoall, held by 2 owners" in done.stdout, str(done)
    assert re.search(r"The plan was changed in [\d.]+ s, 5 variables of .* moved\.", done.stdout), str(done)
    assert {"emb/Adam", "emb/Adam_1", "other/Adagrad"} <= set(re.findall(r"^\S+", done.stdout, re.M)), str(done)


@pytest.mark.slow
def test_a_plan_changes_between_updates_of_several_batches(start, poor):
    words = poor(BY_ALL, "fed", "resource", 0, accumulate_steps=2)
    verify = ("verify", *words, "--replan", "on", "--steps", 4, "--feeds", f"{SCRIPT}:feeds", "--fetch", "train")
    done = start(*CLI, *verify, SCRIPT, "{}", "fed", "resource", 0).finish()
    assert done.status == 0 and "2 workers and one process are equal after 4 steps" in done.stdout, str(done)
    assert "other: allgather, held by every worker -> alltoall, held by 2 owners" in done.stdout, str(done)
    assert re.search(r"The plan was changed in [\d.]+ s, ", done.stdout), str(done)


@pytest.mark.rotates
def test_data_random_numbers_hooks_and_checkpoints_go_on_across_a_change(start, poor, tmp_path):
    words = poor(BY_ALL, "data", "resource", 7)
    plain = start(*CLI, "run", *words[:4], SCRIPT, "{}", "data", "resource", 7).finish()
    saved = json.dumps({"ckpt_config": {"ckpt_dir": str(tmp_path / "saved"), "save_ckpt_steps": 3}})
    changed = start(*CLI, "run", *words, "--replan", "on", SCRIPT, saved, "data", "resource", 7).finish()
    assert plain.status == 0 and changed.status == 0, f"{plain}\n{changed}"
    assert "The plan was changed" in changed.stdout and "random op" not in changed.stdout, str(changed)
    steps, wanted = (np.array(printed(done, "steps")) for done in (changed, plain))
    np.testing.assert_array_equal(steps[:, 1:], wanted[:, 1:], "the ids that were read, and the global step")
    np.testing.assert_allclose(steps[:, 0], wanted[:, 0], rtol=1e-4)
    assert len(printed(changed, "hook")) == 7 and np.all(np.isfinite(printed(changed, "hook")))
    check_equal(printed(changed, "values"), printed(plain, "values"))
    assert "plan changed after step 3:" in changed.stdout, str(changed)
    assert "over 4 steps" in changed.stdout and "alltoall bytes sent by all workers" in changed.stdout, str(changed)
    reader = tf.train.load_checkpoint(str(tmp_path / "saved"))
    check_equal({n: reader.get_tensor(n) for n in printed(plain, "values")}, printed(changed, "values"))


@pytest.mark.slow
def test_asked_a_job_tells_of_the_better_plan_and_changes_nothing(start, poor, tmp_path):
    words = poor(BY_ALL, "fed", "resource", 5)
    done = start(*CLI, "run", *words, "--replan", "ask", "--measure", "p.json", SCRIPT, "{}", "fed", "resource", 5)
    done = done.finish()
    assert done.status == 0 and "The plan was changed" not in done.stdout, str(done)
    (name,) = (file.name for file in tmp_path.glob("parallax-plan-*.json"))
    assert f"The other plan is written to {tmp_path}/{name}. Use it with --plan" in done.stdout, str(done)
    plan = read_plan(tmp_path / name)
    assert plan.variable("emb").route == "alltoall" and plan.variable("emb").touched_is_measured
    assert read_measured(None, tmp_path / "p.json").model.steps == 3
    shown = start(*CLI, "plan", "--workers", 2, "--plan", name, SCRIPT, "{}", "fed", "resource", 5).finish()
    assert shown.status == 0 and re.search(r"^emb .* alltoall ", shown.stdout, re.M), str(shown)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resource", "reference"])
@pytest.mark.parametrize(
    ("routes", "slow", "after"),
    [
        ({"emb": "ps", "other": "ps", "weights": "ps"}, ("allgather", *SERVED), "alltoall"),
        ({"emb": "ps", "other": "alltoall"}, ("alltoall", "allreduce", "allgather"), "ps"),
        ({"emb": "ps", "other": "alltoall"}, ("alltoall", *SERVED), "allgather"),
    ],
)
def test_rows_move_between_workers_and_servers(start, poor, kind, routes, slow, after):
    words = poor(routes, "fed", kind, 0, slow=slow, servers=True)
    verify = ("verify", *words, "--replan", "on", "--steps", 6, "--feeds", f"{SCRIPT}:feeds", "--fetch", "train")
    done = start(*CLI, *verify, SCRIPT, "{}", "fed", kind, 0).finish()
    assert done.status == 0 and "2 workers and one process are equal after 6 steps" in done.stdout, str(done)
    assert "The plan was changed" in done.stdout and f" -> {after}" in done.stdout, str(done)


@pytest.mark.slow
def test_partitions_are_searched_for_in_the_running_job(start, write):
    write("machines", MACHINE)
    settings = json.dumps({"run_option": "PS", "search_partitions": True})
    words = ("run", "-r", "machines", SCRIPT, settings, "fed", "resource", 110)
    done = start(*CLI, *words).finish()
    plain = start(*CLI, "run", "-r", "machines", SCRIPT, '{"run_option": "PS"}', "fed", "resource", 110).finish()
    assert done.status == 0 and plain.status == 0, f"{done}\n{plain}"
    assert "Partitions of the tables on servers, and seconds of a step:" in done.stdout, str(done)
    samples = re.findall(r"^(?:\[0\] )?  (\d+): .* measured", done.stdout, re.M)
    assert len(samples) >= 2 and "The job continues with" in done.stdout, str(done)
    check_equal(printed(done, "values"), printed(plain, "values"))


@pytest.mark.slow
def test_a_script_changes_its_plan_from_owners_to_servers_and_back(start, write):
    words = ("-r", write("machines", MACHINE), Path("ops/bench/replan/script.py").absolute(), 1000, 8)
    for route in ("alltoall", "ps"):
        planned = start(*CLI, "plan", "--json", f"{route}.json", *words, route, 0).finish()
        assert planned.status == 0, str(planned)
    changed = start(*CLI, "run", *words, "alltoall", 3, "ps.json", "alltoall.json").finish()
    kept = start(*CLI, "run", *words, "alltoall", 9).finish()
    assert changed.status == 0 and kept.status == 0, f"{changed}\n{kept}"
    assert changed.stdout.count("The plan was changed in ") == 2, str(changed)
    for rank in (0, 1):
        found, wanted = (
            [float(line.split()[1]) for line in done.lines(rank) if line.startswith(("loss ", "digest "))]
            for done in (changed, kept)
        )
        assert len(found) == 10
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
