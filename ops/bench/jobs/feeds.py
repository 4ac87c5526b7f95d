"""What `parallax profile` feeds: the batches of the task that the script was given."""

from __future__ import annotations

from functools import cache
from typing import Any

from ops.bench.race.models import Model
from ops.bench.race.turns import task_of_this_process


def batch(step: int, worker: int, size: int) -> dict[str, Any]:
    """A worker's batch, by the names of placeholders."""
    return dict(_model().batch(worker, step))


@cache
def _model() -> Model:
    return task_of_this_process().make_model()
