"""The native fence (parallax/native/preload/fence.c): who comes through to a server, and what a client believes."""

import contextlib
import hashlib
import hmac
import secrets
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from parallax.base.setup.libraries import preload_argv
from parallax.runtime.launcher.mpirun import Launcher
from tests.fences.strangers import trouble

pytestmark = pytest.mark.timeout(60)

SECRET = "07" * 32

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
    try:
        data = one.recv(1000)
    except ConnectionResetError:
        data = b""
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
    subprocess.run(preload_argv(folder), check=True)
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


def mac(side, client, server, nonce, of_host=None):
    """As the library makes it, of both ends in their mapped form, and between equal addresses of the host."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    host = bytes(36) if client[0] != server[0] else of_host or boot_id
    ends = [
        bytes(10) + b"\xff\xff" + socket.inet_aton(host) + port.to_bytes(2, "big") for host, port in (client, server)
    ]
    text = side.ljust(8, b"\0") + b"".join(ends) + host + nonce
    return hmac.new(bytes.fromhex(SECRET), text, hashlib.sha256).digest()


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


@pytest.mark.parametrize("change", ["none", "another address", "replayed", "relayed", "cut", "a bit"])
def test_the_first_message_counts_whole_and_on_its_own_connection_only(ports, change):
    with socket.socket() as one:
        if change == "another address":
            one.bind(("127.0.0.5", 0))
        one.connect(("127.0.0.1", ports[0]))
        own, other = one.getsockname(), one.getpeername()
        client = ("127.0.0.1", own[1] + 1) if change == "replayed" else own
        nonce = secrets.token_bytes(16)
        hello = nonce + mac(b"connect", client, other, nonce, bytes(36) if change == "relayed" else None)
        hello = {"cut": hello[:-1], "a bit": hello[:-1] + bytes([hello[-1] ^ 1])}.get(change, hello)
        one.settimeout(5)
        one.sendall(hello)
        if change in ("none", "another address"):
            one.sendall(b"word")
            assert one.recv(32, socket.MSG_WAITALL) == mac(b"accept", own, other, nonce)
            assert one.recv(100) == b"WORD"
        else:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(100) == b""


def test_a_first_message_is_taken_once_though_the_connection_has_the_same_ends_again(ports):
    got = []
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        own = any_port.getsockname()
    nonce = secrets.token_bytes(16)
    hello = nonce + mac(b"connect", own, ("127.0.0.1", ports[0]), nonce)
    for _ in range(2):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset frees its port
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(own)
            one.connect(("127.0.0.1", ports[0]))
            one.settimeout(5)
            one.sendall(hello)
            with contextlib.suppress(ConnectionResetError):
                got.append(len(one.recv(32, socket.MSG_WAITALL)))
    assert got in ([32], [32, 0])


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


@pytest.mark.parametrize("secret", ["short", f"{SECRET}07", "+7" * 32, "zz" * 32])
def test_a_secret_that_is_none_ends_the_process(library, secret):
    done = subprocess.run([sys.executable, "-c", ""], env=environment(library, secret), capture_output=True, text=True)
    assert done.returncode == -6 and "64 hexadecimal digits" in done.stderr


def printed(library, program, *words, **variables):
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        env={**environment(library), **variables},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# A connection of which the program asks again how it ended, by SO_ERROR and by connect(), with reads in between.
AGAIN = """
import ctypes, select, socket, sys
port = int(sys.argv[1])
assert ctypes.CDLL(None).parallax_fence_peer(b"127.0.0.1", port) == 0
for order in ("connect", "SO_ERROR connect", "connect connect", "SO_ERROR read connect", "connect SO_ERROR"):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", port))
    select.select([], [one], [])
    for how in order.split():
        if how == "read":
            one.sendall(b"first")
            select.select([one], [], [])
            one.setblocking(True)
            assert one.recv(1000) == b"FIRST"
        elif how == "connect":
            one.connect_ex(("127.0.0.1", port))
        else:
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    one.setblocking(True)
    one.settimeout(5)
    one.sendall(b"word")
    print(one.recv(1000).decode())
