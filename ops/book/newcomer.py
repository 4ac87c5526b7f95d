"""A newcomer's path: a clean clone of what is committed, and in it what the README and the first pages say.

In the clone the environment is made and the demo is run, as the README says. Then come the README's other commands and
the quick start, which changes a route by its configuration and makes an error, and the errors of the page
on troubles. Everything must come out as it is written.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ops.book.pages import ROOT

FIRST_COMMAND = ("make", "demo")
PAGES = ("README.md", "docs/quick_start.md", "docs/troubleshooting.md")
_FOLLOW = "import sys; from ops.book.newcomer import follow_here; follow_here(*sys.argv[1:])"


def newcomer(environment: Path | None) -> None:
    """Walks the path; the slow commands of the pages are left to the tests.

    Args:
        environment: a virtual environment to take; None makes one in the clone, as the README says.

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
            _do(["python", "-c", _FOLLOW, page], clone, active)
    print("All is as written.")


def follow_here(page: str) -> None:
    """In the clone: does what one of its pages says, there."""
    from ops.book.follow import NotAsWritten, follow, reader_environment

    try:
        follow(Path(page), Path.cwd(), reader_environment(), slow=False, say=True)
    except NotAsWritten as error:
        sys.exit(str(error))


def _do(argv: list[str], folder: Path, environment: os._Environ[str] | dict[str, str]) -> None:
    print(" ".join(argv[:2]), flush=True)
    subprocess.run(argv, cwd=folder, env=dict(environment), check=True)
