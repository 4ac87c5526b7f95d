"""Options of `parallax run --measure FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parallax.base.errors import ConfigError
from parallax.settings.environment import Settings

STEPS = 20
"""Default number of batches per worker: averages of rows then differ little from run to run."""


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Options of a profile of the first steps.

    Attributes:
        path: the file that worker 0 writes; None if it is for the job's own use.
        steps: the number of training runs to measure.
        cluster: fingerprint of the current cluster profile; empty without one.
    """

    path: Path | None
    steps: int
    cluster: str


def measure_options(requested: Settings) -> MeasureOptions | None:
    """The options from a command line or environment; None if no file is named.

    Raises:
        ConfigError: when steps are named without a file.
    """
    if requested.measure is None:
        if requested.measure_steps is not None:
            raise ConfigError(
                f"--measure-steps {requested.measure_steps} needs --measure FILE, where the profile goes."
            )
        return None
    return MeasureOptions(Path(requested.measure).absolute(), requested.measure_steps or STEPS, requested.cluster or "")
