"""A model in stages trains as one process does: bit for bit on the same micro-batches, to rounding on the batch."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "staged.py"
ROWS, UPDATES = 8, 20  # the script's


@pytest.fixture
def train(start, tmp_path):
    """Trains a model by some workers, and gives what they found."""

    def run(workers, model, optimizer, stages, micro_batches, batches, **environment):
        file = tmp_path / f"{len(list(tmp_path.glob('*.npz')))}.npz"
        words = [SCRIPT, model, optimizer, stages, micro_batches, batches, file]
        done = start("-m", "parallax.entry.cli", "run", "--workers", workers, *words, **environment).finish()
        assert done.status == 0, str(done)
        assert "Steps do not overlap" not in done.stderr, str(done)
        return np.load(file), done

    return run


def distance(found, wanted):
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) + 1e-30))


def variables(kind, run):
    return {name.removeprefix(kind): run[name].astype(float) for name in run.files if name.startswith(kind)}


def compare(staged, single, replicas, micro_batches):
    """Compares a job in stages with one worker that has all replicas' batches, and both with one process."""
    found, alike = variables("found ", staged), variables("found ", single)
    assert found.keys() == alike.keys()
    limit = 0.0 if replicas == 1 else 1e-6
    assert max(distance(found[name], alike[name]) for name in found) <= limit
    assert distance(staged["norms"], single["norms"]) <= limit
    if replicas == 1:
        assert distance(staged["losses"], single["losses"]) == 0.0
    wanted = variables("wanted ", staged)
    every = (
        np.concatenate([wanted[name].ravel() for name in found]),
        np.concatenate([f.ravel() for f in found.values()]),
    )
    assert distance(every[1], every[0]) <= 1e-5
    if replicas == 1:
        means = staged["losses"].reshape(-1, micro_batches).mean(1)
        assert distance(means, staged["wanted_losses"]) <= 1e-6


@pytest.mark.rotates
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize(("stages", "replicas"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_skips_over_cuts_and_clipping(train, stages, replicas, micro_batches, optimizer):
    staged, _ = train(stages * replicas, "mlp", optimizer, stages, micro_batches, 1)
    single, _ = train(1, "mlp", optimizer, 0, micro_batches, replicas)
    compare(staged, single, replicas, micro_batches)


@pytest.mark.rotates
@pytest.mark.parametrize("model", ["lstm", "dropped", "embedded", "spread", "tied", "branched", "penalized"])
def test_models(train, model):
    staged, _ = train(2, model, "adagrad", 2, 4, 1)
    single, _ = train(1, model, "adagrad", 0, 4, 1)
    if model in ("dropped", "branched"):  # plain TensorFlow draws other numbers, and takes one branch for four batches
        found, wanted = variables("found ", staged), variables("found ", single)
        assert found.keys() == wanted.keys()
        assert max(distance(found[name], wanted[name]) for name in found) == 0.0
        assert distance(staged["losses"], single["losses"]) == 0.0
    else:
        compare(staged, single, 1, 4)


@pytest.mark.rotates
@pytest.mark.parametrize("model", ["embedded", "spread"])
def test_tables_of_replicas(train, model):
    staged, done = train(4, model, "adam", 2, 2, 1)
    single, _ = train(1, model, "adam", 0, 2, 2)
    compare(staged, single, 2, 2)
    assert model == "embedded" or "alltoall" in done.stdout


@pytest.mark.rotates
@pytest.mark.parametrize("is_saved", [False, True], ids=["alone", "hooks"])
def test_workers_that_are_late_change_no_value(train, tmp_path, is_saved):
    saved = {"SAVED": str(tmp_path / "saved")} if is_saved else {}
    late, _ = train(4, "delayed", "adagrad", 4, 5, 1, LATE="1", **saved)
    assert not is_saved or len(list((tmp_path / "saved").glob("*.index"))) > 3
    punctual, _ = train(4, "delayed", "adagrad", 4, 5, 1)
    found, wanted = variables("found ", late), variables("found ", punctual)
    assert all(distance(found[name], wanted[name]) == 0.0 for name in wanted)
    assert list(late["losses"]) == list(punctual["losses"][::5])


@pytest.mark.rotates
@pytest.mark.parametrize(("stages", "replicas"), [(4, 1), (2, 2)])
def test_stages_send_what_was_planned(train, stages, replicas):
    """Activations and their gradients; of replicas, the length of their batch too, which is not planned."""
    _, done = train(4, "mlp", "adagrad", stages, 2, 1)
    lines = done.stdout.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("stage"))
    planned = [sum(_bytes_of(*line.split()[-2:]) for line in lines[begin + 2 : begin + 2 + stages])]
    sent = [int(line.split()[1]) for rank in range(4) for line in done.lines(rank) if line.startswith("sent")]
    assert sum(sent) == pytest.approx(sum(planned) * ROWS * 2 * UPDATES * replicas, rel=0.02)


@pytest.mark.rotates
@pytest.mark.parametrize("model", ["mlp", "spread", "dropped"])
def test_consecutive_workers_may_have_the_same_stage(start, train, tmp_path, model):
    """As the planner has them where several workers share each of several hosts; here a plan file says so."""
    folders = [str(tmp_path / order) for order in ("by_replica", "by_stage")]
    alike, _ = train(4, model, "adam", 2, 2, 1, SAVED=folders[0])
    plan = tmp_path / "plan.json"
    words = [SCRIPT, model, "adam", 2, 2, 1, tmp_path / "turned.npz"]
    planned = start("-m", "parallax.entry.cli", "plan", "--workers", 4, "--json", plan, *words).finish()
    assert planned.status == 0, str(planned)
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "is_by_stage": True}))
    done = start("-m", "parallax.entry.cli", "run", "--workers", 4, "--plan", plan, *words, SAVED=folders[1]).finish()
    assert done.status == 0 and "consecutive workers have the same stage" in done.stdout, str(done)
    found, wanted = (variables("found ", run) for run in (np.load(tmp_path / "turned.npz"), alike))
    assert max(distance(found[name], wanted[name]) for name in wanted) <= 1e-6
    readers = [tf.train.load_checkpoint(folder) for folder in folders]
    shapes = [reader.get_variable_to_shape_map() for reader in readers]
    assert shapes[0].keys() == shapes[1].keys()
    for name in found:  # those of the last update, by the workers that have them
        np.testing.assert_allclose(*(reader.get_tensor(name) for reader in readers), rtol=1e-5, atol=1e-6)
        assert distance(readers[1].get_tensor(name).astype(float), found[name]) <= 1e-6


