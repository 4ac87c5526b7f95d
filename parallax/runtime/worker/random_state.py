"""Random state of Python and NumPy: equal in all processes until the graph is built, different on each worker after it.

Layers draw their seeds, and scripts their constants and shuffles, from these generators while the graph is built.
Batches that a loop draws must differ between workers. A generator that the script has seeded, or whose state it has
set, is left alone.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from types import ModuleType

from parallax.base.types import Argument

_LARGEST = 2**32  # exclusive upper bound of NumPy's seeds


def draw_seed() -> int:
    """Draws a seed for a job: from 1 to 2**31 - 2."""
    return 1 + secrets.randbelow(2**31 - 2)


class EqualUntilBuilt:
    """Sets both generators to a state common to all processes of a job, and to another one after the graph is built.

    Args:
        seed: the same in all processes.
    """

    def __init__(self, seed: int) -> None:
        from numpy import random as numpy_random

        self._seed = seed
        self._generators = [
            _SeededGenerator(random, "seed", "setstate"),
            _SeededGenerator(numpy_random, "seed", "set_state"),
        ]
        for generator in self._generators:
            generator.set_seed(seed % _LARGEST)

    def part(self, rank: int) -> None:
        """Makes each worker draw its own numbers from now on, unless the script has seeded; later calls have no effect.

        Args:
            rank: of this worker.
        """
        seed = random.Random(f"{self._seed}/{rank}").randrange(_LARGEST)
        while self._generators:
            self._generators.pop().restore(seed)


class _SeededGenerator:
    """One generator of a module; detects whether other code has seeded it."""

    def __init__(self, module: ModuleType, *names: str) -> None:
        self._module = module
        self._original: dict[str, Callable[..., object]] = {name: getattr(module, name) for name in names}
        self._was_used = False

    def set_seed(self, seed: int) -> None:
        self._original["seed"](seed)
        for name, function in self._original.items():
            setattr(self._module, name, self._noticing(function))

    def restore(self, seed: int) -> None:
        for name, function in self._original.items():
            setattr(self._module, name, function)
        if not self._was_used:
            self._original["seed"](seed)

    def _noticing(self, function: Callable[..., object]) -> Callable[..., object]:
        def notice(*args: Argument, **kwargs: Argument) -> object:
            self._was_used = True
            return function(*args, **kwargs)

        return notice
