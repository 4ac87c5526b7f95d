"""Imports TensorFlow and Horovod without Keras, for workers that receive their graph from another process.

TensorFlow loads Keras at the end of its own import, and continues if that fails; Horovod derives a layer from one of
Keras. With everything that Keras looks for (scikit-learn, Matplotlib), Keras takes a third to a half of TensorFlow's
import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_KERAS = ("keras", "tf_keras")
_LAYER = "SyncBatchNormalization"
_OF_HOROVOD = "horovod.tensorflow.sync_batch_norm"


@contextmanager
def leaving_out_keras() -> Iterator[None]:
    """Context in which Keras cannot be imported; afterwards it can."""
    finder = _KerasFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _KerasFinder(MetaPathFinder):
    """A finder that locates Keras, whose location TensorFlow requests, but loads nothing of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an excluded module; None for all other modules."""
        if fullname not in (*_KERAS, _OF_HOROVOD):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = _EmptyLoader()
        return spec


class _EmptyLoader(Loader):
    """A loader that loads Horovod's module of a layer without that layer, and refuses to load Keras."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Uses Python's default."""

    def exec_module(self, module: ModuleType) -> None:
        """Loads the remaining part of a module.

        Raises:
            ImportError: there is none.
        """
        if module.__name__ != _OF_HOROVOD:
            raise ImportError(f"{module.__name__} is left out of this import.", name=module.__name__)
        setattr(module, _LAYER, None)