def _bytes_of(number, unit):
    return float(number) * {"B": 1, "kB": 1000}[unit]


@pytest.mark.rotates
def test_all_workers_see_what_one_stage_has(train):
    _, done = train(2, "mlp", "adagrad", "add_3", 2, 1)
    lines = [[line for line in done.lines(rank) if line.startswith("workers 1 worker 0")] for rank in (0, 1)]
    assert len(lines[0]) == 1 and lines[0] == lines[1]


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("workers", "model", "optimizer", "micro_batches"),
    [(2, "tied", "adagrad", 1), (4, "dropped", "adam", 2), (4, "spread", "adam", 4)],
)
def test_a_verification_compares_stages_with_one_process(start, tmp_path, workers, model, optimizer, micro_batches):
    words = ("--workers", workers, "--feeds", f"{SCRIPT}:feeds", "--fetch", "train", SCRIPT, model, optimizer)
    done = start("-m", "parallax.entry.cli", "verify", *words, 2, micro_batches, 1, tmp_path / "none.npz").finish()
    assert done.status == 0, str(done)
    assert f"{workers} workers and one process are equal after 5 steps" in done.stdout


@pytest.mark.rotates
def test_first_updates_of_stages_are_verified(start, tmp_path):
    words = (SCRIPT, "mlp", "adagrad", 2, 4, 1, tmp_path / "found.npz")
    done = start("-m", "parallax.entry.cli", "run", "--workers", 4, "--verify-first", 2, *words).finish()
    assert done.status == 0, str(done)
    assert "Verified step 2 of 2: 4 workers and one process are equal" in done.stdout


@pytest.mark.rotates
@pytest.mark.parametrize(("workers", "model"), [(2, "mlp"), (4, "spread")])
def test_a_trace_has_the_passes_of_micro_batches_that_overlap(train, tmp_path, workers, model):
    wanted, _ = train(workers, model, "adagrad", 2, 4, 1)
    folder = tmp_path / "traces"
    found, _ = train(workers, model, "adagrad", 2, 4, 1, PARALLAX_TRACE=str(folder), PARALLAX_TRACE_STEPS="3-5")
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted.files if name.startswith("found "))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    rows = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    passes = [one for one in events if one["ph"] == "X" and rows[one["pid"], one["tid"]] == "micro-batches"]
    labels = {(one["pid"], one["args"]["step"], one["name"]) for one in passes}
    kinds = [f"{kind} {number}" for kind in ("forward", "backward") for number in range(4)]
    assert labels >= {(rank, step, kind) for rank in range(workers) for step in (3, 4, 5) for kind in kinds}
    assert {step for _, step, _ in labels} == {3, 4, 5}
    for rank in range(workers):  # runs that overlap deliver their values in an op of their own
        alone = json.loads((folder / f"rank-{rank}.json").read_text())["traceEvents"]
        delivered = [one for one in alone if one["ph"] == "X" and one["args"].get("op") == "ParallaxDeliver"]
        assert len(delivered) == 3 * 4
    text = (folder / "summary.txt").read_text()
    assert "Stages: ms in a step of 4 micro-batches" in text and "would be idle 20 % of the time" in text


