"""Parses a page of the book into the steps that a reader takes: files to write, lines to change, commands to run.

Steps are fenced blocks. The words after the fence determine their kind:

- `python file=train.py`, in any language: the block is that file.
- `diff file=train.py`: lines of that file; lines with `+` replace those with `-`.
- `sh`: commands, one a line; a backslash at the end of a line continues it on the next.
- `console`: a line that begins with `$` is a command, and the lines after it are its output on stdout and stderr
  together. It may print more between and around them. `...` stands for any text.

`<!-- needs: train.py of docs/quick_start.md -->` stands for a file of another page, in its first version there.

More words may follow: `status=1` is the exit status (default 0), `slow` marks commands that take long, and `about`
means that numbers differ between machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (Path("README.md"), *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(r"^```(\S+)([^\n]*)\n(.*?)^```$|^<!-- needs: (\S+) of (\S+) -->$", re.DOTALL | re.MULTILINE)

# In an escaped text.
_NUMBER = re.compile(r"\d[\d,]*(?:\\\.\d+)?")
_GAP = re.compile(r"(?:\\?[ -])+")


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file to write: its name and text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """Lines of a file, and their replacement; both with line ends."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        text: as it is typed.
        shown: the lines of its output that the page shows.
        status: its exit status.
        slow: whether it takes long.
        about: whether numbers may differ.
        place: page and line, for messages.
    """

    text: str
    shown: tuple[str, ...]
    status: int
    slow: bool
    about: bool
    place: str

    def missing(self, printed: str) -> str:
        """Returns the first line shown that is not printed after those before it; empty if all are."""
        lines = iter(printed.splitlines())
        for shown in self.shown:
            pattern = re.compile(_pattern(shown.strip(), self.about))
            if not any(pattern.fullmatch(line.strip()) for line in lines):
                return shown
        return ""


Step = WriteFile | ChangeFile | Command


def steps_of(text: str, name: str) -> Iterator[Step]:
    """Yields the steps of a page in order.

    Raises:
        ValueError: the words of a fence are not as described above.
    """
    for block in _BLOCK.finditer(text):
        if block[4]:
            yield file_of(Path(block[5]), block[4])
            continue
        kind, words, body = block[1], block[2].split(), block[3]
        line = text.count("\n", 0, block.start()) + 1
        named = dict(word.split("=", 1) for word in words if "=" in word)
        flags = [word for word in words if "=" not in word]
        if kind in ("sh", "console"):
            if set(flags) - {"slow", "about"} or set(named) - {"status"}:
                raise ValueError(f"{name}:{line}: unknown words after the fence: {' '.join(words)}")
            status = int(named.get("status", 0))
            for offset, command, shown in _commands(body, kind == "console"):
                place = f"{name}:{line + 1 + offset}"
                yield Command(command, shown, status, "slow" in flags, "about" in flags, place)
        elif "file" in named and kind == "diff":
            lines = body.splitlines(keepends=True)
            before, after = ("".join(row[1:] for row in lines if row[0] in kept) for kept in (" -", " +"))
            yield ChangeFile(named["file"], before, after)
        elif "file" in named:
            yield WriteFile(named["file"], body)


def file_of(page: Path, name: str) -> WriteFile:
    """Returns a file of a page in its first version."""
    steps = steps_of((ROOT / page).read_text(encoding="utf-8"), str(page))
    return next(step for step in steps if isinstance(step, WriteFile) and step.name == name)


def commands_of(page: Path) -> list[Command]:
    """Returns all commands of a page."""
    return [s for s in steps_of((ROOT / page).read_text(encoding="utf-8"), str(page)) if isinstance(s, Command)]


def _commands(body: str, is_console: bool) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yields for each command its first line in the block, its text, and the output shown."""
    lines = body.splitlines()
    number = 0
    while number < len(lines):
        start, shown = number, list[str]()
        number += 1
        line = lines[start].removeprefix("$ ") if is_console else lines[start]
        while line.endswith("\\"):
            line = f"{line[:-1].rstrip()} {lines[number].strip()}"
            number += 1
        while is_console and number < len(lines) and not lines[number].startswith("$ "):
            shown.append(lines[number])
            number += 1
        if command := re.sub(r"\s+#\s.*", "", line).strip():
            yield start, command, tuple(text for text in shown if text.strip() not in ("", "..."))


def _pattern(shown: str, about: bool) -> str:
    """Returns a regular expression for a line shown."""
    parts = [re.escape(part) for part in shown.split("...")]
    if about:
        parts = [_NUMBER.sub(r"[\\d,.]+", part) for part in parts]
        parts = [_GAP.sub("[ -]+", part) for part in parts]  # columns are as wide as the numbers in them
    return ".*".join(parts)
