"""Drivers written as in 2019 train, by every run option, to what one process gets on the global batch.

Tolerance: the norm of the difference is at most 1e-5 of the variable's, as for the equality tests.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

from parallax.runtime.verify import difference

HERE = Path(__file__).parent
RUN_OPTIONS = ("HYBRID", "PS", "MPI")
DRIVERS = {"linear_regression": (), "language_model": ("--fixed_samples",)}
# Accepted, and moot: said once.
MOOT = ("--protocol=grpc+verbs", "--noreplicate_variables")
BEHAVIORS = {"v1": ("--v1_behavior",), "v2": ("--nov1_behavior",)}
TOLERANCE = 1e-5
LIMIT_S = 270.0  # a job takes some 15 s; generous for machines that do other work


@pytest.fixture(scope="module")
def expected():
    """(driver, behavior) -> what one process gets; trained once."""
    return {}


def joined(start, expected, driver, behavior, tmp_path):
    if (driver, behavior) not in expected:
        file = tmp_path / "joined.npz"
        flags = (*DRIVERS[driver], *BEHAVIORS[behavior], f"--result={file}")
        done = start(HERE / "joined.py", HERE / "drivers" / f"{driver}.py", 2, *flags).finish(LIMIT_S)
        assert done.status == 0, done
        with np.load(file) as values:
            expected[driver, behavior] = dict(values)
    return expected[driver, behavior]


# Where all variables are dense, HYBRID and MPI are one plan. Of rows on servers, and of dense variables by all-reduce,
# the equality tests train many kinds; here each run option is read, and each driver trained by two kinds of routes.
LEFT_OUT = (("HYBRID", "linear_regression"), ("MPI", "linear_regression"), ("PS", "language_model"))


@pytest.mark.rotates
@pytest.mark.parametrize("behavior", [pytest.param(b, marks=pytest.mark.slow if b == "v1" else []) for b in BEHAVIORS])
@pytest.mark.parametrize(
    ("run_option", "driver"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in LEFT_OUT else [])
        for case in itertools.product(RUN_OPTIONS, DRIVERS)
    ],
)
def test_a_driver_of_2019_trains_as_one_process_would(start, expected, tmp_path, driver, behavior, run_option):
    result = tmp_path / "result.npz"
    moot = MOOT if driver == "language_model" else ()
    flags = (*DRIVERS[driver], *BEHAVIORS[behavior], f"--run_option={run_option}", f"--result={result}", *moot)
    words = ("-m", "parallax.entry.cli", "run", "--workers", 2, HERE / "drivers" / f"{driver}.py")
    done = start(*words, *flags).finish(LIMIT_S)
    assert done.status == 0, done
    for rank in range(2):
        losses = [float(line.split()[1]) for line in done.lines(rank) if line.startswith("loss ")]
        assert len(losses) >= 16 and np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4]), done
    assert "PARALLAX INFO: step" in done.stderr
    assert done.stderr.count("plain gRPC") == done.stderr.count("replicate_variables=False") == bool(moot)
    wanted = joined(start, expected, driver, behavior, tmp_path)
    with np.load(result) as found:
        differences = {name: difference(found[name], value) for name, value in wanted.items()}
    assert {n: d for n, d in differences.items() if not d <= TOLERANCE} == {}


@pytest.mark.rotates
def test_a_driver_is_started_by_python_itself_and_workers_draw_their_own_samples(start, tmp_path):
    flags = ("--library_cells", "--max_steps=3", f"--ckpt_dir={tmp_path / 'ckpt'}", "--save_ckpt_steps=2")
    done = start(HERE / "drivers" / "language_model.py", *flags, TF_USE_LEGACY_KERAS="1").finish(LIMIT_S)
    losses = [[line for line in done.lines(rank) if line.startswith("loss ")] for rank in range(2)]
    assert done.status == 0 and len(losses[0]) == len(losses[1]) == 3, done
    assert losses[0] != losses[1]


@pytest.mark.rotates
def test_layers_that_nobody_seeds_train_alike_on_all_workers(start):
    done = start(HERE / "drivers" / "image_benchmark.py", TF_USE_LEGACY_KERAS="1").finish(LIMIT_S)
    assert done.status == 0, done
    first, second = ([line for line in done.lines(rank) if line.startswith("trained ")] for rank in range(2))
    assert len(first) == 1 and first == second, done
