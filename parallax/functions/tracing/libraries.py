"""Lists the imported libraries whose objects a traced step may use.

Each has a module here with `record_use(merges_rows)`, a context around the trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module

_MODULE_BY_PACKAGE = {"keras": "keras_steps"}


@dataclass(frozen=True, slots=True)
class LibraryVariable:
    """What a library knows about a tf.Variable.

    Attributes:
        name: by which its users know it.
        trainable: whether it is trained.
        is_made: whether it was made while the step was traced, and not by an optimizer.
        is_new: whether it was made while the step was traced.
    """

    name: str
    trainable: bool
    is_made: bool = False
    is_new: bool = False


@contextmanager
def record_library_use(merges_rows: bool = False) -> Iterator[Callable[[], dict[int, LibraryVariable]]]:
    """Within it, what a step uses of the libraries that the script has imported is noted and made fit for a graph.

    Args:
        merges_rows: whether equal rows of sparse gradients are added up before an optimizer sees them.

    Returns:
        In a context: a function that gives, by the id of a tf.Variable, what a library knows about it.
    """
    with ExitStack() as stack:
        modules = [import_module(f"{__package__}.{name}") for key, name in _MODULE_BY_PACKAGE.items() if _is_used(key)]
        found = [stack.enter_context(module.record_use(merges_rows)) for module in modules]
        yield lambda: {key: one for each in found for key, one in each().items()}


def _is_used(package: str) -> bool:
    return package in sys.modules
