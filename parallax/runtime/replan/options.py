"""Replanning options of a job, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parallax.base.errors import ConfigError
from parallax.settings.config import Config
from parallax.settings.environment import Settings
from parallax.settings.parts import OFF, ReplanConfig


@dataclass(frozen=True, slots=True)
class ReplanOptions:
    """Whether a job looks for a better plan, and what it does with one.

    Attributes:
        mode: `ask` or `on`.
        margin: by which share of the predicted step the other plan must be shorter.
        steps: after how many steps.
        path: where worker 0 writes the other plan; None for a name by the graph, in its working folder.
    """

    mode: str
    margin: float
    steps: int
    path: Path | None


def replan_options(config: Config, wanted: Settings) -> ReplanOptions | None:
    """The wish of a configuration in which the command line goes first already; None when plans stay as they are.

    Raises:
        ConfigError: when the command line names steps for nothing.
    """
    asked: ReplanConfig = config.replan
    if asked.mode == OFF:
        if wanted.replan_steps is not None:
            raise ConfigError(f"--replan-steps {wanted.replan_steps} needs --replan ask or on, or Config.replan.")
        return None
    path = None if asked.plan_file is None else Path(asked.plan_file).absolute()
    return ReplanOptions(asked.mode, asked.margin, asked.after_steps, path)


def check_possible(wish: ReplanOptions | None, config: Config, sync: bool) -> None:
    """Refuses before the start a wish that cannot be met.

    Raises:
        ConfigError: there is nothing to predict seconds from, or no step at which all workers are.
    """
    if wish is None:
        return
    if not sync:
        raise ConfigError(
            f"replan={wish.mode!r} changes the plan at the end of a step, but asynchronous workers (sync=False) have "
            "no steps in common. Leave it off, or train with sync=True."
        )
    if config.cluster_profile is None:
        raise ConfigError(
            f"replan={wish.mode!r} compares plans by predicted seconds, which need a cluster profile. Measure one "
            "with `parallax calibrate -o FILE`, and pass it with --cluster FILE or Config.cluster_profile."
        )
