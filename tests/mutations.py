"""Mutations of files, each drawn from a seed: a test that fails names the seed, and that alone brings it back."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

ODD = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 10**6, 2**31, 2**53, 2**64, 10**30, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-320, 1e15, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", "x", "none", "ps", "alltoall", "float32", "<script>alert(1)</script>", "a\x1b[2Jb", "\u202egpj", "\x00", "1"),
    *([], {}, [0], [-1], [[1]], [10**30], {"a": 1}, ["x"] * 3),
)
"""Values to put where others stood."""


def mutated_bytes(content: bytes, seed: int) -> bytes:
    """A few bytes changed, put in, cut out, or copied from elsewhere."""
    draw, found = random.Random(seed), bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found)) if found else 0
        kind = draw.randrange(4) if found else 1
        if kind == 0:
            found[at] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
        elif kind == 1:
            found[at : at + draw.randint(1, 8)] = draw.randbytes(draw.randint(0, 8))
        elif kind == 2:
            found[at] ^= 1 << draw.randrange(8)
        else:
            other = draw.randrange(len(found))
            found[at : at + 4] = found[other : other + 4]
    return bytes(found)


def mutated_json(text: str, seed: int) -> str:
    """Values replaced, left out, doubled or exchanged; every eighth time, the text's bytes mutated."""
    draw = random.Random(seed)
    if seed % 8 == 0:
        return mutated_bytes(text.encode(), seed).decode(errors="replace")
    root = [json.loads(text)]
    for _ in range(draw.randint(1, 2)):
        places = list(_places(root))
        holder, key = draw.choice(places)
        kind = draw.randrange(8)
        if kind == 0 and holder is not root:
            del holder[key]
        elif kind == 1 and isinstance(holder, list) and holder is not root:
            holder.insert(key, holder[key])
        elif kind == 2 and isinstance(holder, dict):
            holder[draw.choice(("odd", "a\x1b[31m", "<b>"))] = copy.deepcopy(draw.choice(ODD))
        elif kind == 3:
            other, name = draw.choice(places)
            holder[key] = json.loads(json.dumps(other[name]))
        elif kind == 4 and isinstance(holder[key], int | float):
            holder[key] = draw.choice((-holder[key], holder[key] + 1, holder[key] * 1000, holder[key] - 1))
        else:
            holder[key] = copy.deepcopy(draw.choice(ODD))
    return json.dumps(root[0])


def _places(value: Any) -> Any:
    """(holder, key) of every value within a value; leaves are as likely as what holds them."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, held in list(items):
        yield value, key
        if isinstance(held, dict | list):
            yield from _places(held)
