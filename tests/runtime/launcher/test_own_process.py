"""What a launching process must have: a working folder, open streams, files of some size."""

import resource
import subprocess
import sys

import pytest

from parallax.base.errors import LaunchError
from parallax.entry import cli
from parallax.runtime.launcher.own_process import check_own_process, check_surroundings

COMMAND = [sys.executable, "-m", "parallax.entry.cli"]


@pytest.mark.parametrize("script", ["train.py", "/jobs/train.py"])
def test_a_deleted_working_folder_is_one_line(tmp_path, script):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f'cd {gone}; rmdir {gone}; exec "$@"'
    done = subprocess.run(["sh", "-c", words, "sh", *COMMAND, "run", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "parallax: The working folder of this process was deleted." in done.stderr


@pytest.mark.parametrize(
    ("redirection", "words"),
    [
        (">&-", "The standard output of this process is closed (descriptor 1), but must be open."),
        ("2>&-", "The standard error of this process is closed (descriptor 2), but must be open."),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_closed_stream_is_one_line(command, redirection, words):
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, command, "train.py"], capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert (done.returncode, said.count("\n")) == (1, 1), said
    assert f"parallax: {words} To discard what is written there, start it with " in said


def test_a_limit_on_the_size_of_files_is_refused_where_it_is_too_small(monkeypatch):
    def limited(allowed):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (allowed, allowed))

    limited(0)
    with pytest.raises(
        LaunchError, match="Temporary files have up to 4.1 kB, .* may have at most 0 B. .*, or at least 4$"
    ):
        check_surroundings()
    limited(4096)
    check_surroundings()
    with pytest.raises(
        LaunchError, match="Open MPI's files .* may have at most 4.1 kB. Raise .*: ulimit -f unlimited, or at"
    ):
        check_own_process()
    limited(12 << 20)
    check_own_process()
    limited(resource.RLIM_INFINITY)
    check_own_process()


def test_commands_that_start_no_job_need_small_files_alone(monkeypatch, capsys):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (8192, 8192))
    for command, words in (("run", "Open MPI's files"), ("plan", "the script must be a file, got 'nowhere.py'")):
        with pytest.raises(SystemExit):
            cli.main([command, "nowhere.py"])
        assert words in capsys.readouterr().err
