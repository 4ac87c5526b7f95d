"""What TensorFlow writes to stderr at its start stays out of the terminal, and nothing else does."""

import io
import logging
import os
import sys

import pytest

from parallax.runtime.launcher.output.output_files import OutputFiles
from parallax.runtime.launcher.output.relay import Relay
from parallax.runtime.supervisor.framework_log import (
    INFO,
    WARNING,
    is_hidden,
    join_deprecations,
    quiet_import,
    write_lines_once,
)

QUIET = 2
PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
ONEDNN = "I0000 00:00:1795332254.201792    6587 port.cc:153] oneDNN custom operations are on. You may see ..."
CANCELLED = "W0000 00:00:1795332254.2    6587 local_rendezvous.cc:404] Local rendezvous is aborting"
DEPRECATED = (
    "WARNING:tensorflow:From /lib/tensorflow/python/training/adagrad.py:138: calling Constant.__init__ (from "
    "tensorflow.python.ops.init_ops) with dtype is deprecated and will be removed in a future version."
)
NAME = (
    "W1122 07:23:15.123456 140 module_wrapper.py:149] From train.py:3: The name tf.a is deprecated. Please use tf.b ."
)


@pytest.mark.parametrize("line", [PREAMBLE, ONEDNN, CANCELLED, DEPRECATED, NAME])
def test_lines_of_tensorflows_start_are_hidden_unless_all_is_asked_for(line):
    assert is_hidden(line, QUIET) and not is_hidden(line, INFO)


def test_the_users_own_level_counts():
    assert is_hidden(ONEDNN, WARNING) and not is_hidden(CANCELLED, WARNING)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "WARNING: the data has ended",
        "I1122 07:23:15.123456 140 train.py:12] step 1",
        "I0000 00:00:1795332254.201792    6587 my_op.cc:12] loaded",
        "E0000 00:00:1795332254.201792    6587 port.cc:153] no memory",
        "F0000 00:00:1795332254.201792    6587 gpu_device.cc:9] Check failed: ok",
        f"log: {ONEDNN}",
        "INFO:tensorflow:From scratch.py:1: step 1",
        "WARNING:tensorflow:From train.py:12: the loss is deprecated",
        "From /lib/a.py:138: f (from b) is deprecated and will be removed in a future version.",
    ],
)
def test_lines_of_the_program_and_errors_are_shown(line):
    assert not is_hidden(line, QUIET)


def test_hidden_lines_are_in_the_files_and_not_among_a_ranks_last_words(tmp_path):
    out, err = io.BytesIO(), io.BytesIO()
    relay = Relay(out, err, files=OutputFiles(tmp_path, ("worker-0",)))
    relay.write(0, "stderr", f"{PREAMBLE}\nmine\n{ONEDNN[:40]}", 0.0)
    relay.write(0, "stderr", f"{ONEDNN[40:]}\n", 0.0)
    relay.write(0, "stdout", f"{ONEDNN}\n", 0.0)
    relay.close()
    assert err.getvalue() == b"[0] mine\n" and relay.tail(0) == ["mine"]
    assert out.getvalue().decode() == f"[0] {ONEDNN}\n"  # nothing that a program prints there is TensorFlow's
    assert (tmp_path / "worker-0" / "stderr").read_text() == f"{PREAMBLE}\nmine\n{ONEDNN}\n"


def test_an_error_that_the_run_raises_too_is_hidden_with_its_second_line():
    op = (
        "W0000 00:00:1795332856.213249 9742 op_kernel.cc:1858] OP_REQUIRES failed at gather_op.cc:86 : INVALID_ARGUMENT"
    )
    node = "\t [[{{node emb/gather}}]]"
    err = io.BytesIO()
    relay = Relay(io.BytesIO(), err)
    relay.write(0, "stderr", f"{op}\n{node}\nValueError: ids\n{node}\n", 0.0)
    assert err.getvalue().decode() == f"[0] ValueError: ids\n[0] {node}\n"


@pytest.mark.parametrize(("shown_from", "shown"), [(QUIET, "mine\n"), (INFO, f"{ONEDNN}\nmine\n")])
def test_an_import_writes_what_is_not_hidden_also_below_python(capfd, shown_from, shown):
    with pytest.raises(ImportError), quiet_import(shown_from):
        os.write(2, f"{ONEDNN}\n".encode())
        print("mine", file=sys.stderr)
        raise ImportError
    assert capfd.readouterr().err == shown


@pytest.mark.parametrize("roots", ["none", "the same stream", "absl", "another stream", "errors alone"])
def test_a_line_of_tensorflow_comes_once_whatever_the_script_gives_the_root_logger(roots):
    stream, logger, root = io.StringIO(), logging.getLogger("tensorflow"), logging.getLogger()
    own = logging.StreamHandler(stream)
    later = logging.StreamHandler(io.StringIO() if roots == "another stream" else stream)
    later.setLevel(logging.ERROR if roots == "errors alone" else logging.NOTSET)
    if roots == "absl":
        wrapped, later = later, logging.NullHandler()
        later.python_handler, later.handle = wrapped, wrapped.handle
    before, level, others = list(logger.handlers), logger.level, list(root.handlers)
    logger.handlers[:], root.handlers[:] = [own], []
    logger.setLevel(logging.INFO)
    try:
        write_lines_once()
        root.handlers[:] = [] if roots == "none" else [later]
        logger.info("step %d", 7)
    finally:
        logger.handlers[:], root.handlers[:] = before, others
        logger.setLevel(level)
    assert stream.getvalue() == "step 7\n"


@pytest.mark.parametrize("shown_from", [QUIET, INFO])
def test_a_deprecation_is_one_line_that_is_hidden(shown_from):
    stream, logger = io.StringIO(), logging.getLogger("tensorflow")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    before, level = list(logger.filters), logger.level
    logger.filters.clear()  # a command that ran in this process leaves its own
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        join_deprecations(shown_from)
        logger.warning(
            "From %s: %s (from %s) is deprecated and will be removed %s.\nInstructions for updating:\n%s",
            "/a b/train.py:3",
            "f",
            "m",
            "in a future version",
            "Use g.\n",
        )
        logger.warning("step %d", 7)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.filters[:] = before
    *deprecated, last = stream.getvalue().splitlines()
    assert last == "WARNING:tensorflow:step 7" and len(deprecated) == (shown_from == INFO)
    assert all(line.endswith("Instructions for updating: Use g.") and is_hidden(line, QUIET) for line in deprecated)
