"""Declares settings: a field has a default, a rule, and the command-line options that set it.

From this declaration, and a field of the same name in `environment.Settings` where there is an option, follow the check
at assignment, `parallax COMMAND --the-field`, the environment variable PARALLAX_THE_FIELD, and the lists of
docs/config.md and docs/command_line.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import Field, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from parallax.base.errors import ConfigError
from parallax.settings import checks

RUN, PLAN, VERIFY, CHECK, CALIBRATE, DOCTOR, PROFILE, SHOW, DIFF, SIMULATE, CHECKPOINT = (
    "run",
    "plan",
    "verify",
    "check",
    "calibrate",
    "doctor",
    "profile",
    "show",
    "diff",
    "simulate",
    "checkpoint",
)
OF_SCRIPTS = (RUN, PLAN, VERIFY, CHECK, PROFILE, SIMULATE)
"""The commands that run a script."""

_PREFIX = "PARALLAX_"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of some commands, spelled as its setting.

    Attributes:
        commands: that have it.
        help: its help text there.
        metavar: placeholder of its value.
        also: other spellings.
        choices: the only values; empty for any.
        parse: converts a word to a value.
        const: the value of an option without an argument, which is spelled `--no-` for False; None for one with an
            argument.
        repeats: whether it may be given several times; the words are then joined by spaces.
        excludes: name of a group of mutually exclusive options; empty for none.
    """

    commands: tuple[str, ...]
    help: str
    metavar: str | None = None
    also: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] = str
    const: Any = None
    repeats: bool = False
    excludes: str = ""

    def spellings(self, setting: str) -> tuple[str, ...]:
        """The spellings that name it on the command line: short ones, the setting's own, and others."""
        short = [word for word in self.also if not word.startswith("--")]
        return (*short, self.spell(setting), *(word for word in self.also if word not in short))

    def spell(self, setting: str) -> str:
        """The option spelled like a setting."""
        return f"--{'no-' if self.const is False else ''}{setting.replace('_', '-')}"

    def add_to(self, parser: argparse._ActionsContainer, setting: str) -> None:
        """Adds it to an argparse parser, or a group of one."""
        keywords: dict[str, Any] = {"dest": setting, "help": self.help}
        if self.const is not None:
            keywords |= {"action": "store_const", "const": self.const}
        else:
            keywords |= {"type": self.parse, "metavar": self.metavar, "choices": self.choices or None}
        if self.repeats:
            keywords["action"] = "append"
        parser.add_argument(*self.spellings(setting), **keywords)


def setting(default: Any, *options: Option, rule: Callable[[str, Any], Any] | None = None, name: str = "") -> Any:
    """A field of a dataclass of settings.

    Args:
        default: its default; a type is called for a new one each time.
        options: the command-line options that set it.
        rule: returns the normalized value, or raises a ConfigError that states the violated rule.
        name: of the setting; empty for the field's.
    """
    metadata = {"options": options, "rule": rule, "name": name}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def part(kind: type) -> Any:
    """A field that is itself a dataclass of settings; None stands for its defaults."""
    return setting(kind, rule=partial(checks.instance_of, kind=kind))


def options_of(declared: Field[Any]) -> tuple[Option, ...]:
    """The options that set a field."""
    declared_options: tuple[Option, ...] = declared.metadata.get("options", ())
    return declared_options


def rule_of(declared: Field[Any]) -> Callable[[str, Any], Any]:
    """The rule of a field."""
    rule: Callable[[str, Any], Any] = declared.metadata["rule"]
    return rule


def name_of(declared: Field[Any]) -> str:
    """The name of a setting, on the command line and in the environment."""
    return declared.metadata.get("name") or declared.name


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return f"{_PREFIX}{setting.upper()}"


def value_of(setting: str, kind: type, text: str) -> Any:
    """Parses the value of an environment variable for a setting.

    Args:
        setting: its name.
        kind: type of its values.
        text: the variable's value.

    Raises:
        ConfigError: when the value is invalid.
    """
    try:
        return text == str(True) if kind is bool else kind(text)
    except ValueError as error:
        raise ConfigError(
            f"The environment variable {variable_of(setting)} has an invalid value: {error}. Unset it or set a valid "
            "value."
        ) from error


def positive(text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def absolute(file: str) -> str:
    """An absolute path, which does not depend on the script's working folder."""
    return str(Path(file).absolute())
