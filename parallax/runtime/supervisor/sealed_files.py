"""Passes values between processes of one command, in files or lines of output: sealed, and typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from parallax.base.errors import LaunchError
from parallax.runtime.supervisor.control import DamagedMessage, read_sealed, seal

_Value = TypeVar("_Value")


def sealed_value(value: object) -> bytes:
    """Returns the sealed line of a JSON value."""
    return seal(json.dumps(value).encode("ascii"))


def value_of(line: bytes, kind: type[_Value]) -> _Value:
    """Returns the value of a line that `sealed_value` made.

    Args:
        line: with or without its newline.
        kind: type of the value.

    Raises:
        DamagedMessage: the line is corrupted, or the value is of another type.
    """
    value: Any = read_sealed(line)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise DamagedMessage(str(error)) from error


def write_value(path: Path, value: object) -> None:
    """Writes a value to a file."""
    path.write_bytes(sealed_value(value))


def read_file_value(path: Path, kind: type[_Value]) -> _Value:
    """Reads the value that `write_value` wrote.

    Raises:
        LaunchError: the file is missing or corrupted.
    """
    try:
        return value_of(path.read_bytes(), kind)
    except (OSError, DamagedMessage) as error:
        raise LaunchError(
            f"{path}, which one process of this command hands over to another, is missing or damaged: {error}. "
            "Start the command again, and let nothing else write there."
        ) from error
