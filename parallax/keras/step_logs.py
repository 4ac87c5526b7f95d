"""The logs of a step, with flat names: a metric's result may be a dictionary, as that of `compile`'s metrics is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from parallax.base.types import Log, Logs

_BETWEEN = "\x1f"
"""The separator between a log's name and a nested name; it cannot be typed."""


def flat_logs(logs: Logs, within: str = "") -> Logs:
    """The logs by name, with nested dictionaries flattened to combined names."""
    flat: Logs = {}
    for name, value in logs.items():
        flat.update(
            flat_logs(value, f"{within}{name}{_BETWEEN}") if isinstance(value, dict) else {within + name: value}
        )
    return flat


def nested_logs(logs: Logs) -> Logs:
    """Restores the logs passed to `flat_logs`."""
    nested: Logs = {}
    for name, value in logs.items():
        *outer, last = name.split(_BETWEEN)
        inner = nested
        for one in outer:
            inner = inner.setdefault(one, {})
        inner[last] = value
    return nested


class LateLogs(Logs):
    """Logs that are computed when one of them is first read."""

    def __init__(self, names: Logs, compute: Callable[[], Logs]) -> None:
        """Stores the computation without running it.

        Args:
            names: any mapping of the same length as the logs.
            compute: returns the logs.
        """
        super().__init__(names)
        self._compute: Callable[[], Logs] | None = compute

    def __getitem__(self, name: str) -> Log:
        return dict.__getitem__(self._compute_logs(), name)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self._compute_logs())  # `dict(logs)` copies the stored items without this

    def get(self, name: str, default: Log = None) -> Log:
        """See `dict`."""
        return dict.get(self._compute_logs(), name, default)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self._compute_logs(), name)

    def keys(self) -> Any:
        """See `dict`."""
        return dict.keys(self._compute_logs())

    def items(self) -> Any:
        """See `dict`."""
        return dict.items(self._compute_logs())

    def values(self) -> Any:
        """See `dict`."""
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
