"""A newcomer's path: a clean clone of what is committed, and in it what the README and the first pages say.

In the clone the environment is made and the demo is run, as the README says. Then come the README's other commands, the
quick start, which changes a route by the configuration and makes an error, and the page on troubles. Everything must
come out as it is written.
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
    """Walks the path.

    Args:
        environment: a virtual environment to take; None makes one in the clone, as the README says.
        slow: whether to run the slow commands of the pages too.

    Raises:
        subprocess.CalledProcessError: a command fails; it has printed why.
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
    print("All is as written.")


def _do(argv: list[str], folder: Path, environment: os._Environ[str] | dict[str, str]) -> None:
    print(" ".join(argv), flush=True)
    subprocess.run(argv, cwd=folder, env=dict(environment), check=True)
