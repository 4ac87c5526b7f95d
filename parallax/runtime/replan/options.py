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
    """The search for a better plan in a job, and its consequence.

    Attributes:
        mode: `ask` or `on`.
        margin: the share of the predicted step by which the other plan must be shorter.
        steps: after how many steps.
        path: where worker 0 writes the other plan; None for a name from the graph, in its working folder.
    """

    mode: str
    margin: float
    steps: int
    path: Path | None


def replan_options(config: Config, requested: Settings) -> ReplanOptions | None:
    """The options of a configuration that includes the command line's settings; None if plans do not change.

    Raises:
        ConfigError: when the command line names steps without replanning.
    """
    replan: ReplanConfig = config.replan
    if replan.mode == OFF:
        if requested.replan_steps is not None:
            raise ConfigError(f"--replan-steps {requested.replan_steps} needs --replan ask or on, or Config.replan.")
        return None
    path = None if replan.plan_file is None else Path(replan.plan_file).absolute()
    return ReplanOptions(replan.mode, replan.margin, replan.after_steps, path)


def check_possible(replan: ReplanOptions | None, config: Config) -> None:
    """Refuses options that are impossible, before the start.

    Raises:
        ConfigError: there is no profile to predict seconds from.
    """
    if replan is None:
        return
    if config.cluster_profile is None:
        raise ConfigError(
            f"replan={replan.mode!r} compares plans by predicted seconds, which need a cluster profile. Measure one "
            "with `parallax calibrate -o FILE`, and pass it with --cluster FILE or Config.cluster_profile."
        )
