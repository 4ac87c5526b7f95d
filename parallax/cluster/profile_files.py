"""Writes model profiles and defines their paths; plan_inputs.py reads them."""

from __future__ import annotations

from pathlib import Path

from parallax.base.errors import ConfigError
from parallax.cluster.profiles import ModelProfile

_DIGITS = 12


def default_path(profile: ModelProfile) -> Path:
    """The default path of a profile: in the working folder, named by its graph and cluster."""
    keys = [key[:_DIGITS] for key in (profile.graph, profile.cluster) if key]
    return Path(f"parallax-profile-{'-'.join(keys)}.json")


def write_model_profile(profile: ModelProfile, path: Path) -> None:
    """Writes a profile.

    Raises:
        ConfigError: when the file cannot be written.
    """
    try:
        path.write_text(profile.to_json(), encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error


def check_writable(path: Path) -> None:
    """Refuses, before anything is measured, a file that cannot be written.

    Raises:
        ConfigError: the folder does not exist, or the name is a folder's.
    """
    if path.is_dir():
        raise _unwritable(path, "it is a folder")
    if not path.parent.is_dir():
        raise _unwritable(path, "its folder does not exist")


def _unwritable(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"Cannot write the profile to {path}: {reason}. Name another file.")
