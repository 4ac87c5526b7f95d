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
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "parallax" / "native"
LIBRARIES = ROOT / "parallax" / "base" / "setup" / "libraries.py"
SUPPORTED = ((3, 10), (3, 13))


def main() -> None:
    """Installs, or does nothing when the environment is already what the lock files ask for."""
    folder = (Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv").resolve()
    stamp = folder / "installed"
    wanted = _fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    _check_machine()
    libraries = _libraries()
    began = time.monotonic()
    _say(f"making the environment {folder} (once; three to five minutes on two cores, most of it compiling Horovod)")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run = libraries.run_command
    run([*pip, "--require-hashes", "--no-deps", "-r", str(HERE / "requirements.lock")], os.environ)
    _say("packages installed; compiling Horovod and the project's own libraries against them")
    argv = libraries.horovod_argv(folder, ["--require-hashes", "-r", str(HERE / "horovod.lock")])
    with subprocess.Popen(argv, env=libraries.horovod_environment(folder)) as compiling:
        libraries.build_libraries(folder)
    libraries.check_done(compiling.returncode, argv)
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], os.environ)
    stamp.write_text(wanted)
    _say(f"done in {time.monotonic() - began:.0f} s")


def _fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for file in [*sorted(HERE.rglob("*")), *sorted(NATIVE.rglob("*")), LIBRARIES, ROOT / "pyproject.toml"]:
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


def _libraries() -> ModuleType:
    """The package's own builder, which needs no environment."""
    spec = spec_from_file_location("libraries", LIBRARIES)
    assert spec is not None and spec.loader is not None, "the file is there"
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _say(text: str) -> None:
    print(f"install: {text}", flush=True)


if __name__ == "__main__":
    main()
