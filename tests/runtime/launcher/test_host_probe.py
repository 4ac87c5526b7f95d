"""Who connects back: strangers, and connections that end early, are passed over."""

import os
import socket
import struct
import subprocess
import threading

import pytest

from parallax.base.errors import LaunchError
from parallax.cluster.machines import Cluster, Host, Ssh
from parallax.runtime.launcher.restarts import host_probe
from parallax.runtime.launcher.restarts.host_probe import _has_received, driver_address

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
            assert _has_received(listener, WORD, process, 30.0)
            thread.join()
    finally:
        process.kill()
        process.wait()


def test_a_name_that_only_ssh_knows_is_looked_up_in_its_configuration(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nprintf "user me\\nhostname 127.0.0.1\\n"\n')
    ssh.chmod(0o755)
    host = Host("gpu-box.not-a-name.invalid", 1)
    cluster = Cluster((host,))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert driver_address(cluster, host) == "127.0.0.1"


def test_a_host_to_which_no_network_leads_is_named(monkeypatch):
    def fail(name):
        raise OSError(f"no way to {name}")

    monkeypatch.setattr(host_probe, "find_local_address", fail)
    host = Host("nowhere", 1)
    cluster = Cluster((host,), ssh=Ssh(agent="my-agent"))
    with pytest.raises(LaunchError, match="Worker 0, on nowhere, must reach .* no way to nowhere.* Give its address"):
        driver_address(cluster, host)
