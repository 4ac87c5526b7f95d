"""The native fence (parallax/native/preload/fence.c): who comes through to a server, and what a client believes."""

import contextlib
import hashlib
import hmac
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from parallax.runtime.launcher.mpirun import Launcher
from tests.fences.strangers import trouble

pytestmark = pytest.mark.timeout(60)

SECRET = "07" * 32
NONCE = bytes(range(16))

# Answers each line with its capitals; like gRPC's server it never waits in accept() or recv().
SERVER = """
import selectors, socket
def accepted(listener):
    try:
        made, _ = listener.accept()
    except BlockingIOError:
        return
    made.setblocking(False)
    waiting.register(made, selectors.EVENT_READ, echoed)
def echoed(one):
    data = one.recv(1000)
    if not data:
        waiting.unregister(one)
        one.close()
    one.send(data.upper()) if data else None
waiting = selectors.DefaultSelector()
for family, any_address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    listener = socket.socket(family)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((any_address, 0))
    listener.listen(5)
    listener.setblocking(False)
    waiting.register(listener, selectors.EVENT_READ, accepted)
    print(listener.getsockname()[1], flush=True)
while True:
    for key, _ in waiting.select():
        key.data(key.fileobj)
"""

# Connects without waiting and with, says a word on each connection, and prints what came back.
CLIENT = """
import ctypes, socket, sys
for port in map(int, sys.argv[1:]):
    assert ctypes.CDLL(None).parallax_fence_peer(b"127.0.0.1", port) == 0
    for timeout_s in (5, None):
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
            with socket.socket(family) as one:
                one.settimeout(timeout_s)
                try:
                    one.connect((address, port))
                    one.sendall(b"word")
                    print(one.recv(1000).decode())
                except OSError as error:
                    print(error.strerror or error)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("environment")
    (folder / "lib").mkdir()
    script = runpy.run_path(str(Path(__file__).parents[2] / "ops" / "install" / "install.py"))
    subprocess.run(script["preload_library_argv"](folder), check=True)
    return Launcher("mpirun", str(folder / "bin" / "python"), "/").preload_library


def environment(library, secret=SECRET):
    return {"LD_PRELOAD": library, "PARALLAX_LISTEN_ADDRESS": "127.0.0.1", "PARALLAX_SECRET": secret}


@pytest.fixture(scope="module")
def ports(library):
    """The ports of a server with the secret: of an IPv4 socket, and of an IPv6 one as TensorFlow has it."""
    words = [sys.executable, "-c", SERVER]
    with subprocess.Popen(words, env=environment(library), stdout=subprocess.PIPE, text=True) as server:
        yield [int(server.stdout.readline()) for _ in range(2)]
        server.kill()


def said_to(library, ports, secret=SECRET):
    """What a client got on each of its four connections to each port."""
    words = [sys.executable, "-c", CLIENT, *map(str, ports)]
    done = subprocess.run(words, env=environment(library, secret), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def mac(side, client, server):
    """As the library makes it, of both ends in their mapped form."""
    ends = [
        bytes(10) + b"\xff\xff" + socket.inet_aton(host) + port.to_bytes(2, "big") for host, port in (client, server)
    ]
    return hmac.new(bytes.fromhex(SECRET), side.ljust(8, b"\0") + b"".join(ends) + NONCE, hashlib.sha256).digest()


def test_who_has_the_secret_is_let_through(library, ports):
    assert said_to(library, ports) == ["WORD"] * 8


def test_who_has_another_secret_gets_nothing(library, ports):
    assert set(said_to(library, ports, "08" * 32)) <= {"Connection reset by peer", ""}


def test_strangers_get_nothing_and_keep_nobody_out(library, ports):
    with contextlib.ExitStack() as ends:
        answers, connections = trouble([("127.0.0.1", number) for number in ports], idle=200)
        assert answers == b""
        for one in connections:
            ends.enter_context(one)
        assert said_to(library, ports) == ["WORD"] * 8


@pytest.mark.parametrize("change", ["none", "replayed", "cut", "a bit"])
def test_the_first_message_counts_whole_and_on_its_own_connection_only(ports, change):
    with socket.socket() as one:
        one.connect(("127.0.0.1", ports[0]))
        own, other = one.getsockname(), one.getpeername()
        client = ("127.0.0.1", own[1] + 1) if change == "replayed" else own
        hello = NONCE + mac(b"connect", client, other)
        hello = {"cut": hello[:-1], "a bit": hello[:-1] + bytes([hello[-1] ^ 1])}.get(change, hello)
        one.settimeout(5)
        one.sendall(hello)
        if change == "none":
            one.sendall(b"word")
            assert one.recv(32, socket.MSG_WAITALL) == mac(b"accept", own, other)
            assert one.recv(100) == b"WORD"
        else:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(100) == b""


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\nwhat a false server says", b"short", bytes(32)])
def test_a_client_reads_nothing_of_a_server_without_the_secret(library, answer):
    with socket.create_server(("127.0.0.1", 0)) as false:
        port = false.getsockname()[1]
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(port)], env=environment(library), stdout=subprocess.PIPE, text=True
        )
        with contextlib.ExitStack() as ends:
            for _ in range(4):
                one = ends.enter_context(false.accept()[0])
                assert bytes.fromhex(SECRET) not in one.recv(48, socket.MSG_WAITALL)
                one.sendall(answer)
                with contextlib.suppress(OSError):  # the client has reset it
                    one.shutdown(socket.SHUT_WR)  # for one without a time limit, who waits for the rest of the answer
            assert client.communicate(timeout=30)[0].splitlines() == ["Connection reset by peer"] * 4


def test_other_sockets_of_the_same_processes_are_left_alone(library):
    program = """
import socket
own = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(own.getsockname()) as one:
    made = own.accept()[0]
    one.sendall(b"plain")
    print(made.recv(100).decode())
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment(library), capture_output=True, text=True)
    assert done.stdout == "plain\n", done.stderr


def test_a_secret_that_is_none_ends_the_process(library):
    done = subprocess.run([sys.executable, "-c", ""], env=environment(library, "short"), capture_output=True, text=True)
    assert done.returncode == -6 and "64 hexadecimal digits" in done.stderr
