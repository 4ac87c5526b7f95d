"""Calls a function once a package has been imported, now or later, without importing it.

During that import, Python's cyclic garbage collection is disabled: nearly all of the hundreds of thousands of objects
that TensorFlow creates stay alive, and traversing them repeatedly takes a fifth of its import.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def after_import(package: str, call: Callable[[], None]) -> None:
    """Calls a function right after a package has been imported; at once if it already is.

    Args:
        package: a top level package.
        call: takes no arguments; it is called once.
    """
    if package in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(package, call))


class _Finder(MetaPathFinder):
    """Finds one package as the other finders do, and makes its loader call a function at the end."""

    def __init__(self, package: str, call: Callable[[], None]) -> None:
        self._package = package
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the package; None for all other modules."""
        if fullname != self._package or self not in sys.meta_path:
            return None
        place = sys.meta_path.index(self)
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:  # it cannot be imported now, and may be later
            sys.meta_path.insert(place, self)
            return None
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            was_on = gc.isenabled()
            gc.disable()
            try:
                execute(module)
                gc.freeze()  # later garbage collections skip the current objects
            finally:
                if was_on:
                    gc.enable()
            self._call()

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
