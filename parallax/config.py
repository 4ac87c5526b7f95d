"""What a user may set for a run: one frozen value, checked where it is built."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax.errors import ConfigError

STALL_TIMEOUT_S = 60.0
"""How long a worker waits for the others in one run before the job is ended; generous beside any healthy step."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of `parallel_run`.

    Attributes:
        workers: workers on this machine when there is no resource file; None for one per GPU, or two without a GPU.
        routes: variable name -> `allreduce`, `allgather` or `alltoall`, where the user knows better than the plan.
        touched_rows: variable name -> distinct rows that a worker reads in a step, where the batch has no static shape.
        plan_file: a plan written by `parallax plan --json`, to be used as it is.
        seed: of all random numbers that the script does not seed itself; drawn and printed when None.
        stall_timeout_s: seconds that a worker may wait in one `run` for others that do not come; infinite for ever.
        sess_config: a ConfigProto for the workers' sessions.
        hooks: SessionRunHooks for the workers' sessions; they may name tensors of the user's graph.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    workers: int | None = None
    routes: Mapping[str, str] = field(default_factory=dict)
    touched_rows: Mapping[str, int] = field(default_factory=dict)
    plan_file: Path | str | None = None
    seed: int | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S
    sess_config: Any = None
    hooks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        self._check_numbers()
        for name, wanted in (("routes", str), ("touched_rows", int)):
            for key, value in _mapping(getattr(self, name), name).items():
                if not isinstance(key, str) or not isinstance(value, wanted) or isinstance(value, bool):
                    raise ConfigError(
                        f"{name} must map variable names to {wanted.__name__}, and holds {key!r}: {value!r}."
                    )
        if self.plan_file is not None and not isinstance(self.plan_file, str | os.PathLike):
            raise ConfigError(f"plan_file must be the path of a plan, or None, and {self.plan_file!r} was given.")
        if self.sess_config is not None and not hasattr(self.sess_config, "gpu_options"):
            raise ConfigError(f"sess_config must be a tf.ConfigProto, or None, and {self.sess_config!r} was given.")
        if not isinstance(self.hooks, Sequence):
            raise ConfigError(f"hooks must be a list of SessionRunHooks, and {self.hooks!r} was given.")
        for hook in self.hooks:
            if isinstance(hook, type) or not hasattr(hook, "before_run") or not hasattr(hook, "after_run"):
                raise ConfigError(f"hooks must be SessionRunHooks, and {hook!r} is none.")

    def _check_numbers(self) -> None:
        if self.workers is not None and (not _is_int(self.workers) or self.workers < 1):
            raise ConfigError(f"workers must be a whole number from 1, or None, and {self.workers!r} was given.")
        if self.seed is not None and (not _is_int(self.seed) or not 0 < self.seed < 2**31):
            raise ConfigError(
                f"seed must be a whole number from 1 to {2**31 - 1}, or None, and {self.seed!r} was given."
            )
        if not isinstance(self.stall_timeout_s, int | float) or not self.stall_timeout_s > 0:
            raise ConfigError(
                f"stall_timeout_s must be seconds above 0 ({math.inf} for ever), not {self.stall_timeout_s!r}."
            )


def _mapping(value: Any, name: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping from variable names, and {value!r} was given.")
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
