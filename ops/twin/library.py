"""The library of the twin's ops, compiled at its first use: it is for benchmarks and not part of the product."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent / "native"
BUILT = SOURCES.parents[2] / "build" / "twin"


@functools.cache
def twin_ops() -> Any:
    """Loads and returns the ops, as `twin_launch` and `twin_wait`, which registers them."""
    import tensorflow as tf

    return tf.load_op_library(str(built_library()))


def built_library() -> Path:
    """Returns the library for these sources and this TensorFlow, in the source tree's `build`; builds it if missing.

    If several processes need it at the same time, one builds it and the others wait.

    Raises:
        subprocess.CalledProcessError: the compiler failed; its messages are on standard error.
    """
    import tensorflow as tf

    sources = sorted(SOURCES.glob("*.cc"))
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    digest = hashlib.sha256("\n".join([tf.__version__, *flags]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    BUILT.mkdir(parents=True, exist_ok=True)
    library = BUILT / f"libtwin_{digest.hexdigest()[:16]}.so"
    if library.is_file():
        return library
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            half = library.with_suffix(f".{os.getpid()}.half")
            argv = ["g++", "-O2", "-shared", "-fPIC", "-w", "-o", str(half), *map(str, sources), *flags]
            subprocess.run(argv, check=True)
            half.rename(library)
    return library
