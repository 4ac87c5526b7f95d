"""Jobs on an emulated cluster. Every wait is bounded; after each job the hosts must be empty."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.lab import Lab, why_not

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_S = 200.0
GONE_S = 10.0  # the launcher sees no other host; there supervisors give their workers a grace


@pytest.fixture(scope="session")
def lab():
    """Two emulated hosts."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Lab(2) as lab:
        yield lab


class Launched:
    """A launcher on a host of the lab."""

    def __init__(self, lab, folder, words, host):
        self.lab, self.host = lab, host
        self._out, self._err = folder / "out", folder / "err"
        self._before = self._scratch()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = lab.start_on(
                host,
                [sys.executable, *map(str, words)],
                cwd=folder,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def output(self):
        """What it has written so far: (stdout, stderr)."""
        return self._out.read_text(errors="replace"), self._err.read_text(errors="replace")

    def wait_for(self, *texts):
        """Waits until all of `texts` are on stdout."""
        deadline_s = time.monotonic() + LIMIT_S
        while not all(text in self.output()[0] for text in texts):
            if time.monotonic() > deadline_s or self.process.poll() is not None:
                pytest.fail(f"{texts} were not printed\n{self}")
            time.sleep(0.05)

    def pid(self, host, words, without="\0"):
        """The number of the first process on a host whose command line has `words`."""
        found = [p for p, line in self.lab.processes(host).items() if words in line and without not in line]
        assert found, self.lab.processes(host)
        return min(found)  # a supervisor's guard comes after it

    def launcher(self):
        """The number of the launcher itself, inside nsenter."""
        return min(p for p, line in self.lab.processes(self.host).items() if line.startswith(sys.executable))

    def finish(self):
        """Waits for the end; gives exit status, stdout and stderr. No host may have anything of the job left."""
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not ended after {LIMIT_S:.0f} s\n{self}")
        self.check_empty(GONE_S)
        assert self.scratch() == []
        return status if status >= 0 else 128 - status, *self.output()

    def check_empty(self, within_s):
        """No process and no listening port is left on any host, at the latest after `within_s`."""
        deadline_s = time.monotonic() + within_s
        while self.left() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert self.left() == [], str(self)

    def left(self):
        """What is on the hosts."""
        of_hosts = [(name, self.lab.processes(name), self.lab.listening(name)) for name in self.lab.names]
        return [one for one in of_hosts if one[1] or one[2]]

    def scratch(self):
        """What Open MPI has left in the hosts' files, of this job."""
        return [one for one in self._scratch() if one not in self._before]

    def _scratch(self):
        return [(name, file.name) for name in self.lab.names for file in self.lab.own_files(name)]

    def end(self):
        """Kills whatever is left."""
        self.process.kill()
        self.process.wait()
        for name in self.lab.names:
            for pid in self.lab.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def __str__(self):
        out, err = self.output()
        return f"{out[-3000:]}\n-- stderr\n{err[-5000:]}\n-- left\n{self.left()}"


@pytest.fixture
def start(lab, tmp_path):
    """Starts a command (words for the Python interpreter) on a host."""
    started = []

    def start(*words, host="host0", cluster=lab):
        started.append(Launched(cluster, tmp_path, words, host))
        return started[-1]

    yield start
    for launched in started:
        launched.end()
