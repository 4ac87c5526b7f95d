"""Builds the project's native libraries, and Horovod, against the TensorFlow and MPI of an environment.

It imports only Python's standard library, so that it can run before there is an environment (ops/install/install.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "native"
HOROVOD = "horovod==0.28.1"
_KERNELS = "-l:libtensorflow_cc.so.2"


def build_libraries(folder: Path) -> None:
    """Builds the libraries into the `lib` folder of an environment.

    Args:
        folder: of the environment; its packages are installed.

    Raises:
        SystemExit: a compiler has failed.
    """
    for argv in (preload_argv(folder), _exchange_argv(folder), _rows_argv(folder), _frozen_argv(folder)):
        run_command(argv, {**os.environ, "OPAL_PREFIX": str(folder)})


def horovod_argv(folder: Path, packages: Sequence[str] = (HOROVOD,)) -> list[str]:
    """The command that installs Horovod, to be run in `horovod_environment`.

    Args:
        folder: of the environment; its packages are installed.
        packages: the requirement for pip.
    """
    python = str(folder / "bin" / "python")
    # No cache: a cached wheel is bound to the TensorFlow and to the folder that it was built with.
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    return [python, "-m", "pip", "install", *options, *packages]


def horovod_environment(folder: Path) -> dict[str, str]:
    """The environment variables that make Horovod compile against an environment's TensorFlow and MPI."""
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "OPAL_PREFIX": str(folder),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_GLOO": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "MAKEFLAGS": "-j2",
        "CMAKE_CXX_COMPILER_LAUNCHER": f"sh;{NATIVE / 'horovod_compiler.sh'}",
    }


def run_command(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Runs a command.

    Raises:
        SystemExit: it has failed.
    """
    check_done(subprocess.run(argv, env=dict(environment), check=False).returncode, argv)


def check_done(status: int, argv: Sequence[str]) -> None:
    """Ends the process if a command has failed.

    Raises:
        SystemExit: it has failed.
    """
    if status:
        sys.exit(f"Installation stopped (status {status}) at: {' '.join(argv)}")


def preload_argv(folder: Path) -> list[str]:
    """The command that builds the library that the ranks of a job preload."""
    library = str(folder / "lib" / "libparallax_preload.so")
    sources = map(str, sorted((NATIVE / "preload").glob("*.c")))
    return ["cc", "-O2", "-shared", "-fPIC", "-o", library, *sources, "-ldl"]


def _exchange_argv(folder: Path) -> list[str]:
    """The command that builds the ops for exchanges and random draws, against the environment's TensorFlow and MPI.

    TensorFlow's candidate samplers are in its kernel library.
    """
    library = folder / "lib" / "libparallax_exchange.so"
    built = ["-O2", "-shared", "-fPIC", "-w", "-Wl,-rpath,$ORIGIN", "-o", str(library)]
    return [str(folder / "bin" / "mpicxx"), *built, *_as_one_unit(NATIVE), *_tensorflow_flags(folder), _KERNELS]


def _rows_argv(folder: Path) -> list[str]:
    """The command that builds the ops that update rows of tables, against the environment's TensorFlow.

    The arithmetic is that of TensorFlow's packages, bit for bit: for AVX, without which TensorFlow does not start, and
    with a separate rounding for each product and sum. Loops are vectorized.
    """
    library = folder / "lib" / "libparallax_rows.so"
    arithmetic = ["-O3", "-mavx", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    built = ["-shared", "-fPIC", "-w", "-o", str(library)]
    return ["g++", *arithmetic, *built, *_as_one_unit(NATIVE / "rows"), *_tensorflow_flags(folder)]


def _frozen_argv(folder: Path) -> list[str]:
    """The command that builds the ops that freeze variables for checkpoints, against the environment's TensorFlow."""
    library = folder / "lib" / "libparallax_frozen.so"
    built = ["-O2", "-shared", "-fPIC", "-w", "-o", str(library)]
    return ["g++", *built, *_as_one_unit(NATIVE / "frozen"), *_tensorflow_flags(folder)]


def _as_one_unit(folder: Path) -> list[str]:
    """The C++ sources of a folder as one translation unit: most of its compile time goes to TensorFlow's headers."""
    sources = [word for source in sorted(folder.glob("*.cc")) for word in ("-include", str(source))]
    return [*sources, "-x", "c++", os.devnull, "-x", "none"]


@cache
def _tensorflow_flags(folder: Path) -> list[str]:
    """The compiler flags for TensorFlow's headers and libraries."""
    script = "import tensorflow as tf; print(*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags())"
    argv = [str(folder / "bin" / "python"), "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
    check_done(done.returncode, argv)
    return done.stdout.split()
