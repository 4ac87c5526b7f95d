"""Writes profiles and defines their paths; plan_inputs.py reads them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from parallax.base.errors import ConfigError
from parallax.cluster.profiles import ClusterProfile, ModelProfile

_DIGITS = 12


def default_path(profile: ModelProfile) -> Path:
    """The default path of a profile: in the working folder, named by its graph and cluster."""
    keys = [key[:_DIGITS] for key in (profile.graph, profile.cluster) if key]
    return Path(f"parallax-profile-{'-'.join(keys)}.json")


def save_profile(profile: ModelProfile | ClusterProfile, path: Path) -> None:
    """Writes a profile: the whole file, or nothing.

    Raises:
        ConfigError: when the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(profile.to_json(), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise _unwritable(path, str(error.strerror)) from error


def check_writable(path: Path) -> None:
    """Refuses, before anything is measured, a file that could not be written afterwards; leaves no file.

    Raises:
        ConfigError: the name is a folder's, or no file can be made in its folder.
    """
    if path.is_dir():
        raise _unwritable(path, "it is a folder")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error


def _unwritable(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"Cannot write the profile to {path}: {reason}. Name another file.")