"""


def test_a_connection_proves_itself_once_however_often_it_is_asked_how_it_ended(library, ports):
    assert printed(library, AGAIN, ports[0]) == ["WORD"] * 5


READS = """
import ctypes, socket, sys
libc, port = ctypes.CDLL(None), int(sys.argv[1])
assert libc.parallax_fence_peer(b"127.0.0.1", port) == 0
room = ctypes.create_string_buffer(100)
reads = {
    "recv": (100, 0), "recvfrom": (100, 0, None, None), "read": (100,),
    "__recv_chk": (100, 100, 0), "__recvfrom_chk": (100, 100, 0, None, None), "__read_chk": (100, 100),
}
for name, arguments in reads.items():
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(b"word")
        size = libc[name](one.fileno(), room, *arguments)
        print(name, room.raw[:size].decode())
"""


def test_every_way_to_read_checks_the_answer_first(library, ports):
    names = ("recv", "recvfrom", "read", "__recv_chk", "__recvfrom_chk", "__read_chk")
    assert printed(library, READS, ports[0]) == [f"{name} WORD" for name in names]


LISTENERS = """
import socket
held = socket.socket()
held.bind(("127.0.0.1", 0))
import os
os.environ["PARALLAX_LISTEN_PORT"] = str(held.getsockname()[1])
held.close()
for port in (int(os.environ["PARALLAX_LISTEN_PORT"]), 0):
    with socket.socket() as one:
        one.bind(("0.0.0.0", port))
        one.listen()
        print(one.getsockname()[0], one.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT) > 0)
"""


def test_where_a_port_is_named_no_other_socket_is_narrowed_or_fenced(library):
    assert printed(library, LISTENERS) == ["127.0.0.1 True", "0.0.0.0 False"]


HIGH = """
import os, resource, socket
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (70000, 70000))
except (OSError, ValueError):
    print("may not")
else:
    one = socket.socket()
    os.dup2(one.fileno(), 66000)
    try:
        socket.socket(fileno=66000).bind(("0.0.0.0", 0))
    except OSError as error:
        print(os.strerror(error.errno))
"""


def test_a_descriptor_too_high_to_be_fenced_does_not_listen(library):
    found = printed(library, HIGH)
    if found == ["may not"]:
        pytest.skip("this user may not open so many files")
    assert found == ["Too many open files"]


WITHOUT_COOKIES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>
int getsockopt(int fd, int level, int name, void *value, socklen_t *size) {
    int (*next)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
    if (level != SOL_SOCKET || name != SO_COOKIE) return next(fd, level, name, value, size);
    errno = ENOPROTOOPT;
    return -1;
}
"""


def test_a_kernel_that_does_not_tell_sockets_apart_ends_the_process(library, tmp_path):
    old = str(tmp_path / "old.so")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", old, "-ldl"], input=WITHOUT_COOKIES, text=True, check=True
    )
    variables = {**environment(library), "LD_PRELOAD": f"{library}:{old}"}
    done = subprocess.run([sys.executable, "-c", ""], env=variables, capture_output=True, text=True)
    assert done.returncode == -6 and "needs Linux 4.12" in done.stderr


# Waits as Open MPI's loop of events does.
LOOP = """
#include <sys/epoll.h>
int wait_for(int fd, int ms) {
    struct epoll_event one;
    return epoll_wait(fd, &one, 1, ms);
}
"""
# Connects, and prints whether there is something to read: before it has said a word, after, and when that is read.
LISTENS = """
import ctypes, select, socket, sys
loop, port = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
assert ctypes.CDLL(None).parallax_fence_peer(b"127.0.0.1", port) == 0
with socket.socket() as one, select.epoll() as waiting:
    one.connect(("127.0.0.1", port))
    waiting.register(one.fileno(), select.EPOLLIN)
    print(loop.wait_for(waiting.fileno(), 500), loop.wait_for(waiting.fileno(), 0))
    try:
        one.sendall(b"word")
        print(loop.wait_for(waiting.fileno(), 5000), one.recv(1000).decode())
        print(loop.wait_for(waiting.fileno(), 0))
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.parametrize(
    ("name", "secret", "said"),
    [
        ("libopen-pal.so", SECRET, ["0 0", "1 WORD", "0"]),
        ("other.so", SECRET, ["1 1", "1 WORD", "0"]),
        ("libopen-pal.so", "08" * 32, ["1 1"]),  # it is closed
    ],
)
def test_open_mpi_is_told_of_what_comes_behind_the_answer_and_not_of_the_answer(
    library, ports, tmp_path, name, secret, said
):
    (tmp_path / "loop.c").write_text(LOOP)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / name), str(tmp_path / "loop.c")], check=True)
    words = [sys.executable, "-c", LISTENS, str(tmp_path / name), str(ports[0])]
    done = subprocess.run(words, env=environment(library, secret), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[: len(said)] == said
