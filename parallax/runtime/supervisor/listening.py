"""On which address the TensorFlow servers of a host listen: found by the supervisor, on the host itself."""

from __future__ import annotations

import socket

from parallax.runtime.supervisor.control import HOST_ADDRESS
from parallax.runtime.supervisor.preload import CannotListen, check_library

_LOOPBACK = ("127.", "::1")
_LOCAL = ("localhost", *_LOOPBACK)


def listening_variables(address: str, library: str) -> dict[str, str]:
    """The variables with which a worker or server is started, so that it listens on one address.

    Args:
        address: of this host, as the resource file gives it.
        library: the one that narrows addresses, with which it is started too.

    Raises:
        CannotListen: the library is missing here, or the address means nothing that other hosts could reach.
    """
    check_library(library)
    host = socket.gethostname()
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise CannotListen(f"A host must know its own address, and {host} does not know {address}: {error}.") from error
    reachable = [text for text in found if not text.startswith(_LOOPBACK)]
    if not reachable and not address.startswith(_LOCAL):
        raise CannotListen(
            f"The other hosts must reach {address} by its address, and on {host} itself that name means {found[0]}. "
            "Give the IP address in the resource file."
        )
    return {HOST_ADDRESS: (reachable or found)[0]}
