"""What is shown of a script's failure."""

import sys

import pytest
import tensorflow.compat.v1 as tf

from parallax.base.errors import ConfigError, OtherGraphError, PlanError
from parallax.entry import cli
from parallax.runtime.worker.script import (
    error_text,
    run_script,
    show_errors_briefly,
    traceback_text,
    what_text,
)


def run_and_fail():
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.placeholder(tf.float32, [None])
        session.run(tf.reshape(given, [-1, 7], name="sevens"), {given: [1.0] * 6})


def test_an_error_of_the_graph_is_shown_once_and_to_the_scripts_last_line():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run_and_fail()
    text = traceback_text(caught.value)
    assert text.count("Traceback (most recent call last)") == 1 and "During handling" not in text
    frames = text.partition("InvalidArgumentError: ")[0]
    assert "run_and_fail" in frames and "tensorflow/python/client" not in frames
    assert "Input to reshape is a tensor with 6 values" in text
    assert what_text(caught.value).startswith("InvalidArgumentError: ")


def test_any_other_error_is_shown_as_python_shows_it():
    def fails():
        try:
            raise KeyError("a")
        except KeyError as error:
            raise KeyError("b") from error

    with pytest.raises(KeyError) as caught:
        fails()
    text = traceback_text(caught.value)
    assert "KeyError: 'a'" in text and text.endswith("KeyError: 'b'\n")
    assert what_text(caught.value) == "KeyError: 'b'"


def test_an_error_of_parallax_is_its_words():
    error = PlanError("A plan must be one.")
    assert error_text(error) == "parallax: A plan must be one." and what_text(error) == "A plan must be one."
    assert what_text(SystemExit("no data")) == "exit: no data"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose modules are found from the working folder alone."""
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "some_package"
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_package"]:
        del sys.modules[name]


def test_a_module_runs_as_python_runs_it(package, capsys):
    (package / "module.py").write_text("import sys\nfrom . import other\nprint(__name__, sys.argv[1:], other.VALUE)\n")
    (package / "other.py").write_text("VALUE = 3\n")
    run_script(["-m", "some_package.module", "--epochs", "3"])
    assert capsys.readouterr().out == "__main__ ['--epochs', '3'] 3\n"


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("some_package.nothing", "some_package.nothing"),
        ("some_package", "some_package.__main__"),
        ("no_package.module", "no_package.module"),
        ("train.py", "train.py"),
    ],
)
def test_a_module_that_is_not_there_is_named(package, name, missing):
    where = rf"imported from {package.parent} or PYTHONPATH, and there is no module '{missing}'\. Start the job in"
    with pytest.raises(ConfigError, match=where):
        run_script(["-m", name])


def test_what_a_module_lacks_itself_is_its_own_error(package):
    (package / "module.py").write_text("import nowhere\n")
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"):
        run_script(["-m", "some_package.module"])
    (package / "__init__.py").write_text("import nowhere\n")
    del sys.modules["some_package"]
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"):
        run_script(["-m", "some_package.module"])


def test_an_uncaught_error_of_parallax_is_shown_without_frames(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    show_errors_briefly()
    sys.excepthook(PlanError, PlanError("A plan must be one."), None)
    sys.excepthook(KeyError, KeyError("a"), None)
    assert capsys.readouterr().err == "parallax: A plan must be one.\nKeyError: 'a'\n"
    theirs = sys.excepthook
    show_errors_briefly()
    assert sys.excepthook is theirs


def test_the_command_begins_anew_with_one_seed_for_hashes_in_all_processes(monkeypatch):
    begun = []
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(cli.os, "execve", lambda path, argv, environment: begun.append((path, argv, environment)))
    monkeypatch.setattr(sys, "argv", ["parallax", "plan", "nowhere.py"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "parallax", "plan", "nowhere.py"])
    with pytest.raises(SystemExit):
        cli.main()
    ((path, argv, environment),) = begun
    assert (path, argv[1:], environment["PYTHONHASHSEED"]) == (sys.executable, sys.orig_argv[1:], "0")
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    with pytest.raises(SystemExit):
        cli.main()
    assert len(begun) == 1


def test_graphs_that_all_differ_from_the_launchers_are_one_error():
    assert what_text(OtherGraphError("worker 0 built")) == what_text(OtherGraphError("worker 1 built"))
