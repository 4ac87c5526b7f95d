import os
import time

import pytest

from parallax.base.errors import SessionError
from parallax.runtime.supervisor.control import CONTROL_FD, check_message, read_sealed
from parallax.runtime.worker import heartbeat
from parallax.runtime.worker.heartbeat import Heartbeat


@pytest.fixture
def sent(monkeypatch):
    """What is told of a run at once, without waiting until it lasts; the thread of a heartbeat tells it."""
    read_fd, written_fd = os.pipe()
    monkeypatch.setenv(CONTROL_FD, str(written_fd))
    monkeypatch.setattr(heartbeat, "_FIRST_REPORT_S", 0.0)
    monkeypatch.setattr(heartbeat, "LIMITS", heartbeat.LIMITS.__class__(beat_s=0.02))
    os.set_blocking(read_fd, False)
    waiting = bytearray()

    def until(wanted):
        """The first message that is wanted."""
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            try:
                waiting.extend(os.read(read_fd, 1 << 16))
            except BlockingIOError:
                time.sleep(0.01)
            while b"\n" in waiting:
                line, _, rest = bytes(waiting).partition(b"\n")
                waiting[:] = rest
                check_message(message := read_sealed(line))
                if wanted(message):
                    return message
        raise AssertionError("it was not told")

    return until


def kind(name):
    return lambda message: message["kind"] == name


def test_a_process_beats_before_its_first_run_and_in_it(sent):
    watch = Heartbeat()
    watch.start()
    assert sent(kind("alive")) == {"kind": "alive", "runs": 0, "fetch": "", "seconds": 0.0}
    with watch.run("train", "d"):
        assert sent(lambda message: message.get("fetch") == "train")["kind"] == "alive"
    watch.count()
    assert sent(lambda message: message.get("runs") == 1)["fetch"] == ""


def test_a_server_beats_too(sent):
    Heartbeat(serves=True).start()
    assert sent(kind("alive")) == {"kind": "alive", "serves": True}


def test_failures_that_the_loop_catches_are_told_until_a_run_ends_well(sent):
    watch = Heartbeat()
    watch.start()
    with pytest.raises(ValueError), watch.run("train", "d"):
        raise ValueError("\nIncompatible shapes\nat all")
    with watch.run("train", "d"):
        assert sent(kind("in_run"))["failures"] == ["run 1: ValueError: Incompatible shapes"]
    with watch.run("train", "d"):
        sent(kind("run_done"))
        assert sent(kind("in_run"))["failures"] == []


def test_the_beat_goes_on_when_the_loop_has_ended(sent):
    watch = Heartbeat()
    watch.start()
    watch.finish()
    watch.finish()
    assert sent(kind("finished")) == {"kind": "finished", "runs": 0}
    own = sent(lambda message: message["kind"] == "alive" and "serves" not in message)  # a server's of a test before
    assert own["fetch"] == ""


def test_sessions_may_follow_each_other_until_the_loop_ends_where_that_is_expected(sent):
    alone, serving = Heartbeat(), Heartbeat()
    alone.open()
    with pytest.raises(SessionError, match="once"):
        alone.open()
    serving.expect_sessions()
    serving.start()
    for _ in range(2):
        serving.open()
        with serving.run("train", "d"):
            pass
        serving.count()
        serving.close()
    serving.finish()
    assert sent(kind("finished")) == {"kind": "finished", "runs": 2}
