"""Minimal SVG for the pictures: shapes with tooltips, and axis scales.

All of a page is `Markup`: constants, into which values are inserted by `format` or `join`, which escape everything that
is not Markup. So text from a plan never becomes an element, even if a caller forgets to escape it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from markupsafe import Markup

COLOUR_BY_ROUTE = {
    "allreduce": "#2f6db5",
    "allgather": "#d98324",
    "alltoall": "#2a8f68",
    "ps": "#8257ad",
    "none": "#a9a9a9",
}
INK, FAINT, PALE = "#333333", "#8a8a8a", "#e4e4e4"
NONE = Markup()
LETTER = 6.6
"""Average width of a letter of 12 pixels; used to reserve space."""


def svg(width: float, height: float, name: str, words: str, parts: Iterable[Markup]) -> Markup:
    """A picture that fills the available width, up to its own width.

    Args:
        width: in pixels.
        height: in pixels.
        name: its class, by which a style or a test finds it.
        words: its description, for users who cannot see it.
        parts: its shapes.
    """
    return Markup(
        '<svg class="{name}" viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px" role="img" '
        'aria-label="{words}" xmlns="http://www.w3.org/2000/svg">{parts}</svg>'
    ).format(name=name, width=width, height=height, words=words, parts=Markup().join(parts))


def rect(x: float, y: float, width: float, height: float, fill: str, tip: str = "", more: Markup = NONE) -> Markup:
    """A box; never too narrow to be visible."""
    title = Markup("<title>{}</title>").format(tip) if tip else NONE
    return Markup('<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="{}"{}>{}</rect>').format(
        x, y, max(width, 0.75), height, fill, more, title
    )


def text(x: float, y: float, words: str, anchor: str = "start", fill: str = INK, size: float = 12) -> Markup:
    """A line of text; `y` is its baseline."""
    return Markup('<text x="{:.2f}" y="{:.2f}" text-anchor="{}" fill="{}" font-size="{:g}">{}</text>').format(
        x, y, anchor, fill, size, words
    )


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = FAINT, more: Markup = NONE) -> Markup:
    """A straight line."""
    return Markup('<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" stroke="{}"{}/>').format(
        x1, y1, x2, y2, stroke, more
    )


def shorten(words: str, letters: int) -> str:
    """Shortens text to at most `letters` letters by omitting its middle."""
    if len(words) <= letters:
        return words
    kept_letters = max(2, letters - 1)
    return f"{words[: (kept_letters + 1) // 2]}\u2026{words[-(kept_letters // 2) :]}"


_LEAST = 1e-300
"""Below this, powers of ten are not exact."""


def ticks(most: float, count: int = 6) -> list[float]:
    """Round values from 0 up to `most`, about as many as wanted."""
    raw = most / count
    if not raw > _LEAST:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    return [step * n for n in range(int(most / step * (1 + 1e-9)) + 1)]


def powers(low: float, high: float) -> list[float]:
    """The powers of ten between two positive values, inclusive."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**n for n in range(first, last + 1)]


def legend(x: float, y: float, entries: Iterable[tuple[str, str]]) -> Markup:
    """Coloured squares with labels, in one line."""
    parts = []
    for words, fill in entries:
        parts += [rect(x, y - 9, 10, 10, fill), text(x + 15, y, words)]
        x += 34 + LETTER * len(words)
    return Markup().join(parts)
