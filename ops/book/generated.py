"""Generates parts of the documentation from the code: settings, keys of the resource file, the command line.

A part stands between two comments, `<!-- generated: NAME -->` and `<!-- end -->`, and is replaced as a whole.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ops.book.pages import ROOT
from parallax.cluster import resource_keys
from parallax.entry import command_line
from parallax.settings.config import Config
from parallax.settings.options import name_of, options_of
from parallax.settings.variables import Variable

_PART = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_generated(text: str) -> str:
    """Returns a page with all its generated parts updated from the code.

    Raises:
        ValueError: a part has an unknown name.
    """

    def part(match: re.Match[str]) -> str:
        if match[2] not in PARTS:
            raise ValueError(f"A generated part must be one of {', '.join(PARTS)}; received {match[2]!r}.")
        return f"{match[1]}\n{PARTS[match[2]]().strip()}\n\n{match[3]}"

    return _PART.sub(part, text)


def settings() -> str:
    """Returns a list for Config, and for each class that is a part of it or of a setting."""
    return "\n".join(_settings_of(cls) for cls in (*_parts(Config()), Variable))


def attributes_of(cls: type) -> dict[str, str]:
    """Returns the description of each attribute from the section `Attributes:` of a class's docstring.

    Raises:
        ValueError: a field of the dataclass has no description, or a description has no field.
    """
    doc = inspect.getdoc(cls) or ""
    section = re.search(r"^Attributes:\n((?:    .*\n?)+)", doc, re.MULTILINE)
    entries = re.split(r"^    (?=\w+: )", section[1] if section else "", flags=re.MULTILINE)
    found = {name: " ".join(text.split()) for name, _, text in (entry.partition(": ") for entry in entries if entry)}
    fields = [field.name for field in dataclasses.fields(cls)]
    if list(found) != fields:
        raise ValueError(f"{cls.__name__} has the fields {', '.join(fields)}, and describes {', '.join(found)}.")
    return found


def resource_keys_text() -> str:
    """Returns a table for each map of a resource file."""
    maps = {
        "Of the file": resource_keys.FILE_KEYS,
        "Of a host": resource_keys.HOST_KEYS,
        "Of `ssh`": resource_keys.SSH_KEYS,
        "Of `network`": resource_keys.NETWORK_KEYS,
    }
    head = ("key", "value", "meaning", "left out")
    return "\n".join(
        f"### {title}\n\n{_table(head, [(f'`{k.name}`', k.expected, k.meaning, k.otherwise) for k in keys])}"
        for title, keys in maps.items()
    )


def commands() -> str:
    """Returns the options that several commands of `parallax` share, and a section for each command or action."""
    parsers = list(_commands(command_line.command_parser()))
    names_by_row: dict[tuple[str, str], list[str]] = {}
    for name, parser in parsers:
        for row in _rows(parser):
            names_by_row.setdefault(row, []).append(f"`{name}`")
    shared = [row for row, names in names_by_row.items() if len(names) > 1 and row[0].startswith("`-")]
    rows_by_names: dict[str, list[tuple[str, str]]] = {}
    for row in shared:
        rows_by_names.setdefault(", ".join(names_by_row[row]), []).append(row)
    groups = [f"{names}:\n\n{_listed(rows)}" for names, rows in rows_by_names.items()]
    sections = [_command(name, parser, shared) for name, parser in parsers]
    return "\n".join(["## Options of several commands\n", *groups, *sections])


def _commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the commands of a parser by name; actions replace their command."""
    chosen = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if name and not chosen:
        yield name, parser
    for action in chosen:
        for word, inner in action.choices.items():
            yield from _commands(inner, f"{name} {word}".strip())


