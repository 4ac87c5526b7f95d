"""How a job of the benchmark is without liveness, or without the fence: the product has no switch for either.

`turn_off` is called in the script, which is the launcher and every worker, before `parallel_run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from parallax.runtime.supervisor.limits import Limits
from parallax.runtime.supervisor.preload import SECRET

NEVER = Limits(**dict.fromkeys(Limits.__dataclass_fields__, 1e8))
"""The limits of a job in which nobody ever proves to be alive, nor is waited for."""

KINDS = ("liveness", "fence")


def turn_off(kind: str) -> None:
    """Has the job that this process starts or is of do without it."""
    from parallax.entry import api

    if kind == "liveness":
        from parallax.runtime.worker import heartbeat

        heartbeat.LIMITS = NEVER  # after its first beat the thread sleeps
        api.launch = partial(_with, api.launch, {"limits": NEVER})
    else:
        from parallax.runtime.launcher import launch

        launch.mpirun_environment = partial(_without_secret, launch.mpirun_environment)


def _with(launch: Callable[..., int], changes: dict[str, Any], job: Any) -> int:
    return launch(replace(job, **changes))


def _without_secret(environment_of: Callable[..., dict[str, str]], *given: Any) -> dict[str, str]:
    return {name: value for name, value in environment_of(*given).items() if name != SECRET}
