"""The only reader of environment variables in the launcher and the workers' sessions: role and settings of a process.

The supervisor of a rank has its own variables (parallax/runtime/supervisor/agent.py).
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path

from parallax.base.errors import ConfigError
from parallax.settings.options import (
    CALIBRATE,
    CHECK,
    DOCTOR,
    OF_SCRIPTS,
    PLAN,
    PROFILE,
    RUN,
    SHOW,
    SIMULATE,
    VERIFY,
    Option,
    absolute,
    positive,
    setting,
    value_of,
    variable_of,
)

MIN_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""Read by TensorFlow: the level from which its C++ code logs."""

HASH_SEED, EQUAL_HASHES = "PYTHONHASHSEED", "0"
"""Read by Python: the seed of string hashes, which determines the order of sets; random if not set."""

FRAMEWORK_QUIET = 2
"""At this level neither information nor warnings from TensorFlow's startup are shown."""

_NO_PROXY = "no_grpc_proxy"


class Role(str, Enum):
    """The behaviour of `parallel_run` in this process."""

    LAUNCH = "launch"
    DRY_RUN = "dry-run"
    PLAN = "plan"
    PROFILE = "profile"
    SIMULATE = "simulate"
    VERIFY = "verify"
    WORKER = "worker"
    VERIFY_WORKER = "verify-worker"
    VERIFY_SINGLE = "verify-single"
    CHECK = "check"
    CHECK_BUILD = "check-build"
    EXPORT = "export"


