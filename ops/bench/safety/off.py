"""Disables liveness or the fence in a job of the benchmark: the product has no switch for either.

The script calls `turn_off` before `parallel_run`, in the launcher and in every worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from parallax.runtime.supervisor.limits import Limits
from parallax.runtime.supervisor.preload import SECRET

if TYPE_CHECKING:
    from parallax.runtime.launcher.launch import JobEnd

NEVER = Limits(**dict.fromkeys(Limits.__dataclass_fields__, 1e8))
"""Limits so long that no process sends a heartbeat after the first, and none is missed."""

KINDS = ("liveness", "fence")


def turn_off(kind: str) -> None:
    """Disables the mechanism in this process, and in the job that it starts or belongs to."""
    from parallax.entry import api
    from parallax.runtime.launcher import launch

    if kind == "liveness":
        from parallax.runtime.worker import heartbeat

        mock.patch.object(heartbeat, "LIMITS", NEVER).start()  # after its first beat the thread sleeps
        mock.patch.object(api, "launch", partial(_with, vars(api)["launch"], {"limits": NEVER})).start()
    else:
        without = partial(_without_secret, vars(launch)["mpirun_environment"])
        mock.patch.object(launch, "mpirun_environment", without).start()


def _with(launch_job: Callable[..., JobEnd], changes: dict[str, Any], job: Any) -> JobEnd:
    return launch_job(replace(job, **changes))


def _without_secret(environment_of: Callable[..., dict[str, str]], *given: Any) -> dict[str, str]:
    return {name: value for name, value in environment_of(*given).items() if name != SECRET}
