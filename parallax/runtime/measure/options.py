"""Options of `parallax run --measure FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parallax.base.errors import ConfigError
from parallax.settings.environment import Settings

STEPS = 20
"""Batches of each worker, unless another number is asked for: means of rows then differ little from run to run."""


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """A profile of the first steps.

    Attributes:
        path: where worker 0 writes it; None when it is for the job's own use.
        steps: how many runs that train are measured.
        cluster: fingerprint of the cluster profile at hand; empty without one.
    """

    path: Path | None
    steps: int
    cluster: str


def measure_options(wanted: Settings) -> MeasureOptions | None:
    """The wish of a command line or environment; None when no file is named.

    Raises:
        ConfigError: when steps are named without a file.
    """
    if wanted.measure is None:
        if wanted.measure_steps is not None:
            raise ConfigError(f"--measure-steps {wanted.measure_steps} needs --measure FILE, where the profile goes.")
        return None
    return MeasureOptions(Path(wanted.measure).absolute(), wanted.measure_steps or STEPS, wanted.cluster or "")
