"""`parallax setup`: builds in an environment what the package's wheel cannot contain."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from parallax.base.errors import LaunchError
from parallax.base.setup.libraries import build_libraries, horovod_argv, horovod_environment, run_command

_TOOLS = ("cc", "g++", "make")
_HAS_NO_TENSORFLOW = (
    "Libraries are built against TensorFlow, and this Python ({python}) has none. Install one: pip install "
    "'parallax[cpu]', or 'parallax[gpu]'."
)
_HAS_NO_TOOLS = "Libraries are compiled here, and this machine has no {tools}. Install a C++ compiler and make."
_HAS_NO_BUILD = "Horovod is compiled with packages of its build. Install them: pip install 'parallax[build]'."


def set_up() -> int:
    """Builds the libraries, and installs Horovod if it is missing or lacks TensorFlow; returns the exit status.

    Raises:
        LaunchError: a prerequisite is missing.
    """
    folder, began_s = Path(sys.prefix), time.monotonic()
    if find_spec("tensorflow") is None:
        raise LaunchError(_HAS_NO_TENSORFLOW.format(python=sys.executable))
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise LaunchError(_HAS_NO_TOOLS.format(tools=" and no ".join(missing)))
    _say("building the project's libraries")
    build_libraries(folder)
    if not _has_horovod():
        if any(find_spec(name) is None for name in ("cmake", "packaging", "setuptools", "wheel")):
            raise LaunchError(_HAS_NO_BUILD)
        _say("compiling Horovod (some two minutes)")
        run_command(horovod_argv(folder), horovod_environment(folder))
    _say(f"done in {time.monotonic() - began_s:.0f} s; `parallax doctor` looks at the machines")
    return 0


def _has_horovod() -> bool:
    """Whether Horovod works with TensorFlow here."""
    argv = [sys.executable, "-c", "import horovod.tensorflow"]
    return subprocess.run(argv, capture_output=True, env={**os.environ, "OPAL_PREFIX": sys.prefix}).returncode == 0


def _say(text: str) -> None:
    sys.stdout.write(f"setup: {text}\n")
    sys.stdout.flush()
