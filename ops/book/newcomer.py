"""A newcomer's path: follows the README and the first pages in a clean clone of the last commit.

The README's first command makes the environment in the clone and runs the demo. Then come the README's other commands,
the quick start, which changes a route by the configuration and causes an error, and the page on troubles. All results
must be as written.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from ops.book.pages import ROOT

FIRST_COMMAND = ("make", "demo")
PAGES = ("README.md", "docs/quick_start.md", "docs/troubleshooting.md")


def newcomer(environment: Path | None, slow: bool) -> None:
    """Follows the path.

    Args:
        environment: a virtual environment to use; None makes one in the clone, as in the README.
        slow: whether to run the slow commands of the pages too.

    Raises:
        subprocess.CalledProcessError: a command failed; it has printed the reason.
    """
    with tempfile.TemporaryDirectory(prefix="parallax-newcomer-") as folder:
        clone = Path(folder) / "parallax"
        _do(["git", "clone", "--quiet", str(ROOT), str(clone)], Path(folder), os.environ)
        if environment is None:
            _do(list(FIRST_COMMAND), clone, os.environ)
            environment = clone / ".venv"
        active = {
            **os.environ,
            "PATH": os.pathsep.join([str(environment.absolute() / "bin"), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": str(clone),
            "VIRTUAL_ENV": str(environment.absolute()),
        }
        for page in PAGES:
            _do(["python", "-m", "ops.book", "follow", "--here", *(["--slow"] if slow else []), page], clone, active)
    print("All results are as written.")


def _do(argv: list[str], folder: Path, environment: os._Environ[str] | dict[str, str]) -> None:
    print(" ".join(argv), flush=True)
    subprocess.run(argv, cwd=folder, env=dict(environment), check=True)
