"""The frozen parts of a configuration: communication, checkpoints, tracing, replanning."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from parallax.base.errors import ConfigError
from parallax.settings import checks
from parallax.settings.options import OF_SCRIPTS, PLAN, RUN, VERIFY, Option, absolute, part, positive, setting

OFF, ASK, ON = REPLAN_MODES = ("off", "ask", "on")
_PROTOCOLS = ("grpc", "grpc+verbs", "grpc+gdr")
_MEMORY_DIR = "/dev/shm"


def _words(name: str, value: Any) -> tuple[str, ...]:
    words = value or ()
    if isinstance(words, str):
        try:
            return tuple(shlex.split(words))
        except ValueError as error:
            raise ConfigError(f"{name} has an unclosed quote: {words!r}. Close it.") from error
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{name} must be a string or a list of strings, got {words!r}.")
    return tuple(words)


def _memory_dir(name: str, value: object) -> Path:
    return checks.path_or_none(name, value) or Path(_MEMORY_DIR)


def _steps(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or not all(checks.is_int(step) and step >= 0 for step in value):
        raise ConfigError(f"{name} must be a list of integers of at least 0, or None, got {value!r}.")
    return tuple(value) or None  # programs for Parallax 2019 pass [] for none


@checks.apply_rules
@dataclass(frozen=True)
class PSConfig:
    """Servers.

    Attributes:
        protocol: `grpc`, `grpc+verbs` or `grpc+gdr`; all mean gRPC.
        replicate_variables: no effect.
        local_aggregation: merge the rows that a host's workers request and send.
        boundary_among_servers: no effect.
        boundary_between_workers_and_servers: no effect.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    protocol: str = setting("grpc", rule=partial(checks.one_of, known=_PROTOCOLS))
    replicate_variables: bool = setting(True, rule=checks.truth)
    local_aggregation: bool = setting(True, rule=checks.truth)
    boundary_among_servers: bool = setting(True, rule=checks.truth)
    boundary_between_workers_and_servers: bool = setting(True, rule=checks.truth)


@checks.apply_rules
@dataclass(frozen=True)
class MPIConfig:
    """mpirun.

    Attributes:
        mpirun_options: words for mpirun's command; a string is split as by a shell.
        use_allgatherv: no effect.

    Raises:
        ConfigError: when it is neither, or a quote is not closed.
    """

    mpirun_options: str | Sequence[str] | None = setting((), rule=_words)
    use_allgatherv: bool = setting(False, rule=checks.truth)


@checks.apply_rules
@dataclass(frozen=True)
class CommunicationConfig:
    """Servers and mpirun.

    Attributes:
        ps_config: servers.
        mpi_config: mpirun.

    Raises:
        ConfigError: when a part is of another type.
    """

    ps_config: PSConfig = part(PSConfig)
    mpi_config: MPIConfig = part(MPIConfig)


@checks.apply_rules
@dataclass(frozen=True)
class CheckPointConfig:
    """Checkpoints during the run; without a folder there are none.

    Attributes:
        ckpt_dir: the folder.
        save_ckpt_steps: steps between checkpoints.
        save_ckpt_secs: seconds between checkpoints.
        whole_every: one of so many checkpoints is whole; the others are increments.
        keep_last: whole checkpoints that are kept, with their increments; None for all.
        keep_every_hours: of older ones, also keep one every so many hours.
        beside_training: whether training goes on while a checkpoint is written.
        preemption_grace_s: seconds to save and end after SIGTERM to the launcher. Kubernetes kills after 30.
        folder_timeout_s: seconds without an answer from the folder that end the job; `math.inf`: forever.
        memory_steps: steps between copies of the state to the memory of hosts, for restarts.
        memory_dir: a file system in memory, on every host.

    Raises:
        ConfigError: when a value breaks its rule, there is a folder and neither steps nor seconds, or touched rows are
            to be remembered both for increments and for the memory of hosts.
    """

    ckpt_dir: Path | str | None = setting(None, rule=checks.path_or_none)
    save_ckpt_steps: int | None = setting(None, rule=checks.number_or_none)
    save_ckpt_secs: float | None = setting(None, rule=checks.optional(checks.seconds))
    whole_every: int = setting(
        1, Option((RUN,), "one of K checkpoints is whole (default 1)", "K", parse=positive), rule=checks.number
    )
    keep_last: int | None = setting(
        5, Option((RUN,), "checkpoints to keep (default 5)", "K", parse=positive), rule=checks.number_or_none
    )
    keep_every_hours: float | None = setting(
        None, Option((RUN,), "also keep one every H hours", "H", parse=float), rule=checks.optional(checks.seconds)
    )
    beside_training: bool = setting(
        True, Option((RUN,), "pause training to write checkpoints", const=False), rule=checks.truth
    )
    preemption_grace_s: float = setting(
        25.0, Option((RUN,), "seconds to save and end at SIGTERM (default 25)", "S", parse=float), rule=checks.seconds
    )
    folder_timeout_s: float = setting(
        600.0,
        Option((RUN,), "end the job if its folder hangs for S seconds (default 600)", "S", parse=float),
        rule=checks.seconds,
    )
    memory_steps: int | None = setting(
        None,
        Option((RUN, PLAN), "copy the state to hosts' memory every K steps", "K", parse=positive),
        rule=checks.number_or_none,
    )
    memory_dir: Path | str = setting(
        _MEMORY_DIR,
        Option((RUN,), f"file system in memory (default {_MEMORY_DIR})", "DIR", parse=absolute),
        rule=_memory_dir,
    )

    @property
    def keeps_state(self) -> bool:
        """Whether a restarted job has a state to resume from: a folder, or the memory of hosts."""
        return self.ckpt_dir is not None or self.memory_steps is not None

    @property
    def remembers_rows(self) -> bool:
        """Whether touched rows are recorded."""
        return self.memory_steps is not None or (self.ckpt_dir is not None and self.whole_every > 1)

    def __post_init__(self) -> None:
        if self.memory_steps is not None and self.ckpt_dir is not None and self.whole_every > 1:
            raise ConfigError(
                f"whole_every and memory_steps cannot be combined, got {self.whole_every} and {self.memory_steps}: "
                "touched rows are recorded for only one of them. Set one."
            )
        if self.ckpt_dir is not None and self.save_ckpt_steps is None and self.save_ckpt_secs is None:
            raise ConfigError(
                f"ckpt_dir={str(self.ckpt_dir)!r} needs save_ckpt_steps or save_ckpt_secs, which say how often to "
                "save. Set one of them."
            )


