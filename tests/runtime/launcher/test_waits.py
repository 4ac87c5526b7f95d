"""Threads that wait in Open MPI, in processes that are loaded as those of a job are."""

import ctypes
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

ENVIRONMENT = Path(sys.prefix)
PRELOAD = ENVIRONMENT / "lib" / "libparallax_preload.so"


class WaitSync(ctypes.Structure):
    """Open MPI 4.1's record of a wait; pthread's condition and mutex have 48 and 40 bytes."""

    _fields_ = [
        ("count", ctypes.c_int),
        ("status", ctypes.c_int),
        ("condition", ctypes.c_byte * 48),
        ("lock", ctypes.c_byte * 40),
        ("next", ctypes.c_void_p),
        ("prev", ctypes.c_void_p),
        ("signaling", ctypes.c_bool),
    ]


def test_who_was_signalled_goes_on_when_the_other_has_left_the_record_of_the_wait():
    ctypes.CDLL(str(ENVIRONMENT / "lib" / "libopen-pal.so.40"))
    wait = ctypes.CDLL(str(PRELOAD)).ompi_sync_wait_mt
    sync = WaitSync(count=0, status=0, signaling=True)
    thread = threading.Thread(target=wait, args=[ctypes.byref(sync)], daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    sync.signaling = False
    thread.join(20)
    assert not thread.is_alive()


def test_open_mpi_waits_by_the_library_that_ranks_are_loaded_with():
    environment = {
        **os.environ,
        "LD_PRELOAD": str(PRELOAD),
        "LD_BIND_NOW": "1",
        "LD_DEBUG": "bindings",
        "OPAL_PREFIX": str(ENVIRONMENT),
    }
    code = "import mpi4py; mpi4py.rc.initialize = False; import mpi4py.MPI"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    bound = re.findall(r"binding file (\S+) \[0\] to (\S+) \[0\]: normal symbol `ompi_sync_wait_mt'", done.stderr)
    assert {Path(file).name.partition(".")[0]: Path(to) for file, to in bound}["libmpi"] == PRELOAD


READER = """
#include <sys/uio.h>
ssize_t take(int fd, void *message, size_t size, void *more, size_t room) {
    struct iovec parts[2] = {{message, size}, {more, room}};
    return readv(fd, parts, 2);
}
"""
MESSAGES = """
import ctypes, select, socket, sys
take = ctypes.CDLL(sys.argv[1]).take
listener = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
receiver.setblocking(False)
message, more = ctypes.create_string_buffer(100_000), ctypes.create_string_buffer(30_000)

def arrive(sent, size):
    sender.sendall(bytes(sent))
    came = bool(select.select([receiver], [], [], 1.0)[0])
    taken = take(receiver.fileno(), message, ctypes.c_size_t(size), more, ctypes.c_size_t(30_000)) if came else 0
    return came, taken, receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

print(arrive(10_000, 100_000), arrive(10_000, 90_000), arrive(75_000, 90_000), arrive(100, 5_000), arrive(1, 4_900))
sender.sendall(bytes(10))
sender.close()
take(receiver.fileno(), message, ctypes.c_size_t(90_000), more, ctypes.c_size_t(0))
print(bool(select.select([receiver], [], [], 10.0)[0]), receiver.recv(1))
"""


def test_a_reader_of_a_message_is_woken_for_up_to_64_kb_of_what_is_missing_of_it_and_by_its_end(tmp_path):
    library = tmp_path / "libmpi_of_a_test.so"
    source = tmp_path / "reader.c"
    source.write_text(READER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(PRELOAD), "PARALLAX_IDLE_US": "100"}
    argv = [sys.executable, "-c", MESSAGES, str(library)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    first, last = done.stdout.splitlines()
    # 90,000 bytes are missing: 10,000 do not wake, 85,000 do; then 5,000 are missing, for which each piece wakes.
    assert first == "(True, 10000, 65536) (False, 0, 65536) (True, 85000, 1) (True, 100, 1) (True, 1, 1)"
    assert last == "True b''"  # a connection that ends wakes, whatever is missing
