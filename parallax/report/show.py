"""Prints the result of a command, or of a job's work during training, on stdout at once.

It also writes the files that command-line options name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parallax.base.errors import ConfigError


def show(text: str) -> None:
    """Writes `text`, which includes its last newline, to stdout, and flushes."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_file(path: str, text: str, option: str) -> None:
    """Writes a file that an option of the command line names.

    Raises:
        ConfigError: when it cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} must name a writable file: {path}: {error.strerror}.") from error
