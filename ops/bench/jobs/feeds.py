"""The feeds of `parallax profile`: batches of the task that the script's argument names."""

from __future__ import annotations

from functools import cache
from typing import Any

from ops.bench.race.models import Model
from ops.bench.race.turns import task_of_this_process


def batch(step: int, worker: int, size: int) -> dict[str, Any]:
    """Returns a worker's batch, by placeholder name."""
    return dict(_model().batch(worker, step))


@cache
def _model() -> Model:
    return task_of_this_process().make_model()
