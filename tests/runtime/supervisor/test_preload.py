import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallax.runtime.supervisor import preload
from parallax.runtime.supervisor.preload import authenticate_to, forget_preloaded, preload_variables

SECRET = "07" * 32
SCRIPT = [sys.executable, "-I", "-S", preload.__file__]


@pytest.mark.parametrize(("own", "left"), [("", None), ("/lib/a.so b.so", "/lib/a.so:b.so")])
def test_a_process_forgets_the_library_and_the_secret_and_keeps_what_the_user_has_loaded(monkeypatch, own, left):
    monkeypatch.setenv("LD_PRELOAD", own)
    loaded = preload_variables("/env/lib/libparallax_preload.so", os.environ)
    monkeypatch.setenv("LD_PRELOAD", loaded["LD_PRELOAD"])
    monkeypatch.setenv("PARALLAX_LISTEN_ADDRESS", "127.0.0.1")
    monkeypatch.setenv("PARALLAX_SECRET", SECRET)
    assert (
        preload_variables("/other/libparallax_preload.so", os.environ)["LD_PRELOAD"].count("libparallax_preload") == 1
    )
    assert forget_preloaded() == {"PARALLAX_SECRET": SECRET}
    names = ("LD_PRELOAD", "PARALLAX_LISTEN_ADDRESS", "PARALLAX_SECRET")
    assert [os.environ.get(name) for name in names] == [left, None, None]
    assert forget_preloaded() == {}


def run(words, **variables):
    return subprocess.run(words, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_a_daemon_gets_the_secret_through_what_reaches_its_host_and_not_in_its_arguments(tmp_path):
    library = tmp_path / "libparallax_preload.so"
    library.touch()
    path = Path(sys.executable).parent
    away = [
        "/usr/bin/env",
        "-i",
        f"PATH={path}",
        "LD_PRELOAD=libdl.so.2",
    ]  # as ssh, but for the network: it inherits no variable
    reach = [*SCRIPT, "reach", *away, *SCRIPT, "start", str(library)]
    told = ["python3", "-I", "-S", "-c", "import os, sys; print(sys.argv, dict(os.environ), sys.stdin.read())"]
    done = run([*reach, *told, "arguments"], PARALLAX_SECRET=SECRET)
    loaded = f"{library}:libdl.so.2"
    assert done.stdout.startswith("['-c', 'arguments']"), done.stderr
    assert f"'PARALLAX_SECRET': '{SECRET}'" in done.stdout and f"'LD_PRELOAD': '{loaded}'" in done.stdout


def test_a_daemon_without_the_secret_or_the_library_does_not_start():
    done = run([*SCRIPT, "start", "/no/library", "/bin/true"])
    assert (done.returncode, "must pass on its standard input" in done.stderr) == (254, True)
    done = run([*SCRIPT, "reach", *SCRIPT, "start", "/no/library", "/bin/true"], PARALLAX_SECRET=SECRET)
    assert (done.returncode, "/no/library must be on every host of a job" in done.stderr) == (254, True)
    done = run([*SCRIPT, "reach", "/bin/true"])
    assert (done.returncode, done.stderr.count("\n")) == (254, 1), done.stderr
    assert "needs the job's secret in PARALLAX_SECRET, which is not set" in done.stderr


def test_a_process_without_the_library_does_not_connect_to_servers():
    with pytest.raises(OSError, match=r"libparallax_preload.so must be loaded to connect .* 10.0.0.1, port 20000"):
        authenticate_to([("10.0.0.1", 20000)])


@pytest.mark.parametrize(
    ("answer", "words"), [(-1, "numeric addresses, got 'node1'"), (-2, "may have 8192 .* node1 is one more")]
)
def test_an_address_that_cannot_be_fenced_says_why(monkeypatch, answer, words):
    library = SimpleNamespace(parallax_fence_peer=lambda address, port: answer)
    monkeypatch.setattr(preload.ctypes, "CDLL", lambda name: library)
    with pytest.raises(OSError, match=words):
        authenticate_to([("node1", 1)])


def test_a_worker_with_the_secret_and_without_the_library_says_so():
    done = run([sys.executable, "-m", "parallax.runtime.worker.main", "x.py"], PARALLAX_SECRET=SECRET)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "parallax: All processes of a job must be loaded with libparallax_preload.so" in done.stderr
