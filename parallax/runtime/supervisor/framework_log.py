"""Recognises TensorFlow's own stderr lines that are of no interest to a user, and keeps them out of the terminal.

Only information and warnings in the format of its C++ log are removed, from sources known to write them when a program
starts, or together with an exception that says the same; and warnings that one of its Python functions is deprecated.
All other lines are the program's, including errors. A line is shown from the level that the user selects (`parallax run
--framework-log`, TF_CPP_MIN_LOG_LEVEL).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INFO, WARNING = 0, 1
"""Levels as TF_CPP_MIN_LOG_LEVEL counts them; higher levels are never hidden from the user."""

_LINE = re.compile(r"([IW])\d{4} \d\d:\d\d:\d+\.\d+ +\d+ ([a-z0-9_]+\.cc):\d+\] ")
_SOURCES = frozenset(
    {
        "coordination_service.cc",
        "coordination_service_agent.cc",
        "cpu_feature_guard.cc",
        "cuda_diagnostics.cc",
        "cuda_executor.cc",
        "device_factory.cc",
        "direct_session.cc",
        "gpu_device.cc",
        "gpu_process_state.cc",
        "grpc_channel.cc",
        "grpc_server_lib.cc",
        "local_rendezvous.cc",  # like op_kernel.cc
        "master_session.cc",
        "mlir_graph_optimization_pass.cc",
        "op_kernel.cc",  # reports every error that the run raises
        "port.cc",
        "pluggable_device_factory.cc",
        "profiler_session.cc",
        "queue_base.cc",  # reports operations that the end of a job cancels
    }
)
_BESIDE = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    # The second line of the message of cpu_feature_guard.cc.
    "To enable the following instructions:",
)
_FOLLOWS = re.compile(r"\t \[\[\{\{node .*\}\}\]\]$")
"""The second line of an error, which is the program's unless the first was hidden."""

_DEPRECATED = re.compile(
    r"From \S.*:\d+: .* (?:is deprecated and will be removed|is deprecated\. Please use) ", re.DOTALL
)
# Prefixes of TensorFlow's logger, by itself or through absl's handler.
_LOGGER = re.compile(r"WARNING:tensorflow:|W\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \w+\.py:\d+\] ")


def is_hidden(line: str, shown_from: int, after_hidden: bool = False) -> bool:
    """Whether a line on stderr is TensorFlow's own and below the level from which these are shown.

    Args:
        line: without its newline.
        shown_from: the level.
        after_hidden: the line before it was hidden.
    """
    if after_hidden and _FOLLOWS.match(line):
        return True
    level = _level_of(line)
    return level is not None and level < shown_from


def _level_of(line: str) -> int | None:
    if line.startswith(_BESIDE):
        return INFO
    match = _LINE.match(line)
    if match is not None and match[2] in _SOURCES:
        return INFO if match[1] == "I" else WARNING
    begin = _LOGGER.match(line)
    return INFO if begin is not None and _DEPRECATED.match(line, begin.end()) else None


@contextmanager
def quiet_import(shown_from: int) -> Iterator[None]:
    """Suppresses hidden lines that this process writes to stderr meanwhile; all others are written at the end.

    It is used for the import of TensorFlow, whose first lines no setting turns off. They are written below Python, so
    the file descriptor itself is redirected to a file in memory.
    """
    if shown_from <= INFO:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    with os.fdopen(os.memfd_create("parallax-stderr"), "w+b") as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            captured.seek(0)
            lines = captured.read().decode("utf-8", "surrogateescape").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not is_hidden(line, shown_from)))
            sys.stderr.flush()


def write_lines_once() -> None:
    """Makes TensorFlow's logger write each line once, after TensorFlow was imported.

    TensorFlow attaches a handler to its logger unless the root logger already has one. If a script gives the root
    logger one later, by absl's `app.run` or `logging.basicConfig`, every line would appear twice.
    """
    for handler in logging.getLogger("tensorflow").handlers:
        handler.addFilter(_Once(handler))


class _Once(logging.Filter):
    """Passes a record to the root logger's handlers only, if one of them writes it to the same stream.

    Args:
        handler: TensorFlow's own.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether TensorFlow's own handler writes the record."""
        if not logging.getLogger("tensorflow").propagate:
            return True
        others = [one for one in logging.getLogger().handlers if record.levelno >= one.level]
        return all(_stream_of(one) is not _stream_of(self._handler) for one in others)


def _stream_of(handler: logging.Handler) -> object:
    """Returns the stream that a handler writes to, for absl's its delegate's; the handler itself if it has none."""
    return getattr(getattr(handler, "python_handler", handler), "stream", handler)


def join_deprecations(shown_from: int = INFO) -> None:
    """Makes TensorFlow's logger write each deprecation warning as one line, or not at all where these are hidden.

    In a worker, which shows all, the launcher recognises them by that line.
    """
    logging.getLogger("tensorflow").addFilter(_Deprecations(shown_from))


class _Deprecations(logging.Filter):
    def __init__(self, shown_from: int) -> None:
        super().__init__()
        self._shown_from = shown_from

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown."""
        text = record.getMessage()
        if not _DEPRECATED.match(text):
            return True
        record.msg, record.args = " ".join(line.strip() for line in text.splitlines() if line.strip()), ()
        return self._shown_from <= INFO
