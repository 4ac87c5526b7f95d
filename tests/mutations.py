"""Mutations of files, as strategies of Hypothesis, which makes the one that fails small, and says what it changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

_WORDS = st.sampled_from(
    ("none", "ps", "alltoall", "float32", "<script>alert(1)</script>", "a\x1b[2Jb", "\u202egpj", "\x00", "1", "")
)
_NUMBERS = st.integers() | st.sampled_from((10**6, 2**31, 2**53, 2**64, 10**30, 10**400)) | st.floats()
_LEAVES = st.none() | st.booleans() | _NUMBERS | _WORDS
_VALUES = (
    _LEAVES | st.lists(_LEAVES | st.lists(_LEAVES, max_size=1), max_size=3) | st.fixed_dictionaries({"a": _LEAVES})
)


def for_all(count: int, check: Callable[..., None], *drawn: st.SearchStrategy[Any]) -> None:
    """Calls `check` with so many draws, which are the same each time."""
    large = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
    how = settings(max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=large)
    how(given(*drawn)(check))()


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """A few bytes changed, put in, cut out, or copied from elsewhere."""
    found = bytearray(content)
    for at, gone, put in draw(st.lists(_edits(content), min_size=1, max_size=4)):
        note(f"{bytes(found[at : at + gone])!r} at {at} becomes {put!r}")
        found[at : at + gone] = put
    return bytes(found)


def _edits(content: bytes) -> st.SearchStrategy[tuple[int, int, bytes]]:
    """(place, how many bytes go, what comes instead)."""
    places = st.integers(0, len(content) - 1)
    flipped = st.builds(lambda at, bit: (at, 1, bytes([content[at] ^ 1 << bit])), places, st.integers(0, 7))
    copied = st.builds(lambda at, other: (at, 4, content[other : other + 4]), places, places)
    return st.tuples(places, st.integers(0, 8), st.binary(max_size=8)) | flipped | copied


def mutated_json(text: str) -> st.SearchStrategy[str]:
    """Values replaced, left out, doubled or exchanged; now and then the text's bytes mutated."""
    of_bytes = mutated_bytes(text.encode()).map(lambda found: found.decode(errors="replace"))
    return st.integers(0, 7).flatmap(lambda kind: of_bytes if kind == 7 else _with_other_values(text))


@st.composite
def _with_other_values(draw: st.DrawFn, text: str) -> str:
    root = [json.loads(text)]
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(root))
        holder, key = draw(st.sampled_from(places))
        kind = draw(
            st.sampled_from(("replaced", "replaced", "left out", "doubled", "added to", "exchanged", "altered"))
        )
        note(f"{key!r}, {holder[key]!r}: {kind}")
        if kind == "left out" and holder is not root:
            del holder[key]
        elif kind == "doubled" and isinstance(holder, list) and holder is not root:
            holder.insert(key, holder[key])
        elif kind == "added to" and isinstance(holder, dict):
            holder[draw(st.sampled_from(("odd", "a\x1b[31m", "<b>")))] = draw(_VALUES)
        elif kind == "exchanged":
            other, name = draw(st.sampled_from(places))
            holder[key] = copy.deepcopy(other[name])
        elif kind == "altered" and isinstance(holder[key], int | float):
            holder[key] = draw(st.sampled_from((-holder[key], holder[key] + 1, holder[key] * 1000, holder[key] - 1)))
        else:
            holder[key] = draw(_VALUES)
    return json.dumps(root[0])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of every value within a value; leaves are as likely as what holds them."""
    for key, held in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(held, dict | list):
            yield from _places(held)
