"""Jobs that a benchmark runs on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

_LAST_LINES = 25


def printed_by(name: str, words: Sequence[str]) -> str:
    """Runs `python -m` with these words, and returns its output.

    Args:
        name: name of the benchmark, for the error.
        words: a module and its arguments.

    Raises:
        SystemExit: the command failed; the text has its last lines.
    """
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit("\n".join([f"{name}: the job failed:", *done.stdout.splitlines()[-_LAST_LINES:]]))
    return done.stdout
