"""Polls MPI without a sleep in it.

A thread that finds nothing in MPI sleeps there until a message arrives, so that waiting takes no core
(parallax/native/preload/wait_for_messages.c). Code that polls, and waits by itself in between or goes on, must not.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parallax.base.types import Comm, MpiRequest, MpiStatus


def is_done(request: MpiRequest) -> bool:
    """Whether an MPI request has completed; returns at once."""
    with polling():
        return bool(request.Test())


def has_message(comm: Comm, source: int | None = None, tag: int | None = None, status: MpiStatus | None = None) -> bool:
    """Whether a message has arrived, and of what kind; returns at once.

    Args:
        comm: an mpi4py communicator.
        source: the rank of the sender; None for any.
        tag: of the message; None for any.
        status: an mpi4py.MPI.Status that is filled in.
    """
    from mpi4py import MPI

    with polling():
        return bool(
            comm.Iprobe(MPI.ANY_SOURCE if source is None else source, MPI.ANY_TAG if tag is None else tag, status)
        )


@contextmanager
def polling() -> Iterator[None]:
    """Context in which this thread does not sleep in MPI."""
    before = _set_polling()(1)
    try:
        yield
    finally:
        _set_polling()(before)


@functools.cache
def _set_polling() -> Callable[[int], int]:
    """The function of the preloaded library; without the library, MPI never sleeps."""
    return getattr(ctypes.CDLL(None), "parallax_thread_polls", lambda polls: 0)
