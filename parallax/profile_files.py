"""Model profiles as files: where they go, writing and reading them, and whose they must be."""

from __future__ import annotations

from pathlib import Path

from parallax.errors import ConfigError, PlanError
from parallax.profiles import ModelProfile, model_profile_from_json

_DIGITS = 12


def default_path(profile: ModelProfile) -> Path:
    """Where a profile goes when nobody says: in the working folder, named by its graph and cluster."""
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
        ConfigError: the folder is not there, or the name is a folder's.
    """
    if path.is_dir():
        raise _unwritable(path, "it is a folder")
    if not path.parent.is_dir():
        raise _unwritable(path, "its folder is not there")


def read_model_profile(path: Path, graph: str = "", cluster: str = "") -> ModelProfile:
    """Reads a profile.

    Args:
        path: of the file.
        graph: fingerprint of the graph that it must be of; empty for any.
        cluster: fingerprint of the cluster profile at hand; empty for any. A profile made without one fits all.

    Raises:
        PlanError: when the file cannot be read, is no profile, or is one of another graph or cluster.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError(
            f"{path}: a model profile must be readable: {error.strerror}. Write one with `parallax profile`."
        ) from error
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{path}: a model profile must be UTF-8, and byte {error.start} is not. Write one with `parallax profile`."
        ) from error
    profile = model_profile_from_json(text, str(path))
    for what, mine, wanted in (("graph", profile.graph, graph), ("cluster", profile.cluster, cluster)):
        if mine and wanted and mine != wanted:
            raise PlanError(
                f"{path}: a model profile must be of this {what}, {wanted[:_DIGITS]}, and is of {mine[:_DIGITS]}. "
                "Measure it anew with `parallax profile`."
            )
    return profile


def _unwritable(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"A profile must go to a file that can be written: {path}: {reason}. Name another.")
