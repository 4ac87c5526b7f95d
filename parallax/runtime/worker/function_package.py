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


def packed_function(function: Callable[[], object]) -> bytes:
    """A function for workers, with what it takes from around it, the paths of modules and the script's arguments.

    Raises:
        ConfigError: it cannot be pickled.
    """
    name = getattr(function, "__name__", repr(function))
    return pickle.dumps((sys.path, sys.argv)) + pickle_for_workers(function, f"the function {name}")


def pickle_for_workers(value: object, what: str) -> bytes:
    """A value for workers, by value as far as it was written in the script itself.

    Args:
        value: it.
        what: the noun that an error names.

    Raises:
        ConfigError: it cannot be pickled.
    """
    try:
        found: bytes = cloudpickle.dumps(value)
    except Exception as error:  # objects of any kind refuse to be pickled in ways of their own
        raise ConfigError(
            f"Cannot send {what} to the workers: pickling fails with {type(error).__name__}: {error}. Create what "
            "cannot be pickled (models, datasets, open files) inside it."
        ) from error
    return found


def unpacked_function(data: Buffer) -> Callable[[], object]:
    """The function that `packed_function` has packed; this process gets the paths and arguments of the other."""
    stream = io.BytesIO(data)
    path, sys.argv = pickle.load(stream)
    sys.path += [folder for folder in path if folder not in sys.path]
    function: Callable[[], object] = pickle.load(stream)
    return function
