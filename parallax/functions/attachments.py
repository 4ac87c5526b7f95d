"""What the launching process attaches to the job of a call: results of calls before, and where variables stand."""

from __future__ import annotations

import pickle
from typing import NamedTuple

from parallax import call as calls
from parallax.types import Buffer, Picklable, PortableValue


class Attached(NamedTuple):
    """What a worker is given.

    Attributes:
        results: what the calls before have given, in order.
        state: values of variables by name, where they are not those of the script's beginning; else None.
    """

    results: tuple[Picklable, ...]
    state: dict[str, PortableValue] | None


def attachment_with(state: dict[str, PortableValue] | None) -> bytes:
    """The attachment of the call that is made now; of the launching process alone, empty in a worker."""
    return b"" if calls.is_worker() else pickle.dumps((calls.remembered(), state), protocol=5)


def attached(attachment: Buffer) -> Attached:
    """What `attachment_with` was given, in a worker."""
    return Attached(*pickle.loads(attachment))
