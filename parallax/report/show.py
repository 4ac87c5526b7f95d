"""How the result of a command, or of a job's work during training, is shown: on stdout, at once."""

from __future__ import annotations

import sys


def show(text: str) -> None:
    """Writes `text`, which ends its last line itself, to stdout; through a pipe it does not wait for what follows."""
    sys.stdout.write(text)
    sys.stdout.flush()
