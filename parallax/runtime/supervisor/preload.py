"""The library that processes of a job are started with (parallax/native/preload/), and its variables.

mpirun has it in a job on one machine, and every rank in all jobs. Each inherits the variables of whoever started it,
and takes those of the library out before it starts anything of its own: the user's processes are loaded without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath

LIBRARY = "libparallax_preload.so"
LISTEN_ADDRESS = "PARALLAX_LISTEN_ADDRESS"
"""Read by the library: the address to which it narrows what would listen on all (listen_address.c)."""

_PRELOAD = "LD_PRELOAD"
_REUSE_PORT = "TF_GRPC_REUSE_PORT"


def preloaded(library: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variable with which a process is started that loads `library`, and what the user has it load."""
    return {_PRELOAD: ":".join([library, *_of_the_user(environment)])}


def forget_preloaded() -> None:
    """Takes the library and its variables out of this process's environment; what the user has there stays."""
    own = _of_the_user(os.environ)
    for name in (_PRELOAD, LISTEN_ADDRESS):
        os.environ.pop(name, None)
    if own:
        os.environ[_PRELOAD] = ":".join(own)


@contextmanager
def listening_on(address: str) -> Iterator[None]:
    """Inside, a TensorFlow server listens on `address` only, and may take over a port that this process holds."""
    before = {name: os.environ.get(name) for name in (LISTEN_ADDRESS, _REUSE_PORT)}
    os.environ.update({LISTEN_ADDRESS: address, _REUSE_PORT: "1"})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _of_the_user(environment: Mapping[str, str]) -> list[str]:
    """The libraries to load but for the job's; the loader parts them at blanks and colons."""
    return [word for word in re.split("[ :]", environment.get(_PRELOAD, "")) if word and PurePath(word).name != LIBRARY]
