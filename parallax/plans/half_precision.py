"""Half precision on the wire: the element type in which rows and gradients travel.

Only float32 is halved, right before it is sent, and converted back right after it is received: values, sums and slots
stay float32. Neither type is exact: an element within range is rounded by at most `ROUNDING[wire]` of itself, to the
nearest, once on each transfer. bfloat16 has the range of float32; float16 ends at 65504, and below 6e-8 there is only
zero.
"""

from __future__ import annotations

BFLOAT16, FLOAT16, FLOAT32 = "bfloat16", "float16", "float32"
WIRE_DTYPES = (BFLOAT16, FLOAT16)

ROUNDING = {BFLOAT16: 2.0**-8, FLOAT16: 2.0**-11}
"""Unit roundoff: half the distance from 1 to the next representable value (8 and 11 significand bits)."""

_BYTES = {BFLOAT16: 2, FLOAT16: 2, FLOAT32: 4}


def rows_travel_as(dtype: str, wire: str | None) -> str:
    """The element type on the wire of rows that are only moved: by alltoall, allgather, and to and from servers."""
    return wire if wire and dtype == FLOAT32 else dtype


def sums_travel_as(dtype: str, wire: str | None) -> str:
    """The element type in which an all-reduce sums: its op adds float16 but not bfloat16."""
    if dtype == BFLOAT16:
        return FLOAT32
    return FLOAT16 if wire == FLOAT16 and dtype == FLOAT32 else dtype


def element_bytes(dtype: str, own_bytes: int, travels_as: str) -> int:
    """Bytes of an element on the wire; `own_bytes` where it is not converted."""
    return own_bytes if travels_as == dtype else _BYTES[travels_as]
