"""The op by which workers exchange rows, and the library that has it (ops/install/native/exchange.cc)."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from parallax.errors import TransformError

ALL_TO_ALL = "ParallaxAllToAll"
WORKERS, HOST = "workers", "host"


def library() -> Path:
    """Where the set-up has put the library: in the environment that this interpreter belongs to."""
    return Path(sys.executable).parent.parent / "lib" / "libparallax_exchange.so"


@functools.cache
def _ops() -> Any:
    import tensorflow as tf

    if not library().is_file():
        raise TransformError(
            f"Workers exchange rows by an op of {library()}, which is not there. Build it: `make install`."
        )
    return tf.load_op_library(str(library()))


def all_to_all(tensor: Any, splits: Any, among: str = WORKERS, arriving: Any = None) -> tuple[Any, Any]:
    """Sends `splits[k]` rows of `tensor` `[n, ...]` to worker k of all, or of this host.

    Args:
        tensor: rows, ordered by where they go.
        splits: `[W]` int32.
        among: WORKERS or HOST.
        arriving: `[W]` int32, how many come from each, where that is known; without it the workers tell each other.

    Returns:
        The rows received `[m, ...]`, by sender, and how many came from each worker (int32).

    Raises:
        TransformError: the library has not been built.
    """
    known = [] if arriving is None else [arriving]
    made = _ops().parallax_all_to_all(rows=tensor, splits=splits, arriving=known, among=among, name="all_to_all")
    return made.received, made.received_splits
