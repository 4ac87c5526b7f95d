"""Whether the code can say a text: it must be made, for the most part, of literals of the source, each one whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ops.book.pages import ROOT

LEAST = 10
"""Characters of a literal that counts; shorter ones stand in many texts."""

SHARE = 0.5
"""Of a text's characters; the rest is what was filled in. A literal with one letter changed does not count at all."""

_QUOTED = re.compile(r"^```text error\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_PLACE = re.compile(r"\{\w+\}")


def quoted_errors(page: Path) -> list[str]:
    """The error texts of a page that are marked as such."""
    return _QUOTED.findall((ROOT / page).read_text(encoding="utf-8"))


def can_be_printed(text: str) -> bool:
    """Whether the code can say this text."""
    rest = text
    for literal in _literals():
        rest = rest.replace(literal, "\n")
    return len(rest.replace("\n", "").replace("...", "")) <= (1 - SHARE) * len(text.replace("...", ""))


@cache
def _literals() -> tuple[str, ...]:
    """What stands between the places of all texts of the package, the longest first."""
    found: set[str] = set()
    for file in (ROOT / "parallax").rglob("*.py"):
        found.update(_texts(ast.parse(file.read_text(encoding="utf-8"))))
    return tuple(sorted((text for text in found if len(text) >= LEAST), key=lambda text: (-len(text), text)))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # parts of f-strings are among them
            yield from _PLACE.split(node.value)