def _one_a_line(text: str) -> str:
    """Splits arguments as a shell does, and joins them one per line."""
    return "\n".join(shlex.split(text))


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a process from the command line or the launcher; a setting left out is None.

    An option's help describes its setting. Those that `Config` declares too override the configuration's.

    Attributes:
        role: of the process.
        what_if: the variations for `parallax simulate`, in the format of `WhatIf.to_text`.
        job_folder: where both sides of a verification save their variables, and the second build of a check its graph.
        stand_by: modules, with commas between, that a process of a spare job imports before it waits for its message.
        job: the name of this job, the same at all its starts: a random number, a blank, and a title.
        memory_job: the name of this job's state in the memory of hosts, the same at all its starts.
        seed: of the one process of a verification.
        call: the number of the script's call that a job is started for, from 1 (parallax/entry/call.py); None for
            `parallel_run`, at which the launching process ends.
        by_itself: whether the process that launched a worker's job ran the script without a `parallax` command.
        without_keras: whether a worker imports TensorFlow without Keras, because it receives its graph from another
            process.
        script_seed: of Python's and NumPy's random numbers while the script builds its graph.
        joined_args: the script's arguments for the one process of a verification, one per line.
        cluster: fingerprint of the cluster profile that a model profile belongs to.
        log_level: the level of the log, a number or a name.
        framework_log: the level from which TensorFlow's startup messages are shown.
    """

    role: Role = Role.LAUNCH
    workers: int | None = setting(
        None,
        Option(
            (RUN, PLAN, VERIFY, CHECK, CALIBRATE, DOCTOR, PROFILE),
            "workers on this machine (default: one per GPU, else two)",
            "N",
            parse=positive,
            excludes="machines",
        ),
    )
    resource: str | None = setting(
        None,
        Option(
            (RUN, PLAN, VERIFY, CHECK, CALIBRATE, DOCTOR, PROFILE),
            "resource file",
            "FILE",
            ("-r",),
            excludes="machines",
        ),
        Option((SIMULATE,), "file whose hosts are copied", "FILE", ("-r",)),
    )
    graph: str | None = setting(None, Option((RUN, PLAN), "write workers' graphs for TensorBoard", "DIR"))
    cluster_profile: str | None = None
    model_profile: str | None = None
    plan_file: str | None = None
    wire_dtype: str | None = None
    accumulate_steps: int | None = None
    stages: str | None = None
    micro_batches: int | None = None
    islands: str | None = None
    examples: int | None = None
    compute_dtype: str | None = None
    replan: str | None = None
    replan_steps: int | None = None
    max_restarts: int | None = None
    no_spare: bool | None = None
    host_timeout_s: float | None = None
    min_hosts: int | None = None
    whole_every: int | None = None
    keep_last: int | None = None
    keep_every_hours: float | None = None
    beside_training: bool | None = None
    preemption_grace_s: float | None = None
    folder_timeout_s: float | None = None
    memory_steps: int | None = None
    memory_dir: str | None = None
    traced_bytes: int | None = None
    whole_bytes: int | None = None
    tables_dir: str | None = None
    trace: str | None = setting(None, Option((RUN,), "trace steps of every worker", "DIR"))
    trace_steps: str | None = setting(None, Option((RUN,), "counted from 0 (default 10-14)", "A-B"))
    measure: str | None = setting(None, Option((RUN,), "model profile of the first steps", "FILE"))
    measure_steps: int | None = setting(None, Option((RUN,), "default 20", "K", parse=positive))
    verify_first: int | None = setting(None, Option((RUN,), "compare K updates with one process", "K", parse=positive))
    json: str | None = setting(
        None, Option((PLAN,), "write the plan", "FILE"), Option((DOCTOR,), "write the findings", "FILE")
    )
    explain: str | None = setting(None, Option((PLAN, SHOW), "everything about it", "VARIABLE"))
    memory: bool | None = setting(
        None, Option((PLAN,), "every process's memory and the largest batch (also for --json)", const=True)
    )
    all: bool | None = setting(None, Option((PLAN, SHOW), "a row per variable", const=True))
    html: str | None = setting(None, Option((PLAN, SIMULATE, SHOW), "page for a browser", "FILE", parse=absolute))
    what_if: str | None = None
    steps: int | None = setting(
        None,
        Option((VERIFY,), "on both sides (default 5)", "K", parse=positive),
        Option((PROFILE,), "batches per worker (default 20)", "K", parse=positive),
    )
    feeds: str | None = setting(
        None, Option((VERIFY, PROFILE), "FILE.npz, or FILE.py:FUNCTION(step, worker, num_workers)", "FILE")
    )
    fetch: str | None = setting(
        None, Option((VERIFY, PROFILE), "op to run (default: the optimizer's; a wrong name lists others)", "NAME")
    )
    tolerance: float | None = setting(
        None, Option((VERIFY,), "largest error/change (default 1e-5; in half precision: steps x rounding)", parse=float)
    )
    claims: bool | None = setting(None, Option((VERIFY,), "also check every tensor", const=True))
    joined_args: str | None = setting(None, Option((VERIFY,), "the one process's arguments", "ARGS", parse=_one_a_line))
    init: str | None = setting(None, Option((PROFILE,), "op that initializes an iterator", "NAME", repeats=True))
    compute: bool | None = setting(None, Option((PROFILE,), "also time steps in one process", const=True))
    output: str | None = setting(None, Option((PROFILE,), "default: parallax-profile-GRAPH.json", "FILE", ("-o",)))
    job_folder: str | None = None
    stand_by: str | None = None
    job: str | None = None
    memory_job: str | None = None
    seed: int | None = None
    call: int | None = None
    by_itself: bool | None = None
    without_keras: bool | None = None
    script_seed: int | None = None
    cluster: str | None = None
    log_level: str | None = None
    framework_log: int | None = setting(None, Option(OF_SCRIPTS, "also print TensorFlow's log", const=0))


_KINDS: dict[str, type] = {
    field.name: next(kind for kind in (Role, int, float, bool, str) if kind.__name__ == str(field.type).split(" |")[0])
    for field in fields(Settings)
}
"""Setting -> type of its values, as annotated."""


SETTINGS_VARIABLES = frozenset(map(variable_of, _KINDS))
"""The names of the environment variables that carry settings to a process."""


def settings() -> Settings:
    """Reads the settings of this process.

    Raises:
        ConfigError: when a variable's value is invalid.
    """
    log_level()
    texts = {name: os.environ.get(variable_of(name)) for name in _KINDS}
    return Settings(**{name: value_of(name, _KINDS[name], text) for name, text in texts.items() if text})


def as_variables(requested: Settings) -> dict[str, str]:
    """The settings as environment variables, for a new process."""
    value_by_variable = {}
    for name in _KINDS:
        value = getattr(requested, name)
        if value is not None:
            value_by_variable[variable_of(name)] = value.value if isinstance(value, Role) else str(value)
    return value_by_variable


def environment_with(requested: Settings, more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `more` and with settings, for a new process."""
    return {**os.environ, **more, **as_variables(requested)}


