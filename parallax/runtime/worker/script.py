"""Runs the user's script as Python itself would, and shows its errors without the surrounding frames."""

from __future__ import annotations

import importlib.util
import itertools
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from parallax.base.errors import ConfigError, IdError, OtherGraphError, ParallaxError
from parallax.runtime.supervisor.framework_log import join_deprecations, quiet_import, write_lines_once
from parallax.runtime.worker.random_state import EqualUntilBuilt
from parallax.settings.environment import framework_level, settings

MODULE = "-m"
"""Precedes the name of a module that replaces a script."""

_PACKAGE = str(Path(__file__).resolve().parents[2])


def run_script(words: Sequence[str]) -> None:
    """Runs a file, or `-m` and a module, with its arguments; `sys.argv` and `sys.path` are as the script expects them.

    Args:
        words: the arguments after `python`.

    Raises:
        ConfigError: there is no such module, or it is a package that cannot be run.
    """
    if words[0] == MODULE:
        sys.argv = list(words[1:])
        sys.path[0] = str(Path.cwd())
        _check_module(words[1])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(words)
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))  # noqa: PTH100, PTH120  # as Python itself does
    runpy.run_path(words[0], run_name="__main__")


def mentions_keras(words: Sequence[str]) -> bool:
    """Whether a script's file contains Keras's name; nothing is imported or run.

    Args:
        words: as for `run_script`.
    """
    if words[0] != MODULE:
        paths = [Path(words[0])]
    else:
        name = words[1].replace(".", os.sep)
        paths = [Path(folder) / name for folder in [str(Path.cwd()), *sys.path]]
        paths = [path for one in paths for path in (one.with_name(f"{one.name}.py"), one / "__main__.py")]
    script = next((path for path in paths if path.is_file()), None)
    return script is not None and b"keras" in script.read_bytes()


def _check_module(name: str) -> None:
    """Refuses a module that Python does not find; errors of the module itself are passed on."""
    missing = name
    try:
        spec = importlib.util.find_spec(missing)  # imports its parent packages
        if spec is not None and spec.submodule_search_locations is not None:
            missing = f"{name}.__main__"
            spec = importlib.util.find_spec(missing)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    if spec is None:
        raise ConfigError(
            f"{MODULE} takes the name of a module that can be imported from {sys.path[0]} or PYTHONPATH, and there is "
            f"no module {missing!r}. Start the job in the folder that contains it. To run a file, leave out {MODULE}."
        )


def error_text(error: BaseException) -> str:
    """The message about a script's failure: an error of Parallax with its place, any other as Python shows it."""
    if not isinstance(error, ParallaxError):
        return traceback_text(error).rstrip()
    place = _place_of(error)
    return f"{place}: parallax: {error}" if place else f"parallax: {error}"


def show_errors_briefly() -> None:
    """Makes Python show an uncaught error of Parallax as `error_text` does, unless an exception hook is already set."""
    if sys.excepthook is not sys.__excepthook__:
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, ParallaxError):
            sys.stderr.write(f"{error_text(error)}\n")
        else:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = show


def what_text(error: BaseException) -> str:
    """An error's kind and text without its place, which identify ranks that failed alike."""
    if isinstance(error, SystemExit):
        return f"exit: {error.code}"
    if isinstance(error, OtherGraphError):  # of graphs that all differ from the launcher's, one is enough
        return OtherGraphError.__name__
    if isinstance(error, IdError):
        return error.what
    if isinstance(error, ParallaxError):
        return str(error)
    return f"{type(error).__name__}: {getattr(error, 'message', None) or error}"


def traceback_text(error: BaseException) -> str:
    """The traceback from the script's first line on; for an error of the graph, up to its last line.

    TensorFlow raises an error of the graph twice, the second time with a longer text, below a dozen frames of its own.
    """
    chain = traceback.TracebackException.from_exception(error)
    frames = list(chain.stack)
    first = next((i for i, frame in enumerate(frames) if not _is_around(frame.filename)), 0)
    end = len(frames)
    if _is_of_graph(error):
        end = max((i + 1 for i, frame in enumerate(frames) if not _is_below(frame.filename)), default=end)
        if type(error.__context__) is type(error):
            chain.__context__ = None
    chain.stack = traceback.StackSummary.from_list(frames[first:end])
    return "".join(chain.format())


def _place_of(error: BaseException) -> str:
    """`FILE:LINE` of the script's own line that led to an error; empty when there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = itertools.dropwhile(lambda frame: _is_around(frame.filename), frames)
    script_frames = list(itertools.takewhile(lambda frame: not _is_around(frame.filename), inner))
    return f"{script_frames[-1].filename}:{script_frames[-1].lineno}" if script_frames else ""


def _is_of_graph(error: BaseException) -> bool:
    """Whether an op of a graph has failed; checked by name, because this process may be without TensorFlow."""
    return any(c.__name__ == "OpError" and c.__module__.startswith("tensorflow.") for c in type(error).__mro__)


def _is_below(filename: str) -> bool:
    """Whether a frame is Parallax's or TensorFlow's."""
    return _is_around(filename) or f"{os.sep}tensorflow{os.sep}python{os.sep}" in filename


def _is_around(filename: str) -> bool:
    return filename in (runpy.__file__, "<frozen runpy>") or filename.startswith(_PACKAGE + os.sep)


def main() -> None:
    """Runs the script named in the arguments as the one process of a verification, without MPI."""
    shown_from = framework_level()
    with quiet_import(shown_from):
        from parallax.analysis.reading.construction import record

        record.install()
    join_deprecations(shown_from)
    write_lines_once()
    if (seed := settings().script_seed) is not None:
        EqualUntilBuilt(seed)
    try:
        run_script(sys.argv[1:])
    except Exception as error:  # a script may raise anything: it is shown as Python shows it, with status 1
        sys.stderr.write(f"{error_text(error)}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
