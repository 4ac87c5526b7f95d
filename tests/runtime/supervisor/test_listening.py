import os
import shutil
import socket
import subprocess
import sys

import pytest

from parallax.base.setup.libraries import preload_argv
from parallax.runtime.launcher.mpirun import Launcher
from parallax.runtime.supervisor import agent, host_checks
from parallax.runtime.supervisor.host_checks import listening_variables
from parallax.runtime.supervisor.preload import CannotListen, restrict_listening
from parallax.settings.environment import reach_directly

LIBRARY = __file__  # any file that exists


def found(monkeypatch, *addresses):
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(host_checks.socket, "getaddrinfo", lambda *_, **__: entries)


def test_a_server_gets_the_address_in_digits():
    assert listening_variables("10.1.2.3", LIBRARY) == {"PARALLAX_HOST_ADDRESS": "10.1.2.3"}


def test_an_address_that_others_reach_comes_before_a_loopback_one(monkeypatch):
    found(monkeypatch, "127.0.1.1", "10.1.2.3")
    assert listening_variables("node1", LIBRARY)["PARALLAX_HOST_ADDRESS"] == "10.1.2.3"


def test_a_name_that_means_only_this_machine_is_refused(monkeypatch):
    found(monkeypatch, "127.0.1.1")
    with pytest.raises(CannotListen, match="that name resolves to 127.0.1.1. Use its IP address in the resource file"):
        listening_variables("node1", LIBRARY)
    assert listening_variables("localhost", LIBRARY)["PARALLAX_HOST_ADDRESS"] == "127.0.1.1"


def test_an_unknown_name_and_a_missing_library_are_refused():
    with pytest.raises(CannotListen, match="cannot resolve no-such-host.invalid"):
        listening_variables("no-such-host.invalid", LIBRARY)
    with pytest.raises(CannotListen, match="/no/library must be on every host"):
        listening_variables("localhost", "/no/library")


BIND = """
import socket, sys
for family, address, dual in (
    (socket.AF_INET, "0.0.0.0", None), (socket.AF_INET6, "::", True), (socket.AF_INET6, "::ffff:0.0.0.0", True),
    (socket.AF_INET, "127.0.0.3", None)):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        if dual:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind((address, 0))
        print(one.getsockname()[0])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.bind(("0.0.0.0", 0))
    print(one.getsockname()[0])
"""


def test_the_set_up_builds_a_library_that_narrows_wildcard_addresses_of_streams_only(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "lib").mkdir()
    subprocess.run(preload_argv(tmp_path), check=True)
    library = Launcher("mpirun", str(tmp_path / "bin" / "python"), "/").preload_library
    shown = {}
    for address in ("", "127.0.0.2"):
        environment = {"LD_PRELOAD": library, "PARALLAX_LISTEN_ADDRESS": address}
        done = subprocess.run([sys.executable, "-c", BIND], env=environment, capture_output=True, text=True)
        shown[address] = done.stdout.split()
    assert shown[""] == ["0.0.0.0", "::", "::ffff:0.0.0.0", "127.0.0.3", "0.0.0.0"]
    assert shown["127.0.0.2"] == ["127.0.0.2", "::ffff:127.0.0.2", "::ffff:127.0.0.2", "127.0.0.3", "0.0.0.0"]


def test_the_address_is_narrowed_only_while_a_server_is_started(monkeypatch):
    names = ("PARALLAX_LISTEN_ADDRESS", "PARALLAX_LISTEN_PORT", "TF_GRPC_REUSE_PORT")
    for name in names[:2]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TF_GRPC_REUSE_PORT", "0")
    with restrict_listening("10.1.2.3", 2345):
        assert [os.environ[name] for name in names] == ["10.1.2.3", "2345", "1"]
    assert [os.environ.get(name) for name in names] == [None, None, "0"]


def test_a_proxy_for_the_web_is_not_taken_for_the_jobs_own_addresses(monkeypatch):
    monkeypatch.setenv("no_proxy", "intranet")
    monkeypatch.setenv("no_grpc_proxy", "")
    reach_directly(["10.0.0.1", "10.0.0.1", "fe80::1"])
    assert os.environ["no_grpc_proxy"] == "intranet,10.0.0.1,fe80::1"


