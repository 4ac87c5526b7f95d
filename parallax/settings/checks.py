"""Checks single values that a user sets: each returns the normalized value, or raises an error with the remedy."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from parallax.base.errors import ConfigError
from parallax.base.strict import did_you_mean

_Settings = TypeVar("_Settings")


class UnknownSetting(ConfigError, TypeError):
    """A configuration is constructed with an unknown setting, or with one setting twice."""


def apply_rules(cls: type[_Settings]) -> type[_Settings]:
    """Makes a dataclass of settings apply the rules of its fields, and refuse unknown keywords, naming the nearest."""
    make = cls.__init__
    declared = [one for one in fields(cls) if one.init]  # type: ignore[arg-type]  # it is a dataclass
    rules = {one.name: one.metadata["rule"] for one in declared}
    by_position = [one.name for one in declared if not one.kw_only]

    @wraps(make)
    def __init__(self: _Settings, *args: Any, **settings: Any) -> None:
        for name in settings:
            if name not in rules:
                raise UnknownSetting(unknown_setting(cls.__name__, name, rules))
        if len(args) > len(by_position):
            raise UnknownSetting(
                f"{cls.__name__} takes {len(by_position)} positional settings ({', '.join(by_position)}), got "
                f"{len(args)}. Pass the others by keyword."
            )
        if twice := [name for name in by_position[: len(args)] if name in settings]:
            raise UnknownSetting(
                f"A setting of {cls.__name__} must be given once, got {twice[0]} by position and by keyword."
            )
        given = {**dict(zip(by_position, args, strict=False)), **settings}
        make(self, **{name: rules[name](name, value) for name, value in given.items()})

    cls.__init__ = __init__  # type: ignore[assignment]
    return cls


def unknown_setting(cls: str, name: str, names: Iterable[str]) -> str:
    """The error text about a setting that a class does not have."""
    known = list(names)
    near = did_you_mean(name, known)
    return f"{cls} has no setting {name!r}; its settings are {', '.join(known)}.{near}"


def optional(rule: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """The rule that also accepts None."""
    return lambda name, value: None if value is None else rule(name, value)


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an integer; True and False are not. NumPy's integers are not Python's, and do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def number_or_none(name: str, value: object, least: int = 1, most: int | None = None) -> int | None:
    """An integer within bounds, or None."""
    if value is None or (is_int(value) and value >= least and (most is None or value <= most)):
        return None if value is None else int(value)
    bounds = f"of at least {least}" if most is None else f"between {least} and {most}"
    raise ConfigError(f"{name} must be an integer {bounds}, or None, got {value!r}.")


def distinct_names(name: str, values: Sequence[object]) -> tuple[str, ...]:
    """Distinct names."""
    names = []
    for one in values:
        if not isinstance(one, str) or not one.strip():
            raise ConfigError(f"{name} must be a list of names, got {one!r} in it.")
        if one.strip() in names:
            raise ConfigError(f"{name} must not repeat a name, got {one!r} twice.")
        names.append(one.strip())
    return tuple(names)


def number(name: str, value: object, least: int = 1) -> int:
    """An integer that is at least `least`."""
    if not is_int(value) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}.")
    return int(value)


def between(
    name: str, value: object, least: float, most: float, has_least: bool = True, has_most: bool = True
) -> float:
    """A number between bounds, which may belong to the range or not."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if least < value < most or (value == least and has_least) or (value == most and has_most):
            return value
    low, high = f"{'at least' if has_least else 'above'} {least}", f"{'at most' if has_most else 'below'} {most}"
    raise ConfigError(f"{name} must be a number {low} and {high}, got {value!r}.")


def seconds(name: str, value: object) -> float:
    """Seconds above 0; infinity for ever."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{name} must be a number of seconds above 0 ({math.inf} for no limit), got {value!r}.")
    return value


def truth(name: str, value: object) -> bool:
    """True or False, and no other value that merely evaluates to one."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}.")
    return value


def path_or_none(name: str, value: object) -> Path | None:
    """A path, or None; an empty text, as from an empty flag, is None."""
    if value is None or value == "":
        return None
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} must be a path, or None, got {value!r}.")
    return Path(value)


def by_variable(name: str, value: Any, kind: Any, least: int | None = None) -> Mapping[str, Any]:
    """A mapping from variable names to `kind`; a copy."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping from variable names to values, got {value!r}.")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, kind) or isinstance(item, bool):
            raise ConfigError(f"{name} must map variable names to {kind.__name__}, got {key!r}: {item!r}.")
        if least is not None and item < least:
            raise ConfigError(f"{name} must map variable names to numbers of at least {least}, got {key!r}: {item!r}.")
    return dict(value)


def one_of(name: str, value: object, known: Sequence[str]) -> str:
    """One of a few words, spelled exactly."""
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
    return value


def instance_of(name: str, value: Any, kind: type) -> Any:
    """An instance of a type; None for its defaults."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be a parallax.{kind.__name__}, got {value!r}.")
    return value
