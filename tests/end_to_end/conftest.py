"""Jobs of small training scripts, as a user starts them. Every wait is bounded, and no process outlives its test."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass

import pytest

from parallax.runtime.supervisor.processes import end_processes, processes_with
from tests.warm import command_server
from tests.warm_worker import FOLDER, starter

CLI = ["-m", "parallax.entry.cli"]
MARK = "PARALLAX_TEST"
LIMIT_S = 120.0
SHOWN_LINES = 60


@dataclass(frozen=True, repr=False)
class Done:
    """How a command ended.

    Attributes:
        status: exit status of the command.
        stdout: all it wrote.
        stderr: all it wrote there.
        seconds: how long it took.
    """

    status: int
    stdout: str
    stderr: str
    seconds: float

    def lines(self, rank):
        """What one rank printed, without its mark."""
        mark = f"[{rank}] "
        return [line.removeprefix(mark) for line in self.stdout.splitlines() if line.startswith(mark)]

    def __repr__(self):
        ended = f"exit status {self.status} after {self.seconds:.1f} s"
        return f"{ended}\n{_last(self.stdout)}\n-- stderr\n{_last(self.stderr)}"


def _last(text):
    return "\n".join(text.splitlines()[-SHOWN_LINES:])


class Running:
    """A command in a session of its own, whose processes are known by a mark in their environment.

    Args:
        words: for the Python interpreter.
        folder: where it runs.
        environment: beside that of the tests.
        server: where `parallax` can be forked, so that it need not import TensorFlow; None for a new interpreter.
        workers: starts servers where its workers can be; None for new interpreters.
        is_plain: whether the words are a script that starts no workers, which can be forked as well.
    """

    def __init__(self, words, folder, environment, server=None, workers=None, is_plain=False):
        self.mark = {MARK: uuid.uuid4().hex}
        self._out, self._err = folder / f"{self.mark[MARK]}.out", folder / f"{self.mark[MARK]}.err"
        self._began_s = time.monotonic()
        every = {**os.environ, **environment, **self.mark}
        if server is None:  # as from a user's shell
            every.pop("PYTHONHASHSEED", None)
        if workers is not None:
            every[FOLDER] = workers.folder
        if server is not None and (is_plain or words[:2] == CLI) and server.serves(every):
            words = words if is_plain else words[2:]
            self.process = server.start(words, folder, every, self._out, self._err, is_plain)
            return
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                cwd=folder,
                env=every,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def output(self):
        """What it has written so far: (stdout, stderr)."""
        return self._out.read_text(errors="replace"), self._err.read_text(errors="replace")

    def wait_for(self, text, limit_s=LIMIT_S):
        """Waits until `text` is on stdout and returns the line that holds it."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            found = [line for line in self.output()[0].splitlines() if text in line]
            if found:
                return found[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        out, err = self.output()
        pytest.fail(f"{text!r} was not printed\n{_last(out)}\n-- stderr\n{_last(err)}")

    def finish(self, limit_s=LIMIT_S):
        """Waits for the end; the job must leave no process."""
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.end()
            out, err = self.output()
            pytest.fail(f"not ended after {limit_s:.0f} s\n{_last(out)}\n-- stderr\n{_last(err)}")
        done = Done(status, *self.output(), time.monotonic() - self._began_s)
        left = processes_with(self.mark)
        assert left == (), f"processes {left} are left\n{done}"
        return done

    def end(self):
        """Kills whatever is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        end_processes(self.mark, grace_s=0)


@pytest.fixture(scope="session")
def warm_server():
    """Where `parallax` is forked."""
    return command_server()


@pytest.fixture(scope="session")
def warm_workers():
    """Where workers are forked."""
    return starter()


@pytest.fixture
def start(tmp_path, warm_server, warm_workers, request):
    """Starts a command (words for the Python interpreter) in the test's folder.

    `parallax` is forked from a server, but for `cold` ones: of every command one is, and what is told of its start. So
    are its workers, but where the test is marked `new_workers`, and a script that is `plain`: it starts no workers.
    """
    started = []
    workers = None if request.node.get_closest_marker("new_workers") else warm_workers

    def start(*words, cold=False, plain=False, **environment):
        server = None if cold else warm_server
        of_workers = None if cold or plain else workers
        started.append(Running([str(word) for word in words], tmp_path, environment, server, of_workers, plain))
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.fixture
def write(tmp_path):
    """Writes a file into the test's folder."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def run(start, write):
    """Runs a script on workers of this machine and gives how it ended."""

    def run(text, *arguments, workers=2, limit_s=LIMIT_S, **environment):
        script = write("train.py", text)
        words = ("-m", "parallax.entry.cli", "run", "--workers", workers, script, *arguments)
        return start(*words, **environment).finish(limit_s)

    return run
