"""Merges settings: the command line and the environment override the script's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass, replace
from typing import Any, TypeVar

from parallax.settings.config import Config
from parallax.settings.environment import Settings
from parallax.settings.options import Option, name_of, options_of

_Part = TypeVar("_Part")


def merge_settings(config: _Part, requested: Settings) -> _Part:
    """Returns a configuration with the command line's or the environment's values of its settings.

    Args:
        config: a Config, or a part of one.
        requested: the overriding settings.

    Raises:
        ConfigError: when the result violates a rule of the configuration.
    """
    changes = {}
    for declared in fields(config):  # type: ignore[arg-type]
        value = getattr(config, declared.name)
        requested_value = getattr(requested, name_of(declared)) if options_of(declared) else None
        if requested_value is not None:
            changes[declared.name] = requested_value
        elif is_dataclass(value) and (part := merge_settings(value, requested)) is not value:
            changes[declared.name] = part
    return replace(config, **changes) if changes else config  # type: ignore[type-var]


def options_by_setting() -> dict[str, tuple[Option, ...]]:
    """All options of the command line that are settings, by the field of `Settings`, in field order."""
    of_config = {name_of(declared): options_of(declared) for declared in _declared_in(Config())}
    return {declared.name: options_of(declared) or of_config.get(declared.name, ()) for declared in fields(Settings)}


def _declared_in(part: Any) -> Iterator[Field[Any]]:
    """The fields with options of a configuration and of its parts."""
    for declared in fields(part):
        if options_of(declared):
            yield declared
        elif is_dataclass(value := getattr(part, declared.name)):
            yield from _declared_in(value)
