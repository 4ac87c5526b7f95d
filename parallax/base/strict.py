"""Checks values from outside: files are read with types and bounds checked, and names are shown as plain text.

The annotations of a dataclass's fields define what its file may contain: `Count`, `Text` and the others here. Anything
else is refused when the file is read, so no later stage sees it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

_Value = TypeVar("_Value")

LARGEST = 2**53
"""The largest integer: floats, and all JSON readers, represent integers exactly up to here."""

Text = Annotated[str, Meta(max_length=100_000, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$")]
"""Text or a name, without characters that move a terminal's cursor, change its colours or the direction of text."""

Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
Finite = Annotated[float, Meta(ge=-1e15, le=1e15)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
"""Seconds, rows or bytes: at least 0, and finite."""

_SHOWN = 60
"""The maximum number of a received value's characters in a message."""


def shown(text: object) -> str:
    """A name or text from a file, a graph or another process, for display: control characters are escaped."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?` with the nearest of the known words; empty if none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def read_json(text: str, error_of: type[Exception], name: str, what: str) -> dict[str, Any]:
    """Parses a JSON object.

    Args:
        text: of the file.
        error_of: the exception class to raise.
        name: the file's name, for messages.
        what: its description, such as `a plan file`.

    Raises:
        error_of: when it is not a JSON object; the message has the line.
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise error_of(
            f"{shown(name)}:{error.lineno}: {what} must be JSON, and this line is invalid: {error.msg}."
        ) from error
    except (RecursionError, ValueError) as error:  # too deep, or a number with too many digits
        raise error_of(f"{shown(name)}: {what} must be valid JSON: {error}.") from error
    return raw if isinstance(raw, dict) else {}


def checked_value(raw: Mapping[str, Any], kind: type[_Value]) -> _Value:
    """Builds a dataclass from JSON values, with the types and bounds of its field annotations.

    Raises:
        ValueError: names the place in the file, and the value found there.
    """
    try:
        converted = msgspec.convert(raw, kind)
        _refuse_unknown(raw, msgspec.to_builtins(converted), "$")
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        where = f" at {shown(place.strip('`'))}" if place else ""
        raise ValueError(
            f"{message[:1].lower()}{message[1:]}{where}{_describe_received(raw, place.strip('`'))}"
        ) from error
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    return converted


def _refuse_unknown(raw: Any, made: Any, place: str) -> None:
    """Refuses values in the file that belong to no field."""
    if isinstance(raw, dict):
        for key, value in raw.items():
            if key not in made:
                raise msgspec.ValidationError(f"Unknown field {key!r:.{_SHOWN}} - at `{place}`")
            _refuse_unknown(value, made[key], f"{place}.{key}")
    elif isinstance(raw, list):
        for number, value in enumerate(raw):
            if isinstance(value, dict | list):
                _refuse_unknown(value, made[number], f"{place}[{number}]")


def _describe_received(raw: Any, place: str) -> str:
    """Describes the value at a place like `$.hosts[0]`; empty if the place does not identify it."""
    for field, number in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        try:
            raw = raw[field] if field else raw[int(number)]
        except (KeyError, IndexError, TypeError):
            return ""
    text = repr(raw)
    return f": {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}" if place else ""
