"""What is shown of a script's failure."""

import sys

import pytest
import tensorflow.compat.v1 as tf

from parallax import cli
from parallax.errors import OtherGraphError, PlanError
from parallax.runtime.worker.script import error_text, traceback_text, what_text


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
