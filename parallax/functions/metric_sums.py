"""Sums the variables of metrics over all workers.

The variables of a metric are sums over examples (Keras's own `aggregation="sum"`): each worker adds up its own
examples, and the sum over the workers is that of one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from parallax.base.types import Value, Variable

StepValues = tuple[Sequence[Value], dict[str, Value]]
"""The results of a step: the sums of its metrics' variables, and logs other than metrics."""


class StepSums:
    """The sums of one process after a step; the first access waits for the workers' answer.

    Args:
        base: the values at which the workers' parts began, by variable.
        numbers: indices of the variables whose sums the step returns.
        before: the sums after the preceding step; None where all parts begin at zero.
        wait: returns the step's values; None where there was no step.
    """

    def __init__(
        self,
        base: Sequence[Value],
        numbers: Sequence[int] = (),
        before: StepSums | None = None,
        wait: Callable[[], StepValues] | None = None,
    ) -> None:
        self._base, self._numbers, self._before, self._wait = base, numbers, before, wait

    def arrive(self) -> None:
        """Waits for the sums."""
        self._values  # noqa: B018

    @cached_property
    def _values(self) -> tuple[list[Value], dict[str, Value]]:
        sums = list(self._base if self._before is None else self._before.sums)
        parts, others = ((), {}) if self._wait is None else self._wait()
        self._before = None
        for number, part in zip(self._numbers if parts else (), parts, strict=True):
            base = self._base[number]
            sums[number] = (base + np.asarray(part).astype(base.dtype)).astype(base.dtype)
        return sums, others

    @property
    def sums(self) -> list[Value]:
        """The metrics' variables, arrays of their types."""
        return self._values[0]

    @property
    def others(self) -> dict[str, Value]:
        """The step's logs other than metrics, of all workers."""
        return self._values[1]


class MetricSums:
    """The sums of metrics over all workers, since each was last written.

    A step's sums are fetched asynchronously until they are read, or until the next step has run.

    Attributes:
        variables: the tf.Variables of metrics, in order.
        latest: the sums after the last step.
        ahead: the number of steps whose sums may be pending, including the latest.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.ahead = 1
        self._on_their_way: deque[StepSums] = deque()
        self.variables = list(variables)
        self._base = [variable.numpy() for variable in variables]
        self.latest = StepSums(self._base)

    @property
    def sums(self) -> list[Value]:
        """The values of one process, arrays of the variables' types."""
        return self.latest.sums

    @property
    def others(self) -> dict[str, Value]:
        """The last step's logs other than metrics, of all workers."""
        return self.latest.others

    def begin_at(self, values: dict[int, Value]) -> None:
        """Restarts some variables, by their indices, at these values; the workers' parts of all restart at zero."""
        self._base = list(self.sums)
        for number, value in values.items():
            self._base[number] = np.asarray(value, self._base[number].dtype)
        self.latest = StepSums(self._base)

    def follow(self, numbers: Sequence[int], wait: Callable[[], StepValues]) -> None:
        """Records a step; waits for earlier ones, until no more than `ahead` are pending.

        Args:
            numbers: indices of the variables whose sums it returns.
            wait: returns these sums, and its logs other than metrics.
        """
        self._on_their_way.append(self.latest)
        self.latest = StepSums(self._base, numbers, self.latest, wait)
        while len(self._on_their_way) > self.ahead - 1:
            self._on_their_way.popleft().arrive()
