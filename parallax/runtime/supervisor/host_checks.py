"""Checks a supervisor's host before the rank starts: disk space for Open MPI, and the address for servers.

Open MPI needs space in its session folder and in shared memory. Without it the ranks would fail inside MPI, with errors
that name no disk.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from parallax.runtime.supervisor.control import HOST_ADDRESS
from parallax.runtime.supervisor.preload import CannotListen, check_library

# With 8 MB MPI does not start, with 12 MB it does, whatever the number of ranks (Open MPI 4.1.8).
SESSION_BYTES = 12 << 20
# Open MPI requires 5 % more than the segment of a rank.
SEGMENT_BYTES, _MARGIN = 4 << 20, 1.05
_SHARED_MEMORY = "/dev/shm"


class NoSpace(OSError):
    """A disk or the shared memory of the host is full."""


def check_room(variables: Mapping[str, str]) -> None:
    """Refuses a rank whose host lacks space.

    Args:
        variables: the environment of a rank, as mpirun sets it.

    Raises:
        NoRoom: names the place, the free and the required space, and the remedy.
    """
    session = variables.get("OMPI_MCA_orte_jobfam_session_dir", "")
    _check(session, SESSION_BYTES, "Free some, or set TMPDIR to a folder of another disk.")
    has_segments = "vader" in variables.get("OMPI_MCA_btl", "").split(",")
    if has_segments and int(variables.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")) > 1:
        folder = variables.get("OMPI_MCA_btl_vader_backing_directory", _SHARED_MEMORY)
        _check(folder, int(_MARGIN * SEGMENT_BYTES), "Free some, or give more to the container (--shm-size).")


def _check(folder: str, needed_bytes: int, remedy: str) -> None:
    if not Path(folder).is_dir():
        return
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    if status.f_blocks and free_bytes < needed_bytes:
        raise NoSpace(
            f"Open MPI needs {needed_bytes >> 20} MiB in {folder} on {socket.gethostname()}, but only "
            f"{free_bytes / (1 << 20):.1f} MiB are free. {remedy}"
        )


_LOOPBACK = ("127.", "::1")
_LOCAL = ("localhost", *_LOOPBACK)


def listening_variables(address: str, library: str) -> dict[str, str]:
    """Returns the variables that make a worker or server listen on one address only.

    Args:
        address: of this host, from the resource file.
        library: the preload library that restricts addresses.

    Raises:
        CannotListen: the library is missing here, or other hosts cannot reach the address.
    """
    check_library(library)
    host = socket.gethostname()
    try:
        ips = [str(entry[4][0]) for entry in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise CannotListen(
            f"A host must be able to resolve its own address, but {host} cannot resolve {address}: {error}."
        ) from error
    reachable = [text for text in ips if not text.startswith(_LOOPBACK)]
    if not reachable and not address.startswith(_LOCAL):
        raise CannotListen(
            f"The other hosts must reach {host} as {address}, but on {host} itself that name resolves to {ips[0]}. "
            "Use its IP address in the resource file."
        )
    return {HOST_ADDRESS: (reachable or ips)[0]}