@checks.apply_rules
@dataclass(frozen=True)
class TableConfig:
    """Large Keras variables.

    Attributes:
        traced_bytes: owners initialize variables of so many bytes and more.
        whole_bytes: most bytes of these that one process holds whole. For models with more, `fit`
            writes a checkpoint.
        tables_dir: the folder of these checkpoints, on worker 0's machine.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    traced_bytes: int = setting(
        64 * 2**20,
        Option(OF_SCRIPTS, "size from which owners initialize Keras variables", "N", parse=positive),
        rule=checks.number,
    )
    whole_bytes: int = setting(
        4 * 2**30,
        Option((RUN,), "limit for one process's large Keras variables", "N", parse=positive),
        rule=checks.number,
    )
    tables_dir: Path | str | None = setting(
        None,
        Option((RUN,), "where `fit` writes larger models' variables", "DIR", parse=absolute),
        rule=checks.path_or_none,
    )


@checks.apply_rules
@dataclass(frozen=True)
class ProfileConfig:
    """The steps to trace; none without a folder.

    Attributes:
        profile_dir: a folder for the traces.
        profile_steps: the steps to trace.
        profile_range: or the first step to trace, and the one after the last.
        profile_worker: the rank to trace; None for all.

    Raises:
        ConfigError: when a value breaks its rule; steps and range, or neither, are given for a folder.
    """

    profile_dir: Path | str | None = setting(None, rule=checks.path_or_none)
    profile_steps: Sequence[int] | None = setting(None, rule=_steps)
    profile_range: tuple[int, int] | None = setting(None, rule=_steps)
    profile_worker: int | None = setting(None, rule=partial(checks.number_or_none, least=0))

    def __post_init__(self) -> None:
        if self.profile_range is not None and (
            len(self.profile_range) != 2 or self.profile_range[0] >= self.profile_range[1]
        ):
            raise ConfigError(
                f"profile_range must be (first step, one past the last step), got {self.profile_range!r}."
            )
        stated_count = (self.profile_steps is not None) + (self.profile_range is not None)
        if stated_count == 2 or (self.profile_dir is not None) != (stated_count == 1):
            raise ConfigError(
                "Profiling needs profile_dir and either profile_steps or profile_range, got "
                f"profile_dir={self.profile_dir!r}, profile_steps={self.profile_steps!r}, "
                f"profile_range={self.profile_range!r}."
            )

    def traces(self, step: int, rank: int) -> bool:
        """Whether a step of a worker is to be traced."""
        if self.profile_dir is None or self.profile_worker not in (None, rank):
            return False
        if self.profile_range is not None:
            return self.profile_range[0] <= step < self.profile_range[1]
        return step in (self.profile_steps or ())


@checks.apply_rules
@dataclass(frozen=True)
class ReplanConfig:
    """A better plan for a running job.

    Attributes:
        mode: `off`: nothing. `ask`: print and write the plan. `on`: switch to it.
        margin: share of the predicted step by which the other plan must be faster.
        after_steps: steps before plans are compared.
        plan_file: where worker 0 writes the other plan, by default `parallax-plan-GRAPH.json`. No option.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    mode: str = setting(
        OFF,
        Option((RUN, VERIFY), "print (ask) or take (on) a better plan", choices=REPLAN_MODES),
        rule=lambda _, value: checks.one_of("replan", value, REPLAN_MODES),
        name="replan",
    )
    margin: float = setting(0.1, rule=partial(checks.between, least=0, most=1, has_most=False))
    after_steps: int = setting(
        20,
        Option((RUN, VERIFY), "compare plans after K steps (default 20)", "K", parse=positive),
        rule=checks.number,
        name="replan_steps",
    )
    plan_file: Path | str | None = setting(None, rule=checks.path_or_none)


@checks.apply_rules
@dataclass(frozen=True)
class RestartConfig:
    """Restarts of a failed job.

    Attributes:
        max_restarts: how often a failed job restarts from the latest checkpoint.
        min_hosts: leave out hosts that do not answer or fail again while so many remain. None: all are needed.
        no_spare: keep no processes waiting for a restart.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    max_restarts: int = setting(
        0, Option((RUN,), "most restarts of a failed job", "N", parse=positive), rule=partial(checks.number, least=0)
    )
    min_hosts: int | None = setting(
        None,
        Option((RUN,), "with --max-restarts: leave out failed hosts while M remain", "M", parse=positive),
        rule=checks.number_or_none,
    )
    no_spare: bool = setting(
        False, Option((RUN,), "with --max-restarts: keep no processes ready", const=True), rule=checks.truth
    )
