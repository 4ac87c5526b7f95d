"""Ops that update a table's rows only where rows are read or have gradients (parallax/native/rows).

An optimizer like Adam changes every row of a table and of its slots in every update. `ParallaxUpdateRows` makes an
update for the rows that have gradients. `ParallaxGatherRows`, `ParallaxReadRows` (of the full value) and
`ParallaxBringUpToDate` apply the updates that other rows have missed, with the same arithmetic and each update's own
scalars. The function of an update on an element is a program:

    states 3                     the table s0 and its slots s1, s2
    scalars 2                    scalars h0, h1 of an update, like its learning rate
    r0 = mul s1 h0               a register, written once; operands are sI, g (the gradient, zero in an update that the
                                 row has missed; gI of several), hI, rI, and constants in C's notation, like
                                 c:0x1.99999ap-4
    r1 = sub s0 r0
    set s0 r1                    a new value; all take effect after the last line, and a state without one stays

Operations are TensorFlow's of these names: neg abs sign square sqrt rsqrt reciprocal exp log floor not; add sub mul div
min max pow squared_difference div_no_nan mul_no_nan gt ge lt le eq ne and or (1 is true, 0 is false); select, of three.
They return TensorFlow's results bit for bit, except rsqrt, reciprocal, pow, exp and log of a tensor's last few
elements, which TensorFlow computes by another formula when they do not fill a vector. `#` begins a comment.

With `gradients` a row has that many gradients, one after the other, such as the sums of g and of g * g over equal rows.
`ParallaxUpdateOnlyRows` makes an update that leaves all other rows unchanged, like Adagrad's, by such a program.

Two more kinds of lines describe how a state changes in an update without gradient. If all states have one, the updates
that a row has missed are cut short where they only multiply the states by known factors:

    decay s1 h1                  new s1 = h1 * s1. The factor is made of scalars and constants
    move s0 c:1 r0 s1:1:1 h0:1:1 new s0 = 1 * s0 - (a value of magnitude at most r0), and r0 is at most a sum of
                                 terms, each a product of powers of the states (which have a `decay`) and scalars named
                                 here, within the lowest and the highest power of each

The first eight updates that a row misses are made one by one. The rest is cut only where no bit of a moving state would
change. A state that is multiplied by the product of n factors instead differs from n single updates by at most n *
2^-23 of itself (n * 2^-52 in double precision), and near zero by the values that are rounded to zero there.
"""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path

from parallax.base.errors import TransformError
from parallax.base.types import NodeDef, OpLibrary

UPDATE_ROWS, GATHER_ROWS = "ParallaxUpdateRows", "ParallaxGatherRows"
UPDATE_ONLY_ROWS = "ParallaxUpdateOnlyRows"
READ_ROWS, BRING_UP_TO_DATE = "ParallaxReadRows", "ParallaxBringUpToDate"
ROW_UPDATE_OPS = (UPDATE_ROWS, UPDATE_ONLY_ROWS, GATHER_ROWS, READ_ROWS, BRING_UP_TO_DATE)
UPDATES_OF_ROWS = frozenset({UPDATE_ROWS, UPDATE_ONLY_ROWS})
FIRST_STATE = 3
"""The input number of the first state of an update: values, indices and scalars, then the handles of the table and of
its slots.
"""


def row_update_library() -> Path:
    """The path where the setup installs the library: in the environment of this interpreter."""
    return Path(sys.executable).parent.parent / "lib" / "libparallax_rows.so"


@functools.cache
def row_update_ops() -> OpLibrary:
    """The ops, as `parallax_update_rows`, registered when loaded.

    Raises:
        TransformError: the library has not been built.
    """
    import tensorflow as tf

    library = row_update_library()
    if not library.is_file():
        raise TransformError(
            f"Rows of tables are updated by ops of {library}, which does not exist. Build it: `parallax setup`."
        )
    ops = tf.load_op_library(str(library))
    if "gradients" not in inspect.signature(ops.parallax_update_only_rows).parameters:
        raise TransformError(f"{library} is older than Parallax. Build it again: `parallax setup`.")
    return ops


def states_of(update: NodeDef) -> list[str]:
    """The handles that an update reads, the table's first."""
    return [name for name in update.input if not name.startswith("^")][FIRST_STATE:]
