"""The commands `parallax plan`, `run` and `verify`, and the script started without them."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parallax.base.errors import LaunchError
from parallax.cluster.profiles import AlphaBeta, ClusterProfile, HostProfile
from parallax.plans.plan import plan_from_json
from parallax.report.html.page import plan_page
from parallax.runtime import make_job

pytestmark = pytest.mark.timeout(240)

SCRIPTS = Path(__file__).parent / "scripts"
MODEL = SCRIPTS / "model.py"
CLI = ("-m", "parallax.entry.cli")


def test_a_plan_is_shown_and_written_and_nothing_is_started(start, tmp_path):
    done = start(
        *CLI, "plan", "--workers", 3, "--json", "plan.json", "--html", "plan.html", MODEL, "--batch", 6, cold=True
    ).finish()
    assert done.status == 0, str(done)
    assert "Plan for 3 workers" in done.stdout and "worker 0 of" not in done.stdout, str(done)
    text = (tmp_path / "plan.json").read_text()
    plan = plan_from_json(text)
    assert [(v.name, v.route) for v in plan.variables][2:] == [("emb", "alltoall"), ("weights", "allreduce")]
    assert plan.variable("emb").owner_rows == (4, 4, 3) and plan.to_json() == text
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == plan_page(plan)


def test_a_dry_run_shows_the_command_and_starts_nothing(start, write):
    write("machines", "localhost slots=1\nfar.invalid slots=2\n")
    done = start(*CLI, "run", "--dry-run", "-r", "machines", MODEL, "--batch", 6).finish()
    assert done.status == 0, str(done)
    assert "Plan for 3 workers" in done.stdout and "worker 0 of" not in done.stdout, str(done)
    assert f"--host far.invalid:2 -wdir {Path.cwd()}" not in done.stdout
    assert "--host far.invalid:2 -wdir " in done.stdout and "\n2     worker 2  far.invalid  OMPI_COMM" in done.stdout
    assert f"-m parallax.runtime.worker.main {MODEL} --batch 6" in done.stdout


def test_a_variable_is_explained(start):
    done = start(*CLI, "plan", "--explain", "emb", MODEL, "--batch", 6).finish()
    assert done.status == 0, str(done)
    assert "emb: sparse, [11, 4] float32" in done.stdout and "slots emb/Adam, emb/Adam_1" in done.stdout, str(done)
    assert "not allgather: " in done.stdout and "weights" not in done.stdout, str(done)


def test_a_plan_with_a_cluster_profile_is_in_milliseconds(start, write):
    lines = {operation: AlphaBeta(1e-3, 1e-4, 1e-9, 0.1, 9) for operation in ("allreduce", "alltoall", "allgather")}
    write("cluster.json", ClusterProfile(1, (HostProfile("localhost", 2, 1 << 30, 0.0, 0.0),), {}, lines).to_json())
    done = start(*CLI, "plan", "--workers", 2, "--cluster", "cluster.json", MODEL, "--batch", 6).finish()
    assert done.status == 0, str(done)
    assert "ms/step" in done.stdout and "Predicted from cluster profile cluster.json." in done.stdout, str(done)
    assert "The exchanges of a step (compute was not measured) take 1.1 ms" in done.stdout, str(done)


@pytest.mark.rotates
def test_other_sizes_are_simulated_from_a_script_and_a_rate(start, write, tmp_path):
    write("machines.yaml", "hosts:\n- {address: one, workers: 2, bandwidth: 1gbit}\n")
    options = ("--hosts", "4096,2", "-r", "machines.yaml", "--batch", 2, "--html", "sizes.html")
    done = start(*CLI, "simulate", *options, MODEL, "--batch", 6, cold=True).finish()
    assert done.status == 0, str(done)
    assert "\n2      4        " in done.stdout and "\n4096   8192     " in done.stdout, str(done)
    assert "From 2 to 4096 hosts: " in done.stdout and "Only the links' rate is known" in done.stdout, str(done)
    assert "worker 0 of" not in done.stdout and 'id="sizes"' in (tmp_path / "sizes.html").read_text()


def test_a_simulation_without_links_is_refused(start):
    done = start(*CLI, "simulate", "--hosts", "2,8", MODEL, "--batch", 6).finish()
    assert done.status == 1 and "parallax: A simulation needs the rate of the links" in done.stderr, str(done)


def test_an_unknown_variable_cannot_be_explained(start):
    done = start(*CLI, "plan", "--explain", "embb", "--json", "no/such/folder.json", MODEL).finish()
    assert done.status == 1, str(done)
    assert f"{MODEL}:" in done.stderr and "parallax: The graph has no variable 'embb'" in done.stderr, str(done)


@pytest.mark.rotates
def test_a_module_run_without_the_command_uses_the_plan_that_was_written(start, write, tmp_path):
    write("package/__init__.py", "")
    write("package/train.py", MODEL.read_text())
    planned = start(*CLI, "plan", "--json", "plan.json", MODEL).finish()
    assert planned.status == 0, planned
    path = tmp_path / "plan.json"
    path.write_text(path.read_text().replace("touched rows unknown", "as the file says"))
    done = start("-m", "package.train", "--plan", path).finish()
    assert done.status == 0, str(done)
    assert "as the file says" in done.stdout, str(done)
    for rank in (0, 1):
        (line,) = done.lines(rank)
        assert line.startswith(f"worker {rank} of 2: loss "), str(done)


@pytest.mark.rotates
def test_workers_and_one_process_are_verified_to_be_equal(start):
    options = ("--claims", "--feeds", f"{MODEL}:feeds", "--steps", 3)
    done = start(*CLI, "verify", *options, MODEL, "--dropout", cold=True).finish()
    assert done.status == 0, str(done)
    lines = done.stdout.partition("and receives as much.\n")[2].splitlines()
    assert lines.pop(0).startswith("note: every step updates all rows of emb: op VariableV2 'emb'")
    assert [line.split()[0] for line in lines[:9]] == [
        "variable",
        "beta1_power",
        "beta2_power",
        "emb",
        "emb/Adam",
        "emb/Adam_1",
        "weights",
        "weights/Adam",
        "weights/Adam_1",
    ]
    assert lines[9].startswith("2 workers and one process are equal after 3 steps: "), str(done)
    kinds = {re.split(" {2,}", line)[0]: [int(n) for n in re.split(" {2,}", line)[1:4]] for line in lines[11:-1]}
    assert list(kinds) == ["a piece of the batch", "the same on all workers", "a part of a sum", "an owner's rows"]
    assert all(hold and not hidden and not false for hold, hidden, false in kinds.values()), str(done)
    assert re.match(rf"No claim of {sum(sum(c) for c in kinds.values())} is false in 3 steps; \d+ other ", lines[-1])


@pytest.mark.rotates
def test_half_precision_is_verified_within_its_rounding_which_is_printed(start):
    options = ("--wire-dtype", "bfloat16", "--feeds", f"{MODEL}:feeds", "--steps", 3)
    done = start(*CLI, "verify", *options, MODEL).finish()
    assert done.status == 0, str(done)
    assert "note: rows and their gradients are sent as bfloat16 and summed as float32\n" in done.stdout, str(done)
    assert "note: all-reduced gradients are sent as float32: Horovod cannot sum bfloat16\n" in done.stdout
    (line,) = (line for line in done.lines(0) if line.startswith("relative error of bfloat16 on the wire: rows mean "))
    errors = [float(error) for error in re.findall(r"largest (\S+) of", line)]
    assert len(errors) == 2 and all(2**-12 < error <= 2**-8 for error in errors), line
    assert done.stdout.splitlines()[-1].endswith(", tolerance 1e-02"), str(done)


@pytest.mark.rotates
def test_updates_of_several_batches_are_verified_against_all_of_them_joined(start):
    options = ("--accumulate-steps", 3, "--feeds", f"{MODEL}:feeds", "--steps", 2)
    done = start(*CLI, "verify", *options, MODEL).finish()
    assert done.status == 0, str(done)
    assert "note: each update takes the gradients of 3 batches of every worker\n" in done.stdout, str(done)
    assert done.stdout.splitlines()[-1].startswith("2 workers and one process are equal after 2 steps: "), str(done)


@pytest.mark.rotates
def test_a_loss_summed_over_the_batch_and_a_copy_that_one_worker_changes_are_found(start):
    done = start(*CLI, "verify", "--claims", "--feeds", f"{MODEL}:feeds", MODEL, "--summed", "--drift").finish()
    assert done.status == 1, str(done)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines() if line.strip()}
    assert re.fullmatch(r"slot Adam 4\.\d\de-01 1\.\d\de-05 NOT equal \(worker \d\)", rows["emb/Adam"]), str(done)
    assert rows["weights"].endswith("NOT equal (worker 1)"), str(done)
    assert rows["count"] == "own not compared: every worker keeps its own", str(done)
    assert rows["global_step"].startswith("other 0.00e+00 0.00e+00 equal"), str(done)
    assert "are NOT equal after 5 steps: " in done.stdout, str(done)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("False claims: "))
    assert (
        "step 1, Identity 'gradients/matmul_grad/tuple/control_dependency_1:0' is said to be a part of a mean" in line
    )
    assert f"({MODEL}:" in line and "; of the gradient of 'matmul', " in line, line


@pytest.mark.rotates
def test_the_first_steps_of_a_job_are_held_against_one_process_and_a_difference_ends_it(start):
    done = start(*CLI, "run", "--verify-first", 3, MODEL, "--drift").finish()
    assert done.status == 1, str(done)
    said = [line for line in done.lines(0) if line.startswith("Verified step ")]
    begin = "Verified step 1 of 3: 2 workers and one process are equal after 1 step: largest error "
    assert len(said) == 1 and said[0].startswith(begin), str(done)
    assert "In step 2 of this job the workers did not make the update that one process makes" in done.stderr, str(done)
    wrong = [line.split()[0] for line in done.stderr.splitlines() if line.endswith("NOT equal (worker 1)")]
    assert "weights" in wrong and "[1] worker 1 of" not in done.stdout, str(done)


@pytest.mark.rotates
def test_a_static_batch_is_verified_with_arguments_for_the_joined_one(start, tmp_path):
    draw = np.random.default_rng(1)
    np.savez(tmp_path / "feeds.npz", ids=draw.integers(0, 11, (5, 6)), labels=draw.normal(size=(5, 6, 1)))
    options = ("--workers", 2, "--feeds", "feeds.npz", "--joined-args=--batch 6")
    done = start(*CLI, "verify", *options, MODEL, "--batch", 3).finish()
    assert done.status == 0, str(done)
    assert "2 workers and one process are equal after 5 steps" in done.stdout, str(done)


def test_a_verification_without_feeds_is_refused_before_it_starts(start):
    done = start(*CLI, "verify", MODEL).finish()
    assert done.status == 1 and done.stdout == "", str(done)
    assert f"{MODEL}:" in done.stderr and "needs values for the placeholders (ids, labels)" in done.stderr, str(done)


@pytest.mark.parametrize(("memory", "status", "said"), [("1MB", 1, "says: lacks "), ("900GB", 0, "says: fits.")])
def test_a_plan_that_lacks_memory_has_status_1(start, write, memory, status, said):
    write("machines.yaml", f"hosts:\n- address: localhost\n  workers: 2\n  memory: {memory}\n")
    done = start(*CLI, "plan", "--memory", "-r", "machines.yaml", MODEL).finish()
    assert done.status == status and said in done.stdout, str(done)


@pytest.mark.parametrize("ending", ["", "sys.exit(0)"])
def test_a_script_that_does_not_call_parallel_run_is_told_so(start, write, ending):
    write("idle.py", f"import sys\nprint('hello', sys.argv[1:])\n{ending}\n")
    done = start(*CLI, "run", "--workers", 2, "idle.py", "-x", "--workers").finish()
    assert done.status == 1, str(done)
    assert "hello ['-x', '--workers']" in done.stdout, str(done)
    assert "idle.py ended without calling parallax.parallel_run" in done.stderr, str(done)


def test_a_broken_resource_file_is_named_with_its_line(start, write):
    write("machines", "localhost\nlocalhost: 0,x\n")
    done = start(*CLI, "run", "-r", "machines", MODEL).finish()
    assert done.status == 1, str(done)
    assert f"{MODEL}:" in done.stderr and "machines:2: " in done.stderr and "Traceback" not in done.stderr, str(done)


def test_a_failing_script_is_shown_as_python_shows_it(start, write):
    write("broken.py", "def build():\n    return 1 / 0\n\n\nbuild()\n")
    done = start(*CLI, "plan", "broken.py").finish()
    assert done.status == 1, str(done)
    shown = done.stderr[done.stderr.index("Traceback") :]
    assert "broken.py" in shown and "in build" in shown and "ZeroDivisionError" in shown, str(done)
    assert "runpy" not in shown and "cli.py" not in shown, str(done)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nowhere.py"), "must be a file, got 'nowhere.py'"),
        (("run", "--workers", "0", MODEL), "must be an integer of at least 1, got '0'"),
        (("run", "--workers", "two", MODEL), "must be an integer of at least 1, got 'two'"),
        (("run", "--workers", "2", "-r", "machines", MODEL), "not allowed with"),
        (("run",), "required: script"),
        (("train", MODEL), "must be one of run, plan,"),
    ],
)
def test_a_wrong_command_is_refused(words, message, tmp_path):
    argv = [sys.executable, *CLI, *map(str, words)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and message in done.stderr, done.stderr


class Main:
    """What stands for the module `__main__`."""

    def __init__(self, spec=None, file=None):
        self.__spec__ = spec
        if file is not None:
            self.__file__ = file


class Spec:
    def __init__(self, name):
        self.name = name


@pytest.mark.parametrize(
    ("main", "program"),
    [
        (Main(file="/jobs/train.py"), ("/jobs/train.py", "--lr", "1")),
        (Main(Spec("jobs.train"), "/jobs/train.py"), ("-m", "jobs.train", "--lr", "1")),
        (Main(Spec("jobs.__main__"), "/jobs/__main__.py"), ("-m", "jobs", "--lr", "1")),
        (Main(Spec("__main__"), "/jobs.zip/__main__.py"), ("/jobs.zip", "--lr", "1")),
    ],
)
def test_workers_are_started_as_the_launcher_was(monkeypatch, main, program):
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["/jobs.zip", "--lr", "1"])
    assert make_job.script_words() == program


def test_a_process_without_a_script_cannot_start_workers(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", Main())
    with pytest.raises(LaunchError, match="as a notebook is"):
        make_job.script_words()


def test_a_full_disk_is_told_before_anything_starts(monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(make_job.tempfile, "mkdtemp", full)
    with pytest.raises(LaunchError, match="cannot be written: No space left on device. Free space there"):
        make_job.new_folder()
