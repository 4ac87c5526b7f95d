"""Formats a model profile as text."""

from __future__ import annotations

from parallax.cluster.profiles import ModelProfile
from parallax.report.text import bytes_text, in_columns, pluralize


def profile_table(profile: ModelProfile, notes: tuple[str, ...] = ()) -> str:
    """The printed table of a model profile: mean rows per step, of one worker and of several."""
    sizes = [k for k, _ in profile.tables[0].joined_rows] if profile.tables else []
    header = ("table", "ids", *(f"rows of {k}" for k in sizes), "busiest owner")
    lines = [
        (t.name, f"{t.ids:.1f}", *(f"{rows:.1f}" for _, rows in t.joined_rows), f"{t.busiest_share:.2f} x the mean")
        for t in profile.tables
    ]
    text = [f"Profile of {pluralize(profile.steps, 'step')} ({profile.source}), graph {profile.graph[:12]}"]
    if lines:
        text += in_columns([header, *lines])
    if profile.compute_s is not None:
        text.append(f"A worker computes {profile.compute_s * 1000:.3g} ms in a step.")
    if profile.memory_bytes is not None:
        text.append(f"It uses {bytes_text(profile.memory_bytes)} in addition to variables and slots.")
    return "\n".join([*text, *(f"note: {note}" for note in notes)]) + "\n"
