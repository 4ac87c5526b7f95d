"""What the launching process attaches to the job of a call: what calls before have given, its input, its variables."""

from __future__ import annotations

import pickle
from typing import NamedTuple

from parallax import call as calls
from parallax.functions.input_digests import InputDigest, digest_of_input
from parallax.types import Buffer, Nest, Picklable, PortableValue


class Attached(NamedTuple):
    """What a worker is given.

    Attributes:
        results: what the calls before have given, in order.
        state: values of variables by name, where they are not those of the script's beginning; else None.
        digest: of the launching process's input.
    """

    results: tuple[Picklable, ...]
    state: dict[str, PortableValue] | None
    digest: InputDigest


def attachment_with(state: dict[str, PortableValue] | None, data: Nest) -> bytes:
    """The attachment of the call that is made now; of the launching process alone, empty in a worker.

    Args:
        state: see `Attached`.
        data: the call's input.
    """
    if calls.is_worker():
        return b""
    return pickle.dumps(Attached(calls.remembered(), state, digest_of_input(data)), protocol=5)


def attached(attachment: Buffer) -> Attached:
    """What `attachment_with` was given, in a worker."""
    found: Attached = pickle.loads(attachment)
    return found
