"""Writes the files that options of the command line name."""

from __future__ import annotations

from pathlib import Path

from parallax.errors import ConfigError


def write_file(path: str, text: str, option: str) -> None:
    """Writes a file that an option of the command line names.

    Raises:
        ConfigError: when it cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} must name a file that can be written: {path}: {error.strerror}.") from error
