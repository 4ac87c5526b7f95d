"""Checks whether the code can print a text: whole literals of the source must make up most of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ops.book.pages import ROOT

LEAST = 10
"""Minimum length of a literal that counts; shorter ones occur in many texts."""

SHARE = 0.5
"""Minimum share of literals in a text's characters; the rest is filled in. A literal with one letter changed does not
count."""

_QUOTED = re.compile(r"^```text error\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_PLACE = re.compile(r"\{\w+\}")


def quoted_errors(page: Path) -> list[str]:
    """Returns the error texts that a page marks as such."""
    return _QUOTED.findall((ROOT / page).read_text(encoding="utf-8"))


def can_be_printed(text: str) -> bool:
    """Returns whether the code can print a text."""
    rest = text
    for literal in _literals():
        rest = rest.replace(literal, "\n")
    return len(rest.replace("\n", "").replace("...", "")) <= (1 - SHARE) * len(text.replace("...", ""))


@cache
def _literals() -> tuple[str, ...]:
    """Returns the parts between the placeholders of all texts of the package, the longest first."""
    found: set[str] = set()
    for file in (ROOT / "parallax").rglob("*.py"):
        found.update(_texts(ast.parse(file.read_text(encoding="utf-8"))))
    return tuple(sorted((text for text in found if len(text) >= LEAST), key=lambda text: (-len(text), text)))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # includes the parts of f-strings
            yield from _PLACE.split(node.value)
