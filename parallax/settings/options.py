"""Declares settings: a field has a default, a rule, and the command-line options that set it.

From this one declaration follow the check at assignment, `parallax COMMAND --the-field`, the environment variable
PARALLAX_THE_FIELD, and the tables of docs/config.md and docs/command_line.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any

from parallax.base.errors import ConfigError

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
        commands: which have it.
        help: what it does there.
        metavar: what stands for its value.
        also: other spellings.
        choices: the only values; empty for any.
        parse: gives the value of a word.
        const: the value of an option without a word, which is spelled `--no-` for False; None where a word is given.
        repeats: whether it may be given several times; the words are then joined by spaces.
        excludes: name of a group of which one option only may be given; empty for none.
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
        """The words of the command line that name it: short ones, the setting's own, and others."""
        short = [word for word in self.also if not word.startswith("--")]
        return (*short, self.spell(setting), *(word for word in self.also if word not in short))

    def spell(self, setting: str) -> str:
        """The option that has the name of a setting."""
        return f"--{'no-' if self.const is False else ''}{setting.replace('_', '-')}"

    def add_to(self, parser: argparse._ActionsContainer, setting: str) -> None:
        """Gives it to an argparse parser, or a group of one."""
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
        options: what sets it on the command line.
        rule: gives the kept form of a value, or says by a ConfigError which rule it breaks.
        name: of the setting; empty for the field's.
    """
    metadata = {"options": options, "rule": rule, "name": name}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(declared: Field[Any]) -> tuple[Option, ...]:
    """The options that set a field."""
    found: tuple[Option, ...] = declared.metadata.get("options", ())
    return found


def rule_of(declared: Field[Any]) -> Callable[[str, Any], Any]:
    """The rule of a field."""
    found: Callable[[str, Any], Any] = declared.metadata["rule"]
    return found


def name_of(declared: Field[Any]) -> str:
    """The name of a setting, as the command line and the environment have it."""
    return declared.metadata.get("name") or declared.name


def variable_of(setting: str) -> str:
    """The variable of the environment that has a setting."""
    return f"{_PREFIX}{setting.upper()}"


def value_of(setting: str, kind: type, text: str) -> Any:
    """The value that a variable of the environment has for a setting.

    Args:
        setting: its name.
        kind: type of its values.
        text: what the variable holds.

    Raises:
        ConfigError: when it holds something else.
    """
    try:
        return text == str(True) if kind is bool else kind(text)
    except ValueError as error:
        raise ConfigError(
            f"The environment variable {variable_of(setting)} has an invalid value: {error}. Unset it or set a valid "
            "value."
        ) from error


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def absolute(file: str) -> str:
    """A path that stays the same when the script changes its folder."""
    return str(Path(file).absolute())