def race_results() -> str:
    """Returns a row for each race of docs/benchmarks.md: the step of Parallax, and the ratios of other steps to it."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    races = re.findall(r"^### (.+?) \(.*?\n\n(.*?)^\| system (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    usual = Counter(title.partition(", ")[2] for title, _, _ in races).most_common(1)[0][0]
    rows = []
    for title, _, table in races:
        head, _, *lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()]
        steps = {cells[0]: dict(zip(["system", *head], cells, strict=True)) for cells in lines}
        others = [f"{steps[name]['x slower']} x ({steps[name]['median step']})" for name in ("horovod", "tf-ps")]
        rows.append((title.removesuffix(f", {usual}"), steps["parallax"]["median step"], *others))
    columns = ("race", "Parallax", "Horovod", "TensorFlow's parameter servers")
    return f"On {usual}, unless named otherwise:\n\n{_table(columns, rows)}"


def _settings_of(cls: type) -> str:
    words = attributes_of(cls)
    summary = (inspect.getdoc(cls) or "").partition("\n\n")[0]
    rows = [
        (f"`{field.name}` (`{_default(field)}`{_kind(field)})", f"{words[field.name]}{_options(field)}")
        for field in dataclasses.fields(cls)
    ]
    return f"## {cls.__name__}\n\n{summary}\n\n{_listed(rows)}"


def _parts(config: Any) -> Iterator[type]:
    """Yields the class of a configuration, and those of its parts."""
    yield type(config)
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(value := getattr(config, field.name)):
            yield from _parts(value)


def _kind(field: dataclasses.Field[Any]) -> str:
    """Returns a field's type, unless its default shows it."""
    kind = str(field.type).removesuffix(" | None")
    return "" if field.default is not None else " or a path" if kind == "Path | str" else f" or `{kind}`"


def _options(field: dataclasses.Field[Any]) -> str:
    """Returns the option that sets a field, if its name differs from the field's."""
    spelled = [option.spell(name_of(field)) for option in options_of(field)[:1]]
    return "".join(f" Option: `{word}`." for word in spelled if word != f"--{field.name.replace('_', '-')}")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return f"{type(made).__name__}()" if dataclasses.is_dataclass(made) else repr(made)
    return repr(field.default)


def _command(name: str, parser: argparse.ArgumentParser, shared: Sequence[tuple[str, str]]) -> str:
    positional = [action for action in parser._actions if not action.option_strings]
    options = _options_in(parser)
    words = [f"parallax {name}", *(_usage(a) for a in options if a.required), *["[OPTIONS]"][: len(options)]]
    usage = " ".join(words + [_usage(action) for action in positional])
    parts = [f"## parallax {name}", str(parser.description), f"`{usage}`"]
    if own := [row for row in _rows(parser) if row not in shared and row not in _EVIDENT]:
        parts.append(_listed(own).rstrip())
    return "\n\n".join(parts) + "\n"


def _rows(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """Returns a command's options and arguments, each with its meaning."""
    positional = [action for action in parser._actions if not action.option_strings]
    return [_row(action, parser) for action in (*_options_in(parser), *positional)]


def _row(action: argparse.Action, parser: argparse.ArgumentParser) -> tuple[str, str]:
    return f"`{_option(action)}`", _meaning(action, parser)


def _options_in(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [a for a in parser._actions if a.option_strings and not isinstance(a, argparse._HelpAction)]


def _usage(action: argparse.Action) -> str:
    if action.option_strings:
        return _option(action).split(", ")[-1]
    return f"{_name(action)}..." if action.nargs == argparse.REMAINDER else _name(action)


def _option(action: argparse.Action) -> str:
    if not action.option_strings:
        return _name(action)
    value = "" if action.nargs == 0 else f" {_name(action)}"
    return ", ".join(action.option_strings) + value


def _name(action: argparse.Action) -> str:
    return str(action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper()))


def _meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    notes = [(action.help or "").replace("%%", "%")]
    for group in parser._mutually_exclusive_groups:
        if action in group._group_actions:
            later = group._group_actions[group._group_actions.index(action) + 1 :]
            notes += [f"not with `{other.option_strings[0]}`" for other in later]  # said once for a pair
    if action.required and action.option_strings:
        notes.append("required")
    if isinstance(action, argparse._AppendAction):
        notes.append("repeatable")
    return "; ".join(notes)


def _listed(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"- {name}: {meaning}\n" for name, meaning in rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in (head, *rows)]
    return "".join([lines[0], f"|{'---|' * len(head)}\n", *lines[1:]])


_EVIDENT = (
    ("`SCRIPT`", "the script, as it would be given to python"),
    ("`ARGS`", "its arguments"),
    ("`FOLDER`", "of checkpoints"),
    ("`{bash,zsh,tcsh}`", "the shell"),
    ("`A.json`", "a plan file"),
    ("`B.json`", "another"),
)
"""Rows that repeat the usage of a command."""

PARTS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "resource keys": resource_keys_text,
    "commands": commands,
    "race results": race_results,
}
