"""Preloads the library of parallax/native/preload/ into the processes of a job: its variables, and the job's secret.

mpirun, its daemons on other hosts and all ranks have it. Each inherits the variables of its parent, and ranks remove
those of the library before they start anything: the user's processes are loaded without it.

The secret, by which the processes of a job authenticate each other, is drawn by the launcher and never appears on a
command line. It is in mpirun's environment, and reaches the daemons on the standard input of ssh. For that, this file
is also a script that needs nothing but Python: `preload.py reach SSH...` becomes the command with the secret on its
standard input, and `preload.py start LIBRARY DAEMON ARGS...`, on the other host, reads it and becomes the daemon.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import NoReturn

LIBRARY = "libparallax_preload.so"
LISTEN_ADDRESS = "PARALLAX_LISTEN_ADDRESS"
"""Read by the library: the address that replaces the wildcard address of listening sockets (listen_address.c)."""
LISTEN_PORT = "PARALLAX_LISTEN_PORT"
"""Read by the library: the only port that is restricted; without it, every port."""
SECRET = "PARALLAX_SECRET"
"""Read by the library when it is loaded: 64 hexadecimal digits (fence.c)."""

_PRELOAD = "LD_PRELOAD"
_REUSE_PORT = "TF_GRPC_REUSE_PORT"
_NO_SECRET = 254
_NO_ROOM, _MOST_PEERS = -2, 8192  # of parallax_fence_peer (fence.c)


class CannotListen(OSError):
    """The host has no address for its servers, or cannot restrict them to it."""


def check_library(library: str) -> None:
    """Refuses a rank without the library, because no process of the job would communicate with it.

    Raises:
        CannotListen: the library is missing on this host.
    """
    if not Path(library).exists():
        raise CannotListen(f"{library} must be on every host of a job, and is not on {socket.gethostname()}.")


def preload_variables(library: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that preloads `library`, in addition to the user's own preloaded libraries."""
    return {_PRELOAD: ":".join([library, *_of_the_user(environment)])}


def forget_preloaded() -> dict[str, str]:
    """Removes the library and its variables from this process's environment; the user's own values stay.

    Returns:
        The variable with the job's secret, for a process of the job; empty where nothing is fenced.
    """
    user_libraries, secret = _of_the_user(os.environ), os.environ.get(SECRET)
    for name in (_PRELOAD, LISTEN_ADDRESS, LISTEN_PORT, SECRET):
        os.environ.pop(name, None)
    if user_libraries:
        os.environ[_PRELOAD] = ":".join(user_libraries)
    return {SECRET: secret} if secret else {}


@contextmanager
def restrict_listening(address: str, port: int) -> Iterator[None]:
    """Context in which a TensorFlow server with this port listens on `address` only, and may reuse a reserved port.

    Other sockets that other threads bind meanwhile are unaffected.
    """
    variables = {LISTEN_ADDRESS: address, LISTEN_PORT: str(port), _REUSE_PORT: "1"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def is_fenced() -> bool:
    """Whether this process has loaded the library and has the job's secret."""
    library = ctypes.CDLL(None)
    return hasattr(library, "parallax_is_fenced") and bool(library.parallax_is_fenced())


def authenticate_to(addresses: Iterable[tuple[str, int]]) -> None:
    """Makes this process prove that it belongs to the job when it connects to one of these numeric addresses and ports.

    Raises:
        OSError: the library is not loaded, an address is invalid, or there are too many.
    """
    library = ctypes.CDLL(None)
    for address, port in addresses:
        if not hasattr(library, "parallax_fence_peer"):
            raise OSError(f"{LIBRARY} must be loaded to connect to servers of a job, here to {address}, port {port}.")
        status = library.parallax_fence_peer(address.encode(), port)
        if status == _NO_ROOM:
            raise OSError(
                f"A job with servers may have {_MOST_PEERS} servers and workers at most, and {address} is one more."
            )
        if status != 0:
            raise OSError(f"Servers of a job need numeric addresses, got {address!r}.")


def agent_words(python: str, library: str, agent: str) -> dict[str, str]:
    """Returns the Open MPI parameters that pass the secret to its daemons: the remote agent and the start command.

    Args:
        python: the interpreter, at the same path on all hosts, as this file and `library` are.
        library: the library that daemons preload.
        agent: the command that runs a command on another host, such as `ssh`; it must forward its standard input.
    """
    script = f"{python} -I -S {__file__}"
    return {"plm_rsh_agent": f"{script} reach {agent}", "orte_launch_agent": f"{script} start {library} orted"}


def _of_the_user(environment: Mapping[str, str]) -> list[str]:
    """Returns the libraries to preload other than the job's; the loader splits them at blanks and colons."""
    return [word for word in re.split("[ :]", environment.get(_PRELOAD, "")) if word and PurePath(word).name != LIBRARY]


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"{why}\n")
    sys.exit(_NO_SECRET)


def _reach(argv: list[str]) -> None:
    secret = forget_preloaded().get(SECRET)
    if secret is None:
        _refuse(
            f"The command that reaches other hosts for mpirun needs the job's secret in {SECRET}, which is not set."
        )
    read_fd, written_fd = os.pipe()
    os.write(written_fd, f"{secret}\n".encode())
    os.close(written_fd)
    os.dup2(read_fd, 0)
    os.execvp(argv[0], argv)


def _start(library: str, argv: list[str]) -> None:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            _refuse(
                "The command that reaches this host must pass on its standard input, as ssh does: the job's secret "
                "is sent there, and did not arrive."
            )
        line += byte
    if not Path(library).is_file():
        _refuse(f"{library} must be on every host of a job, and is not on {os.uname().nodename}.")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.environ.update({SECRET: line.decode().strip(), **preload_variables(library, os.environ)})
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    if sys.argv[1] == "reach":
        _reach(sys.argv[2:])
    else:
        _start(sys.argv[2], sys.argv[3:])
