"""The user's script: run as Python itself would run it, its errors shown without the frames around it."""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from parallax.environment import settings
from parallax.errors import ParallaxError
from parallax.runtime.random_state import AlikeUntilBuilt

_PACKAGE = str(Path(__file__).resolve().parents[1])


def run_script(words: Sequence[str]) -> None:
    """Runs a file, or `-m` and a module, with its arguments; `sys.argv` and `sys.path` are as the script expects them.

    Args:
        words: what would stand after `python`.
    """
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(words)
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))  # noqa: PTH100, PTH120  # as Python itself does
    runpy.run_path(words[0], run_name="__main__")


def error_text(error: BaseException) -> str:
    """What is shown of a script's failure: an error of Parallax with its place, any other as Python shows it."""
    if not isinstance(error, ParallaxError):
        return traceback_text(error).rstrip()
    place = _place_of(error)
    return f"{place}: parallax: {error}" if place else f"parallax: {error}"


def traceback_text(error: BaseException) -> str:
    """The traceback from the script's first line on."""
    chain = traceback.TracebackException.from_exception(error)
    frames = list(chain.stack)
    first = next((i for i, frame in enumerate(frames) if not _is_around(frame.filename)), 0)
    chain.stack = traceback.StackSummary.from_list(frames[first:])
    return "".join(chain.format())


def _place_of(error: BaseException) -> str:
    """`FILE:LINE` of the script's own line that led to an error; empty when there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = itertools.dropwhile(lambda frame: _is_around(frame.filename), frames)
    own = list(itertools.takewhile(lambda frame: not _is_around(frame.filename), inner))
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _is_around(filename: str) -> bool:
    return filename in (runpy.__file__, "<frozen runpy>") or filename.startswith(_PACKAGE + os.sep)


def main() -> None:
    """Runs the script named in the arguments as the one process of a verification, without MPI."""
    from parallax.analysis import record

    record.install()
    if (seed := settings().script_seed) is not None:
        AlikeUntilBuilt(seed)
    try:
        run_script(sys.argv[1:])
    except Exception as error:  # whatever the script raises is shown, and ends it
        sys.stderr.write(f"{error_text(error)}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
