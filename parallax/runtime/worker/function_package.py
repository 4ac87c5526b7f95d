"""Pickles a function of the launching process, which workers call in place of a script (call_function.py).

The pickled function is in the job message. Code of the launching program itself is pickled by value (a notebook has no
file that workers could run). The function is called without arguments.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable

import cloudpickle

from parallax.base.errors import ConfigError
from parallax.base.types import Buffer


def pack_function(function: Callable[[], object]) -> bytes:
    """Pickles a function for workers, with its captured values, the module paths and the script's arguments.

    Raises:
        ConfigError: it cannot be pickled.
    """
    name = getattr(function, "__name__", repr(function))
    return pickle.dumps((sys.path, sys.argv)) + pickle_for_workers(function, f"the function {name}")


def pickle_for_workers(value: object, what: str) -> bytes:
    """Pickles a value for workers; classes and functions of the script itself are pickled by value.

    Args:
        value: the value.
        what: the noun that an error names.

    Raises:
        ConfigError: it cannot be pickled.
    """
    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as error:  # pickling objects of some kinds fails with their own exceptions
        raise ConfigError(
            f"Cannot send {what} to the workers: pickling fails with {type(error).__name__}: {error}. Create what "
            "cannot be pickled (models, datasets, open files) inside it."
        ) from error
    return pickled


def unpack_function(data: Buffer) -> Callable[[], object]:
    """Returns the function that `pack_function` has pickled; sets this process's paths and arguments accordingly."""
    stream = io.BytesIO(data)
    path, sys.argv = pickle.load(stream)
    sys.path += [folder for folder in path if folder not in sys.path]
    function: Callable[[], object] = pickle.load(stream)
    return function
