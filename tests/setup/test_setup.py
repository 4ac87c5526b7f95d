"""`parallax setup`: what it builds, and what it says where it cannot."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from parallax.base.errors import LaunchError
from parallax.base.setup import command, libraries

ROOT = Path(__file__).parents[2]


def test_horovod_is_the_version_of_the_lock_file_and_of_the_project():
    locked = (ROOT / "ops" / "install" / "horovod.lock").read_text().split()[0]
    assert libraries.HOROVOD == locked
    assert f'horovod = ["{locked}"]' in (ROOT / "pyproject.toml").read_text()


def test_the_builder_is_read_before_there_is_an_environment():
    program = "import sys; sys.path.insert(0, sys.argv[1]); import libraries; print(libraries.NATIVE)"
    argv = [sys.executable, "-I", "-S", "-c", program, str(ROOT / "parallax" / "base" / "setup")]
    done = subprocess.run(argv, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.stdout.strip() == str(ROOT / "parallax" / "native"), done.stderr


def test_every_source_is_in_a_library(tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "_tensorflow_flags", lambda folder: [])
    ran = []
    monkeypatch.setattr(libraries, "run_command", lambda argv, environment: ran.append(argv))
    libraries.build_libraries(tmp_path)
    words = {Path(word).name for argv in ran for word in argv}
    sources = [file for kind in ("*.c", "*.cc") for file in libraries.NATIVE.rglob(kind)]
    assert sources and {file.name for file in sources} <= words
    built = [Path(argv[argv.index("-o") + 1]) for argv in ran]
    assert sorted(file.name for file in built) == [
        f"libparallax_{n}.so" for n in ("exchange", "frozen", "preload", "rows")
    ]
    assert {file.parent for file in built} == {tmp_path / "lib"}


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("tensorflow", "pip install 'parallax\\[cpu\\]'"),
        ("g++", "has no g\\+\\+. Install"),
        ("cmake", "parallax\\[build\\]"),
    ],
)
def test_what_is_missing_is_named_with_what_to_install(monkeypatch, missing, words):
    find_spec, which = importlib.util.find_spec, command.shutil.which
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == missing else find_spec(name))
    monkeypatch.setattr(command.shutil, "which", lambda tool: None if tool == missing else which(tool))
    monkeypatch.setattr(command, "build_libraries", lambda folder: None)
    monkeypatch.setattr(command, "_has_horovod", lambda: False)
    with pytest.raises(LaunchError, match=words):
        command.set_up()


def test_horovod_that_is_there_is_left_as_it_is(monkeypatch, capsys):
    monkeypatch.setattr(command, "build_libraries", lambda folder: None)
    monkeypatch.setattr(command, "_has_horovod", lambda: True)
    monkeypatch.setattr(command, "run_command", lambda argv, environment: pytest.fail("nothing is to be compiled"))
    assert command.set_up() == 0
    assert "Horovod" not in capsys.readouterr().out


def test_hooks_of_a_commit_run_what_the_lint_target_runs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = (ROOT / "Makefile").read_text().partition("lint:")[2].partition("\n\n")[0]
    assert all(hook["entry"].replace(".venv/bin/", "$(BIN)/") in lint for hook in hooks)


def test_the_install_script_calls_functions_that_are_there():
    script = (ROOT / "ops" / "install" / "install.py").read_text(encoding="utf-8")
    called = set(re.findall(r"\blibraries\.(\w+)", script)) - {"py"}
    assert called >= {"build_libraries", "horovod_argv"}
    assert [name for name in called if not callable(getattr(libraries, name, None))] == []