@contextmanager
def apply_settings(requested: Settings) -> Iterator[None]:
    """Context in which this process's environment contains the settings."""
    before = dict(os.environ)
    os.environ.update(as_variables(requested))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def log_level() -> int:
    """The log level from PARALLAX_LOG_LEVEL, a number or a name; INFO if it is not set.

    Raises:
        ConfigError: when it is neither.
    """
    text = os.environ.get(variable_of("log_level")) or "INFO"
    level = int(text) if text.isdecimal() else logging.getLevelName(text.upper())
    if not isinstance(level, int):
        raise ConfigError(
            f"{variable_of('log_level')} must be a number or one of DEBUG, INFO, WARNING, ERROR, CRITICAL, got "
            f"{text!r}."
        )
    return level


def is_commanded() -> bool:
    """Whether a `parallax` command runs the script: in this process, or in the one that launched this worker's job."""
    return variable_of("role") in os.environ and not settings().by_itself


def framework_level() -> int:
    """The level from which TensorFlow's startup messages are shown: 0 INFO, 1 WARNING, 2 neither.

    The launcher's setting overrides TF_CPP_MIN_LOG_LEVEL, as the user has set it.
    """
    text = os.environ.get(variable_of("framework_log")) or os.environ.get(MIN_LOG_LEVEL, "")
    return int(text) if text.isdecimal() else FRAMEWORK_QUIET


def wants_colours() -> bool:
    """Whether output to a terminal may have colours: any nonempty value of NO_COLOR forbids them."""
    return not os.environ.get("NO_COLOR")


def reach_directly(addresses: Iterable[str]) -> None:
    """Makes gRPC connect to these addresses directly, even if the environment names a web proxy."""
    before = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy")
    os.environ[_NO_PROXY] = ",".join([*filter(None, [before]), *dict.fromkeys(addresses)])


def with_equal_hashes() -> dict[str, str] | None:
    """This process's environment with a seed for Python's hashes, which makes the order of sets equal everywhere.

    Returns:
        None if it has one: such a seed takes effect at a process's start only.
    """
    return None if HASH_SEED in os.environ else {**os.environ, HASH_SEED: EQUAL_HASHES}


def visible_gpus() -> str | None:
    """The value of CUDA_VISIBLE_DEVICES."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def onednn_is_off() -> bool:
    """Whether the environment turns off oneDNN, which TensorFlow uses on CPUs."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in ("0", "false")


def with_defaults(defaults: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(name, value) of these variables: values in the environment override the defaults."""
    return tuple((name, os.environ.get(name, value)) for name, value in defaults.items())


def set_defaults(defaults: Mapping[str, str]) -> None:
    """Sets variables that are not set; for libraries that read them when they are loaded."""
    for name, value in with_defaults(defaults):
        os.environ[name] = value


def python_path_with(folder: Path) -> str:
    """PYTHONPATH with `folder` in front; an installed package is found without it."""
    folders = [] if folder.name in ("site-packages", "dist-packages") else [str(folder)]
    return os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
