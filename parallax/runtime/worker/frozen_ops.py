"""Loads the image ops (parallax/native/frozen), which freeze variables at one instant and read them during training.

`ParallaxFreeze` clones the process, and the kernel copies a page when one of the two first writes it. The clone runs
nothing but system calls: it releases all memory that was not frozen, and serves the bytes of the buffers through a
socket until that is closed or its parent ends. An image belongs to the process, not to the session that made it, and
has a name, by which `ParallaxFrozenBytes` reads the image in any session of the process, and `ParallaxThaw` ends it.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import OpLibrary


@functools.cache
def frozen_ops() -> OpLibrary:
    """Returns the ops, which are registered once loaded.

    Raises:
        CheckpointError: the library has not been built.
    """
    library = Path(sys.executable).parent.parent / "lib" / "libparallax_frozen.so"
    if not library.is_file():
        raise CheckpointError(
            f"Checkpoints are written during training by ops of {library}, which does not exist. Build it: "
            "`parallax setup`."
        )
    return tf.load_op_library(str(library))
