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
    """A library's information on a tf.Variable.

    Attributes:
        name: its name for users of the library.
        trainable: whether it is trained.
        is_made: whether it was created while the step was traced, and not by an optimizer.
        is_new: whether it was created while the step was traced.
    """

    name: str
    trainable: bool
    is_made: bool = False
    is_new: bool = False


@contextmanager
def record_library_use(merges_rows: bool = False) -> Iterator[Callable[[], dict[int, LibraryVariable]]]:
    """A context that records a step's use of the libraries that the script has imported, and adapts them to graphs.

    Args:
        merges_rows: whether equal rows of sparse gradients are summed before an optimizer sees them.

    Returns:
        In a context: a function that returns, by the id of a tf.Variable, a library's information on it.
    """
    with ExitStack() as stack:
        modules = [import_module(f"{__package__}.{name}") for key, name in _MODULE_BY_PACKAGE.items() if _is_used(key)]
        readers = [stack.enter_context(module.record_use(merges_rows)) for module in modules]
        yield lambda: {key: one for each in readers for key, one in each().items()}


def _is_used(package: str) -> bool:
    return package in sys.modules
