"""The command-line parser: options must be spelled out, and the error about an unknown one suggests the nearest."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from parallax.base.strict import did_you_mean

_NUMBER = re.compile(r"-\d")


class CommandParser(argparse.ArgumentParser):
    """An argument parser without abbreviations; the parsers of its commands are of the same class.

    An unknown option ends the process before any other check, with the usage of its own command: argparse would mistake
    the next word for the script, and would show the usage of the main command.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **{**keywords, "allow_abbrev": False})

    def parse_known_args(  # type: ignore[override]  # argparse's overloads are of the namespace's type
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parses as argparse's method; but an unknown option, or an extra argument, is an error here."""
        words = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown(words)
        found, left = super().parse_known_args(words, namespace)
        if left:
            self.error(f"unexpected arguments: {' '.join(left)}")
        return found, left

    def _refuse_unknown(self, words: Iterable[str]) -> None:
        known = self._option_string_actions
        positional = [action for action in self._actions if not action.option_strings]
        waiting = iter(words)
        for word in waiting:
            if word == "--":
                return
            if not word.startswith("-") or word == "-" or _NUMBER.match(word):
                filled, positional = positional[:1], positional[1:]
                if any(a.nargs == argparse.PARSER for a in filled) or (
                    positional and positional[0].nargs == argparse.REMAINDER
                ):
                    return  # the rest belongs to a command, or to a script
                continue
            name, equals, _ = word.partition("=")
            if not word.startswith("--") and word[:2] in known:
                name, equals = word[:2], word[2:]
            if name not in known:
                self._refuse(name, known)
            if known[name].nargs == argparse.REMAINDER:  # `-m MODULE ARGS...`
                return
            if not equals and known[name].nargs is None:
                next(waiting, None)  # its value

    def _refuse(self, name: str, known: Iterable[str]) -> NoReturn:
        near = did_you_mean(name, [option for option in known if option.startswith("--")])
        self.error(f"unknown option {name}.{near}" if near else f"unknown option {name}; --help lists the options")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is not among an argument's choices, and suggests the nearest."""
        if action.choices is not None and value not in action.choices:
            known = ", ".join(map(str, action.choices))
            near = did_you_mean(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"must be one of {known}, got {value!r}.{near}")
