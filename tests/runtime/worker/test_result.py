"""What a worker sends back, and how calls are counted."""

from __future__ import annotations

import os
import threading

import pytest

from parallax.errors import ConfigError, SessionError
from parallax.runtime.supervisor.control import RESULT_FD, RESULT_FILE, checksum, result_head
from parallax.runtime.worker.called import packed_function, unpacked_function
from parallax.runtime.worker.result import CallDone, send_result

DATA = bytes(range(200))


@pytest.fixture
def pipe(monkeypatch):
    """The supervisor's end; the worker's is named in the environment."""
    read, written = os.pipe()
    monkeypatch.setenv(RESULT_FD, str(written))
    monkeypatch.delenv(RESULT_FILE, raising=False)
    yield read
    os.close(read)


def test_a_result_follows_its_head(pipe):
    send_result(memoryview(DATA).cast("H"))
    assert os.read(pipe, 1000) == result_head(200, checksum(DATA)) + DATA


def test_only_the_head_of_a_result_in_a_file_is_sent(pipe, tmp_path, monkeypatch):
    monkeypatch.setenv(RESULT_FILE, str(tmp_path / "result"))
    send_result(DATA)
    assert os.read(pipe, 1000) == result_head(200, checksum(DATA))
    assert (tmp_path / "result").read_bytes() == DATA


def test_a_second_result_is_refused(pipe):
    send_result(b"")
    with pytest.raises(SessionError, match="A job gives one result back"):
        send_result(b"")


def test_a_script_does_not_take_the_end_of_its_call_for_its_own():
    assert not issubclass(CallDone, Exception | SystemExit | KeyboardInterrupt)


def test_a_function_comes_with_what_it_uses_from_around_it():
    factor = 3
    assert unpacked_function(packed_function(lambda: factor * 2))() == 6


def test_a_function_that_cannot_be_sent_is_refused_with_what_holds_it():
    lock = threading.Lock()

    def locked():
        return lock.locked()

    with pytest.raises(ConfigError, match="and locked is not: TypeError: .* Make what cannot be pickled"):
        packed_function(locked)
