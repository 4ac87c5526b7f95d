"""How a job of the benchmark is without liveness, or without the fence: the product has no switch for either.

`turn_off` is called in the script, which is the launcher and every worker, before `parallel_run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from parallax.runtime.supervisor.limits import LIMITS
from parallax.runtime.supervisor.preload import SECRET

NEVER_S = 1e8
KINDS = ("liveness", "fence")


def turn_off(kind: str) -> None:
    """Has the job that this process starts or is of do without it."""
    from parallax import api

    if kind == "liveness":
        from parallax.runtime.worker import heartbeat

        none = replace(
            LIMITS,
            **{
                name: NEVER_S
                for name in ("beat_s", "stopped_s", "frozen_s", "silent_s", "start_s", "word_s", "unheard_s")
            },
        )
        heartbeat.LIMITS = none  # after its first beat the thread sleeps
        api.launch = partial(_with, api.launch, {"limits": none})
    else:
        from parallax.runtime.launcher import launch

        launch.mpirun_environment = partial(_without_secret, launch.mpirun_environment)


def _with(launch: Callable[..., int], changes: dict[str, Any], job: Any) -> int:
    return launch(replace(job, **changes))


def _without_secret(environment_of: Callable[..., dict[str, str]], *given: Any) -> dict[str, str]:
    return {name: value for name, value in environment_of(*given).items() if name != SECRET}
