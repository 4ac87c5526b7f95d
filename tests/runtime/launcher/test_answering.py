"""Who connects back: strangers, and connections that end early, are passed over."""

import socket
import struct
import subprocess
import threading

from parallax.runtime.launcher.answering import _hears

WORD = "0123456789abcdef"


def test_a_connection_that_is_reset_or_says_another_word_is_passed_over():
    def connect(address):
        reset = socket.create_connection(address)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        with socket.create_connection(address) as other:
            other.sendall(b"\x00" * len(WORD))
        with socket.create_connection(address) as host:
            host.sendall(WORD.encode())

    process = subprocess.Popen(["sleep", "60"])
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(0.1)
            thread = threading.Thread(target=connect, args=(listener.getsockname(),))
            thread.start()
            assert _hears(listener, WORD, process, 30.0)
            thread.join()
    finally:
        process.kill()
        process.wait()