@pytest.mark.rotates
def test_stages_keep_the_activations_that_were_planned(start, tmp_path):
    """Of the runs in flight together, by TensorFlow's own records of memory; a fed batch is not among these."""
    script, plan = SCRIPT.with_name("staged_memory.py"), tmp_path / "plan.json"
    planned = start("-m", "parallax.entry.cli", "plan", "--workers", 4, "--json", plan, script).finish()
    assert planned.status == 0, str(planned)
    traced = ("--trace", tmp_path / "traces", "--trace-steps", "3-4")
    done = start("-m", "parallax.entry.cli", "run", "--workers", 4, *traced, script).finish()
    assert done.status == 0, str(done)
    lines = (tmp_path / "traces" / "summary.txt").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("stage "))
    alive = [float(line.split()[7]) for line in lines[begin + 1 : begin + 5]]  # MB
    stages = json.loads(plan.read_text())["stages"]
    rows, batch_bytes = 8192e-6, 64 * 4
    kept = [runs * stage["kept_bytes"] for runs, stage in zip((3, 2, 1, 0), stages, strict=True)]
    wanted = [rows * (more + stage["most_bytes"]) for more, stage in zip(kept, stages, strict=True)]
    wanted[0] -= 4 * rows * batch_bytes
    assert alive == pytest.approx(wanted, rel=0.15)


@pytest.mark.rotates
def test_a_check_looks_through_a_script_in_stages(start, tmp_path):
    done = start("-m", "parallax.entry.cli", "check", "--workers", 2, SCRIPT, "mlp", "adam", 2, 1, 1, tmp_path).finish()
    assert done.status == 0 and "A run by 2 workers would not be refused; 0 suspicious" in done.stdout, str(done)


REFUSED = [
    (["--stages", "3"], "multiple of the number of stages"),
    (["--stages", "nothing"], "must be an op of the forward pass"),
    (["--stages", "add_5,add_2,add_3"], "must be in the order of the forward pass"),
    (["--stages", "loss"], "The last stage must have an op"),
    (["--stages", "add_2,add_2"], "must not repeat a name"),
    (["--stages", "0"], "must be an integer of at least 1"),
    (["--stages", "2", "--micro-batches", "4", "--accumulate-steps", "2"], "Set micro_batches alone"),
    (["--stages", "auto"], "measure the cluster"),
    (["--stages", "2", "--measure", "model.json"], "--measure is not supported yet with stages"),
]


@pytest.mark.rotates
@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_refuses(start, tmp_path, words, said):
    arguments = [SCRIPT, "mlp", "adagrad", 0, 1, 1, tmp_path / "none.npz"]
    done = start("-m", "parallax.entry.cli", "run", "--workers", 4, *words, *arguments).finish()
    assert done.status != 0
    assert said in done.stderr + done.stdout, str(done)


def resume(start, tmp_path, model, optimizer, workers, stages, folder, updates, batches):
    """Trains from the latest checkpoint of a folder on; gives where that was, and all variables."""
    script, file = SCRIPT.parent / "staged_checkpoints.py", tmp_path / "found.npz"
    words = [script, model, optimizer, stages, folder, updates, batches, file]
    done = start("-m", "parallax.entry.cli", "run", "--workers", workers, *words).finish()
    assert done.status == 0, str(done)
    return next(line for line in done.lines(0) if line.startswith("began")), dict(np.load(file))


@pytest.mark.rotates
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize(
    ("model", "first", "others", "limit"),
    [
        ("mlp", (2, 2, 1), [(1, 0, 1), (2, 2, 1), (4, 4, 1)], 0.0),
        ("spread", (4, 2, 1), [(1, 0, 2), (2, 2, 2), (2, 0, 1), (4, 2, 1)], 1e-5),
    ],
)
def test_checkpoints_are_read_by_other_stages_and_without(start, tmp_path, model, optimizer, first, others, limit):
    def run(layout, folder, updates):
        workers, stages, batches = layout
        return resume(start, tmp_path, model, optimizer, workers, stages, tmp_path / folder, updates, batches)

    _, wanted = run(others[0], "whole", 12)
    run(first, "first", 10)
    for number, layout in enumerate(others):
        shutil.copytree(tmp_path / "first", tmp_path / f"copy-{number}")
        began, found = run(layout, f"copy-{number}", 12)
        assert began == "began at 10" and found.keys() == wanted.keys()
        assert max(distance(found[name].astype(float), wanted[name].astype(float)) for name in found) <= limit
    reader = tf.train.load_checkpoint(str(tmp_path / "first"))
    assert {name: list(value.shape) for name, value in wanted.items()} == {
        name: shape for name, shape in reader.get_variable_to_shape_map().items() if not name.startswith("_")
    }
    assert reader.get_tensor("global_step") == 10


@pytest.mark.rotates
@pytest.mark.parametrize(("bad", "said"), [(-1, "the data has ended"), (4, "not finite")])
def test_all_stages_hear_of_an_error_of_one(start, bad, said):
    script, seen = SCRIPT.parent / "staged_data.py", {}
    for stages in (0, 3):
        workers = max(1, stages)
        done = start("-m", "parallax.entry.cli", "run", "--workers", workers, script, stages, 9, bad).finish()
        assert done.status == 0, str(done)
        seen[stages] = [done.lines(rank) for rank in range(workers)]
    ((wanted,),) = ([tuple(line for line in lines if line[:2] in ("lo", "ke"))] for lines in seen[0])
    assert len(wanted) == 2
    for lines in seen[3]:
        assert said in lines and tuple(line for line in lines if line[:2] in ("lo", "ke")) == wanted
