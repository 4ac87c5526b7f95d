"""Commands of Parallax on the first host of an emulated cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ops.lab.lab import Lab

_ROOT = Path(__file__).resolve().parents[2]
_LAST_LINES = 20


def output_of(lab: Lab, words: Sequence[str]) -> str:
    """Runs a command of Parallax on the first host, and returns its output.

    Raises:
        SystemExit: the command failed; the text has its last lines.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    done = lab.run_on(
        lab.names[0],
        [sys.executable, "-m", "parallax.entry.cli", *words],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        lines = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        sys.exit(f"parallax {words[0]} ended with exit status {done.returncode}\n{lines}")
    return str(done.stdout)
