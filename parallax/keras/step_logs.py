"""What a step logs, with one level of names: a metric's result may be a dictionary, as that of `compile`'s metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from parallax.base.types import Log, Logs

_BETWEEN = "\x1f"
"""Between a log's name and a name within it; no name that is typed has it."""


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
        return dict.__getitem__(self._compute_logs(), name)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self._compute_logs())  # `dict(logs)` copies what is there unless there is this

    def get(self, name: str, default: Log = None) -> Log:
        """As of any dictionary."""
        return dict.get(self._compute_logs(), name, default)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self._compute_logs(), name)

    def keys(self) -> Any:
        """As of any dictionary."""
        return dict.keys(self._compute_logs())

    def items(self) -> Any:
        """As of any dictionary."""
        return dict.items(self._compute_logs())

    def values(self) -> Any:
        """As of any dictionary."""
        return dict.values(self._compute_logs())

    def copy(self) -> Logs:
        """A plain dictionary."""
        return dict(self)

    def __eq__(self, other: object) -> bool:
        return dict.__eq__(self._compute_logs(), other)

    def __repr__(self) -> str:
        return dict.__repr__(self._compute_logs())

    def _compute_logs(self) -> Logs:
        compute, self._compute = self._compute, None
        if compute is not None:
            self.clear()
            self.update(compute())
        return self
