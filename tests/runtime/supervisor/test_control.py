import os
import threading

import pytest

from parallax.runtime.supervisor.control import CONTROL_FD, read_sealed, send


@pytest.fixture
def pipe(monkeypatch):
    read_fd, write_fd = os.pipe()
    monkeypatch.setenv(CONTROL_FD, str(write_fd))
    yield read_fd, write_fd
    for fd in (read_fd, write_fd):
        try:
            os.close(fd)
        except OSError:  # the test closed it
            pass


def test_outside_a_job_nothing_is_sent(monkeypatch):
    monkeypatch.delenv(CONTROL_FD, raising=False)
    assert not send({"kind": "finished", "runs": 1})


def test_a_message_is_one_sealed_line(pipe):
    send({"kind": "failed", "error": "line\nline é"})
    line = os.read(pipe[0], 1000)
    assert line == b'parallax/1 3d86f08d {"kind": "failed", "error": "line\\nline \\u00e9"}\n'


def test_messages_of_many_threads_stay_whole(pipe):
    # Each is larger than what a pipe takes in one piece (4096 bytes).
    text_by_thread = {number: str(number) * 20_000 for number in range(4)}
    threads = [
        threading.Thread(target=lambda text=text: [send({"kind": "failed", "error": text}) for _ in range(5)])
        for text in text_by_thread.values()
    ]
    for thread in threads:
        thread.start()
    data = b""
    while data.count(b"\n") < 20:
        data += os.read(pipe[0], 1 << 16)
    for thread in threads:
        thread.join(10)
    errors = sorted(read_sealed(line)["error"] for line in data.splitlines())
    assert errors == sorted(5 * list(text_by_thread.values()))


def test_a_dead_supervisor_is_no_error_of_the_worker(pipe):
    os.close(pipe[0])
    send({"kind": "finished", "runs": 1})