WAIT = """
import os, select, threading, time
read, write = os.pipe()
epoll = select.epoll()
epoll.register(read, select.EPOLLIN)
epoll.poll(0)
threading.Timer(0.2, os.write, (write, b"x")).start()
os.sched_yield()
print(len(epoll.poll(0)))
"""


@pytest.mark.parametrize(("idle_us", "found"), [("60000000", "1"), ("0", "0"), (None, "0")])
def test_a_yield_of_who_waits_for_messages_sleeps_until_one_comes(tmp_path, idle_us, found):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "lib").mkdir()
    subprocess.run(preload_argv(tmp_path), check=True)
    library = Launcher("mpirun", str(tmp_path / "bin" / "python"), "/").preload_library
    environment = {"LD_PRELOAD": library, **({} if idle_us is None else {"PARALLAX_IDLE_US": idle_us})}
    done = subprocess.run([sys.executable, "-c", WAIT], env=environment, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == found, done.stderr


YIELDER = """
#include <sched.h>
void yield_often(int times) {
    while (times-- > 0) sched_yield();
}
"""
YIELD = """
import contextlib, ctypes, resource, sys
from parallax.runtime.worker.polling import polling
yielder = ctypes.CDLL(sys.argv[1])
with polling():
    pass
with polling() if sys.argv[2] == "polls" else contextlib.nullcontext():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    yielder.yield_often(20)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before >= 20)
"""


@pytest.mark.parametrize(
    ("name", "idle_us", "thread", "sleeps"),
    [
        ("libopen-pal.so", "1000", "waits", "True"),
        ("libopen-pal.so", "1000", "polls", "False"),
        ("libopen-pal.so", "0", "waits", "False"),
        ("other.so", "1000", "waits", "False"),
    ],
)
def test_a_yield_of_open_mpi_sleeps_where_it_has_no_connections(tmp_path, name, idle_us, thread, sleeps):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "lib").mkdir()
    subprocess.run(preload_argv(tmp_path), check=True)
    (tmp_path / "yielder.c").write_text(YIELDER)
    yielder = str(tmp_path / name)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", yielder, str(tmp_path / "yielder.c")], check=True)
    library = Launcher("mpirun", str(tmp_path / "bin" / "python"), "/").preload_library
    environment = {"LD_PRELOAD": library, "PARALLAX_IDLE_US": idle_us, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", YIELD, yielder, thread], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == sleeps, done.stderr


SLEEPER = """
#include <time.h>
void sleep_for(long seconds, long us) {
    struct timespec wanted = {seconds, us * 1000};
    nanosleep(&wanted, 0);
}
"""
SLEEP = """
import ctypes, sys, threading
library, announce = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None).parallax_tensor_is_coming
for _ in range(4):
    library.sleep_for(0, 1)
sleeper = threading.Thread(target=library.sleep_for, args=(3600, 0), daemon=True)
sleeper.start()
threading.Timer(0.2, announce).start()
sleeper.join(2)
print(sleeper.is_alive())
"""


@pytest.mark.parametrize(
    ("folder", "idle_us", "sleeps"), [("horovod", "1", "False"), ("horovod", "0", "True"), ("x", "1", "True")]
)
def test_horovods_thread_sleeps_until_a_tensor_is_announced(tmp_path, folder, idle_us, sleeps):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "lib").mkdir()
    (tmp_path / folder).mkdir()
    subprocess.run(preload_argv(tmp_path), check=True)
    (tmp_path / "sleeper.c").write_text(SLEEPER)
    sleeper = str(tmp_path / folder / "sleeper.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", sleeper, str(tmp_path / "sleeper.c")], check=True)
    library = Launcher("mpirun", str(tmp_path / "bin" / "python"), "/").preload_library
    environment = {"LD_PRELOAD": library, "PARALLAX_IDLE_US": idle_us}
    done = subprocess.run(
        [sys.executable, "-c", SLEEP, sleeper], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == sleeps, done.stderr


def test_a_rank_without_the_library_is_told_that_it_keeps_a_core_busy(monkeypatch):
    written = []
    monkeypatch.setenv("LD_PRELOAD", "/lib/own.so")
    assert agent._variables({"--preload": "/no/library"}, 3, {}, written.append) == {}
    assert written[0].rank == 3 and "keep a core busy while it waits" in written[0].text
    found = agent._variables({"--preload": LIBRARY}, 3, {}, written.append)
    assert found == {"LD_PRELOAD": f"{LIBRARY}:/lib/own.so"}
