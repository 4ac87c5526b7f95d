"""A job on one machine with a server: what a stranger's session gets, and what the job makes of strangers."""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from parallax.runtime.launcher.mpirun import this_launcher
from parallax.runtime.supervisor.processes import processes_with
from tests.fences.strangers import ports_of, trouble, trouble_at_once

pytestmark = pytest.mark.timeout(200)

LAUNCH = Path(__file__).parents[1] / "lab" / "scripts" / "launch_job.py"
PROGRAM = """
import time
from pathlib import Path
import tensorflow.compat.v1 as tf
from parallax.runtime.worker.ranks import current_process_group
members = current_process_group()
members.start()
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        variable = tf.get_variable("v", initializer=1.5)
    with tf.Session(members.target) as session:
        session.run(variable.initializer)
        Path("ready").touch()
        while not Path("end").exists():
            time.sleep(0.05)
        print("good", session.run(variable))
"""


@pytest.mark.rotates
def test_a_strangers_session_gets_nothing_and_the_job_does_not_mind(tmp_path):
    if not Path(this_launcher().preload_library).is_file():
        pytest.skip("this environment has no libparallax_preload.so: `parallax setup`")
    mark = {"PARALLAX_TEST": uuid.uuid4().hex}
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "machines").write_text("hosts: [{address: localhost, workers: 1, servers: 1}]\n")
    process = subprocess.Popen(
        [sys.executable, LAUNCH, "machines", "yes", "program.py"],
        cwd=tmp_path,
        env={**os.environ, **mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with contextlib.ExitStack() as ends:
        ends.callback(process.kill)
        deadline_s, known = time.monotonic() + 90, set()
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline_s and process.poll() is None, process.communicate()
            answers, connections = trouble_at_once(processes_with(mark), known)
            assert answers == b"", known
            for one in connections:
                ends.callback(one.close)
            time.sleep(0.05)
        assert len(known) >= 3, known
        ports = ports_of(processes_with(mark))
        assert {port.address for port in ports} == {"127.0.0.1"}, ports
        answers, connections = trouble([(port.address, port.number) for port in ports])
        assert answers == b"", ports
        for one in connections:
            ends.enter_context(one)
        # gRPC would wait on a port of mpirun too; the servers' are those of Python
        targets = [f"{p.address}:{p.number}" for p in ports if b"python" in Path(f"/proc/{p.pid}/comm").read_bytes()]
        assert len(targets) == 2, ports
        words = [sys.executable, "-m", "tests.fences.stranger_session", tmp_path / "written", *targets]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines() == ["nothing"] * 2, done.stderr
        (tmp_path / "end").touch()
        stdout, stderr = process.communicate(timeout=60)
        ends.pop_all()
    assert (process.returncode, stdout, stderr) == (0, "[0] good 1.5\n", "")
    assert not (tmp_path / "written").exists()
