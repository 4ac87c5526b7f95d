"""Makes the project's own virtual environment: `python3 ops/install/install.py [FOLDER]` (default `.venv`).

Everything comes from Python packages, Open MPI included, at the exact versions and hashes of the lock files. Horovod
is compiled here against that environment, so that its library carries the environment's own `lib` folder as run path.
A finished environment is left alone until a lock file, pyproject.toml or the Python version changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KERNELS = "-l:libtensorflow_cc.so.2"
NATIVE = ROOT / "parallax" / "native"
SUPPORTED = ((3, 10), (3, 13))


def main() -> None:
    """Installs, or does nothing when the environment is already what the lock files ask for."""
    folder = (Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv").resolve()
    stamp = folder / "installed"
    wanted = _fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    _check_machine()
    began = time.monotonic()
    _say(f"making the environment {folder} (once; three to five minutes on two cores, most of it compiling Horovod)")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--require-hashes", "--no-deps", "-r", str(HERE / "requirements.lock")], os.environ)
    _say("packages installed; compiling Horovod and the project's own libraries against them")
    # No cache: a cached wheel is bound to the TensorFlow and to the folder that it was built with.
    horovod = ["--require-hashes", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    horovod_argv = [*pip, *horovod, "-r", str(HERE / "horovod.lock")]
    with subprocess.Popen(horovod_argv, env=_horovod_environment(folder)) as compiling:
        _run(preload_library_argv(folder), os.environ)
        _run(exchange_library_argv(folder), {**os.environ, "OPAL_PREFIX": str(folder)})
        _run(rows_library_argv(folder), os.environ)
        _run(frozen_library_argv(folder), os.environ)
    _check_done(compiling.returncode, horovod_argv)
    _run([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], os.environ)
    stamp.write_text(wanted)
    _say(f"done in {time.monotonic() - began:.0f} s")


def preload_library_argv(folder: Path) -> list[str]:
    """The command that builds the library which the ranks of a job are started with."""
    library = str(folder / "lib" / "libparallax_preload.so")
    sources = map(str, sorted((NATIVE / "preload").glob("*.c")))
    return ["cc", "-O2", "-shared", "-fPIC", "-o", library, *sources, "-ldl"]


def exchange_library_argv(folder: Path) -> list[str]:
    """The command that builds the ops by which workers exchange and draw, against the environment's TensorFlow and MPI.

    TensorFlow's samplers of candidates are in the library of its kernels.
    """
    library = folder / "lib" / "libparallax_exchange.so"
    built = ["-O2", "-shared", "-fPIC", "-w", "-Wl,-rpath,$ORIGIN", "-o", str(library)]
    return [str(folder / "bin" / "mpicxx"), *built, *_as_one_unit(NATIVE), *_tensorflow_flags(folder), KERNELS]


def rows_library_argv(folder: Path) -> list[str]:
    """The command that builds the ops that update rows of tables, against the environment's TensorFlow.

    The arithmetic is that of TensorFlow's packages, bit for bit: for AVX, without which TensorFlow does not start, and
    with a rounding for each product and sum. Loops become vector instructions.
    """
    library = folder / "lib" / "libparallax_rows.so"
    arithmetic = ["-O3", "-mavx", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    built = ["-shared", "-fPIC", "-w", "-o", str(library)]
    return ["g++", *arithmetic, *built, *_as_one_unit(NATIVE / "rows"), *_tensorflow_flags(folder)]


def frozen_library_argv(folder: Path) -> list[str]:
    """The command that builds the ops that freeze variables for checkpoints, against the environment's TensorFlow."""
    library = folder / "lib" / "libparallax_frozen.so"
    built = ["-O2", "-shared", "-fPIC", "-w", "-o", str(library)]
    return ["g++", *built, *_as_one_unit(NATIVE / "frozen"), *_tensorflow_flags(folder)]


def _as_one_unit(folder: Path) -> list[str]:
    """The C++ sources of a folder as one unit of translation: most of a unit's time goes to TensorFlow's headers."""
    sources = [word for source in sorted(folder.glob("*.cc")) for word in ("-include", str(source))]
    return [*sources, "-x", "c++", os.devnull, "-x", "none"]


def _tensorflow_flags(folder: Path) -> list[str]:
    script = "import tensorflow as tf; print(*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags())"
    argv = [str(folder / "bin" / "python"), "-c", script]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def _fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for file in [*sorted(HERE.rglob("*")), *sorted(NATIVE.rglob("*")), ROOT / "pyproject.toml"]:
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _check_machine() -> None:
    if not SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        sys.exit(
            f"Parallax needs a Python from 3.10 to 3.13, and {sys.executable} is {sys.version.split()[0]}. "
            "Name another one: make PYTHON=python3.12 ..."
        )
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        sys.exit(f"Parallax supports Linux on x86-64, and this is {sys.platform} on {os.uname().machine}.")
    missing = [tool for tool in ("cc", "g++", "make") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"Horovod is compiled here and needs {' and '.join(missing)}: install a C++ compiler and make.")
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        sys.exit("This Python cannot make virtual environments: install its venv package (Debian: python3-venv).")


def _horovod_environment(folder: Path) -> dict[str, str]:
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
        "CMAKE_CXX_COMPILER_LAUNCHER": str(HERE / "horovod_compiler.sh"),
    }


def _run(argv: list[str], environment: os._Environ[str] | dict[str, str]) -> None:
    _check_done(subprocess.run(argv, env=dict(environment), check=False).returncode, argv)


def _check_done(status: int, argv: list[str]) -> None:
    if status:
        sys.exit(f"Installation stopped (status {status}) at: {' '.join(argv)}")


def _say(text: str) -> None:
    print(f"install: {text}", flush=True)


if __name__ == "__main__":
    main()
