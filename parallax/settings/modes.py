"""Resolves how workers wait for each other: `sync` of `parallel_run` together with `Config.staleness`.

Contradictions between the two, and with other settings, are refused here, by the names of both settings; what only a
plan can tell, such as that there are no servers, is refused by the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from parallax.base.errors import ConfigError, PlanError
from parallax.settings.config import Config

BOUNDED = "bounded"
"""The value of `sync` for asynchronous workers of which none is more than `staleness` runs ahead of another."""


def resolve_sync(sync: object, config: Config) -> tuple[bool, Config]:
    """Returns whether every step uses the gradients of all workers, and the configuration for that.

    A staleness of 0 is synchronous training with all trained variables on servers: a worker that reads values of step n
    then reads all updates of the steps before, and none of step n.

    Args:
        sync: True, False, or `bounded`.
        config: has the staleness.

    Raises:
        ConfigError: `sync` is none of these, or contradicts a setting.
    """
    if sync is not True and sync is not False and sync != BOUNDED:
        raise ConfigError(f"sync must be True, False or {BOUNDED!r}, got {sync!r}.")
    if sync == BOUNDED and config.staleness is None:
        raise ConfigError(
            f"sync={BOUNDED!r} needs a bound, but staleness is None. Set Config(staleness=S), the number of runs "
            "that a worker may be ahead of another, or pass sync=False for no bound."
        )
    if sync != BOUNDED and config.staleness is not None:
        raise ConfigError(
            f"staleness={config.staleness} bounds how far asynchronous workers drift apart, but sync is {sync}. Pass "
            f"sync={BOUNDED!r}, or leave staleness out."
        )
    refused = {
        f"stages={config.stages!r}, which are synchronous": config.stages is not None,
        "islands, which are synchronous": config.islands is not None,
        f"replan={config.replan.mode!r}, which needs steps that all workers have in common": (
            config.replan.mode != "off"
        ),
        "search_partitions=True, which needs steps that all workers have in common": config.search_partitions,
    }
    if sync is not True:
        for what, is_set in refused.items():
            if is_set:
                raise ConfigError(
                    f"sync={sync!r} keeps all trained variables on servers, where each worker updates them by itself. "
                    f"It contradicts {what}. Leave that setting out, or pass sync=True."
                )
    if config.staleness == 0 and config.run_option == "MPI":
        raise ConfigError(
            "staleness=0 is synchronous training with all trained variables on servers, but run_option='MPI' starts no "
            "servers. Leave run_option out, or pass sync=True without staleness."
        )
    if config.staleness == 0:
        return True, replace(config, run_option="PS", staleness=None)
    return sync is True, config


def check_supported(mode: str, config: Config, synchronous: bool, others: Mapping[str, bool]) -> None:
    """Refuses settings with which a job cannot be in stages or islands yet.

    Args:
        mode: `stages` or `islands`, the setting that asks for it.
        config: the user's settings.
        synchronous: whether every step uses the gradients of all workers.
        others: what this mode alone does not support -> whether it is requested.

    Raises:
        PlanError: names the unsupported setting.
    """
    ckpt = config.ckpt_config
    refused = {
        "asynchronous training (sync=False)": not synchronous,
        "servers (run_option='PS')": config.run_option == "PS",
        "plans that change while a job runs (replan)": config.replan.mode != "off",
        "states in the memory of other hosts (ckpt_config.memory_steps)": ckpt.memory_steps is not None,
        "increments (ckpt_config.whole_every)": ckpt.whole_every > 1,
        **others,
    }
    for what, is_requested in refused.items():
        if is_requested:
            raise PlanError(f"{mode.capitalize()} are not supported yet with {what}. Leave that out, or {mode}.")
