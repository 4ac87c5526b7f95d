"""What a step logs, and which of it can be put together of what the workers have.

Logs have one level of names here: a metric's result may be a dictionary, as that of the metrics of `compile`. What is
computed of the batch itself is a number, of a floating type as means are, or has a row for each example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from parallax.errors import GraphError
from parallax.functions.results import has_rows
from parallax.types import Log, Logs, Tensor

_BETWEEN = "\x1f"
"""Between a log's name and a name within it; no name that is typed has it."""

_NO_SHAPE = (
    "Each worker logs what its rows of the batch give, and of the log {name!r} the shape is not known: {shape}. Log a "
    "number, or a tensor with a row for each example."
)
_WHOLE_NUMBER = (
    "Each worker logs what its rows of the batch give, and of the log {name!r}, {dtype}, it is not known whether that "
    "adds up, as a count does. Count in a metric (keras.metrics.Sum), and log its result."
)


def flat_logs(logs: Logs, within: str = "") -> Logs:
    """The logs by name, those of dictionaries in it by both names."""
    found: Logs = {}
    for name, value in logs.items():
        found.update(
            flat_logs(value, f"{within}{name}{_BETWEEN}") if isinstance(value, dict) else {within + name: value}
        )
    return found


def nested_logs(logs: Logs) -> Logs:
    """The logs as `flat_logs` was given them."""
    found: Logs = {}
    for name, value in logs.items():
        *outer, last = name.split(_BETWEEN)
        inner = found
        for one in outer:
            inner = inner.setdefault(one, {})
        inner[last] = value
    return found


def check_log(name: str, log: Tensor) -> None:
    """Refuses a log of which it is not known what the whole batch's is.

    Args:
        name: of the log.
        log: a tensor of a function that is being traced, computed of more than metrics.

    Raises:
        GraphError: it is a whole number of the batch, or has no known shape.
    """
    known = name.replace(_BETWEEN, ".")
    if log.shape.rank is None or None in log.shape[1:]:
        raise GraphError(_NO_SHAPE.format(name=known, shape=log.shape))
    if not log.dtype.is_floating and not has_rows(log) and _is_of_batch(log):
        raise GraphError(_WHOLE_NUMBER.format(name=known, dtype=log.dtype.name))


def _is_of_batch(tensor: Tensor) -> bool:
    """Whether a tensor of a function is computed of its arguments, and not of variables and constants alone."""
    graph = tensor.graph
    arguments = {one.op.name for one in graph.inputs} - {inner.op.name for _, inner in graph.captures}
    seen, waiting = {tensor.op.name}, [tensor.op]
    while waiting:
        op = waiting.pop()
        if op.name in arguments:
            return True
        before = [one.op for one in op.inputs if one.op.name not in seen]
        seen.update(one.name for one in before)
        waiting += before
    return False


class LateLogs(Logs):
    """Logs that are computed when somebody looks at one of them."""

    def __init__(self, names: Logs, compute: Callable[[], Logs]) -> None:
        """Computes nothing.

        Args:
            names: whose number is that of the logs, with anything.
            compute: gives the logs.
        """
        super().__init__(names)
        self._compute: Callable[[], Logs] | None = compute

    def __getitem__(self, name: str) -> Log:
        return dict.__getitem__(self._computed(), name)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self._computed())  # `dict(logs)` copies what is there unless there is this

    def get(self, name: str, default: Log = None) -> Log:
        """As of any dictionary."""
        return dict.get(self._computed(), name, default)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self._computed(), name)

    def keys(self) -> Any:
        """As of any dictionary."""
        return dict.keys(self._computed())

    def items(self) -> Any:
        """As of any dictionary."""
        return dict.items(self._computed())

    def values(self) -> Any:
        """As of any dictionary."""
        return dict.values(self._computed())

    def copy(self) -> Logs:
        """A plain dictionary."""
        return dict(self)

    def __eq__(self, other: object) -> bool:
        return dict.__eq__(self._computed(), other)

    def __repr__(self) -> str:
        return dict.__repr__(self._computed())

    def _computed(self) -> Logs:
        compute, self._compute = self._compute, None
        if compute is not None:
            self.clear()
            self.update(compute())
        return self
