"""Checks of single values that a user sets: each gives the value in its kept form, or says rule, value and remedy."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from parallax.errors import ConfigError


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number; True and False are none. NumPy's are not Python's, and count as none."""
    return isinstance(value, int) and not isinstance(value, bool)


def number_or_none(name: str, value: object, least: int = 1, most: int | None = None) -> int | None:
    """A whole number within bounds, or None."""
    if value is None or (is_int(value) and value >= least and (most is None or value <= most)):
        return None if value is None else int(value)
    bounds = f"from {least}" if most is None else f"from {least} to {most}"
    raise ConfigError(f"{name} must be a whole number {bounds}, or None, and {value!r} was given.")


def number(name: str, value: object, least: int = 1) -> int:
    """A whole number from `least`."""
    if not is_int(value) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least}, and {value!r} was given.")
    return int(value)


def seconds_or_none(name: str, value: object) -> float | None:
    """Seconds above 0, or None."""
    return None if value is None else seconds(name, value)


def seconds(name: str, value: object) -> float:
    """Seconds above 0; infinite ones for ever."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{name} must be seconds above 0 ({math.inf} for ever), not {value!r}.")
    return value


def truth(name: str, value: object) -> bool:
    """True or False, and nothing that only counts as such."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, and {value!r} was given.")
    return value


def path_or_none(name: str, value: object) -> Path | None:
    """A path, or None; flags that are left empty give an empty text, which is none."""
    if value is None or value == "":
        return None
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} must be a path, or None, and {value!r} was given.")
    return Path(value)


def by_variable(name: str, value: Any, wanted: Any, least: int | None = None) -> Mapping[str, Any]:
    """A mapping from variable names to `wanted`; a copy."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping from variable names, and {value!r} was given.")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, wanted) or isinstance(item, bool):
            raise ConfigError(f"{name} must map variable names to {wanted.__name__}, and holds {key!r}: {item!r}.")
        if least is not None and item < least:
            raise ConfigError(f"{name} must map variable names to numbers from {least}, and holds {key!r}: {item!r}.")
    return dict(value)


def one_of(name: str, value: object, known: Sequence[str]) -> str:
    """One of a few words, written as they are."""
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, and {value!r} was given.")
    return value


def instance_of(name: str, value: Any, wanted: type) -> Any:
    """A value of one type; None stands for its defaults."""
    if value is None:
        return wanted()
    if not isinstance(value, wanted):
        raise ConfigError(f"{name} must be a parallax.{wanted.__name__}, and {value!r} was given.")
    return value
