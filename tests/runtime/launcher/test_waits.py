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
