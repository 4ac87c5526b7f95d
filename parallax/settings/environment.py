"""The only reader of the environment in the launcher and the workers' sessions: what a process of a job is to do.

The supervisor of a rank has variables of its own (runtime/agent.py).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from parallax.errors import ConfigError

_PREFIX = "PARALLAX_"

LISTEN_ADDRESS = "PARALLAX_LISTEN_ADDRESS"
"""Read by the library that narrows a server's address (parallax/native/preload/listen_address.c)."""

MIN_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""Read by TensorFlow: the level from which on its C++ code logs."""

HASH_SEED, EQUAL_HASHES = "PYTHONHASHSEED", "0"
"""Read by Python: from what its hashes of texts follow, and with them the order of sets; drawn where it is not set."""

FRAMEWORK_QUIET = 2
"""At this level neither information nor warnings of TensorFlow's start are shown."""

_REUSE_PORT = "TF_GRPC_REUSE_PORT"
_NO_PROXY = "no_grpc_proxy"


class Role(str, Enum):
    """What `parallel_run` shall do in this process."""

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


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line or the launcher asks of a process; a setting left out is None.

    Attributes:
        role: what to do.
        workers: number of local workers.
        resource: resource file.
        plan_json: where `parallax plan` writes the plan.
        html: where `parallax plan` and `parallax simulate` write their page.
        what_if: what `parallax simulate` looks at, as `WhatIf.to_text` writes it.
        explain: the variable that `parallax plan` explains.
        show_all: whether `parallax plan` gives every variable a row.
        cluster_profile: a file; goes before the configuration's.
        model_profile: likewise.
        wire_dtype: the element type in which float32 travels; goes before the configuration's.
        accumulate_steps: of how many batches gradients are kept; goes before the configuration's.
        compute_dtype: the element type in which products are computed; goes before the configuration's.
        graph: where the workers' graphs are written for TensorBoard.
        trace: where traces of training steps are written.
        trace_steps: first and last of these steps, as `A-B`.
        job_folder: where both sides of a verification leave their variables, and the second build of a check its graph.
        seed: of the one process of a verification.
        script_seed: of what Python and NumPy draw while the script builds its graph.
        steps: steps of a verification or profile.
        feeds: where a verification or profile takes its feeds from.
        fetch: what a verification or profile runs.
        tolerance: of a verification.
        verify_first: how many of a job's first steps are held against one process.
        claims: whether a verification tries what the analysis says of single tensors too.
        joined_args: the script's arguments for the one process of a verification, one a line.
        measure: where a model profile is written.
        compute: whether a profile times steps of one process alone.
        initializers: ops that begin iterators for a profile, separated by spaces.
        replan: what a running job does about a better plan; goes before the configuration's.
        replan_steps: after how many steps.
        plan_file: a plan to be used as it is; goes before the configuration's.
        cluster: fingerprint of the cluster profile that a model profile belongs to.
        log_level: what the log shows, a number or a name.
        framework_log: from which level on lines that TensorFlow writes at its start are shown.
    """

    role: Role = Role.LAUNCH
    workers: int | None = None
    resource: str | None = None
    plan_json: str | None = None
    html: str | None = None
    what_if: str | None = None
    explain: str | None = None
    show_all: bool | None = None
    cluster_profile: str | None = None
    model_profile: str | None = None
    wire_dtype: str | None = None
    accumulate_steps: int | None = None
    compute_dtype: str | None = None
    graph: str | None = None
    trace: str | None = None
    trace_steps: str | None = None
    job_folder: str | None = None
    seed: int | None = None
    script_seed: int | None = None
    steps: int | None = None
    feeds: str | None = None
    fetch: str | None = None
    tolerance: float | None = None
    verify_first: int | None = None
    claims: bool | None = None
    joined_args: str | None = None
    measure: str | None = None
    compute: bool | None = None
    initializers: str | None = None
    replan: str | None = None
    replan_steps: int | None = None
    plan_file: str | None = None
    cluster: str | None = None
    log_level: str | None = None
    framework_log: int | None = None


def settings() -> Settings:
    """Reads the settings of this process.

    Raises:
        ConfigError: when a variable does not hold what it must.
    """
    log_level()
    try:
        return Settings(
            role=Role(_get("ROLE") or "launch"),
            workers=_number("WORKERS"),
            resource=_get("RESOURCE"),
            plan_json=_get("PLAN_JSON"),
            html=_get("HTML"),
            what_if=_get("WHAT_IF"),
            explain=_get("EXPLAIN"),
            show_all=_get("SHOW_ALL") == str(True) or None,
            cluster_profile=_get("CLUSTER_PROFILE"),
            model_profile=_get("MODEL_PROFILE"),
            wire_dtype=_get("WIRE_DTYPE"),
            accumulate_steps=_number("ACCUMULATE_STEPS"),
            compute_dtype=_get("COMPUTE_DTYPE"),
            graph=_get("GRAPH"),
            trace=_get("TRACE"),
            trace_steps=_get("TRACE_STEPS"),
            job_folder=_get("JOB_FOLDER"),
            seed=_number("SEED"),
            script_seed=_number("SCRIPT_SEED"),
            steps=_number("STEPS"),
            feeds=_get("FEEDS"),
            fetch=_get("FETCH"),
            tolerance=float(_get("TOLERANCE") or 0) or None,
            verify_first=_number("VERIFY_FIRST"),
            claims=_get("CLAIMS") == str(True) or None,
            joined_args=_get("JOINED_ARGS"),
            measure=_get("MEASURE"),
            compute=_get("COMPUTE") == str(True) or None,
            initializers=_get("INITIALIZERS"),
            replan=_get("REPLAN"),
            replan_steps=_number("REPLAN_STEPS"),
            plan_file=_get("PLAN_FILE"),
            cluster=_get("CLUSTER"),
            log_level=_get("LOG_LEVEL"),
            framework_log=_number("FRAMEWORK_LOG"),
        )
    except ValueError as error:
        raise ConfigError(f"A variable {_PREFIX}... of the environment does not hold what it must: {error}.") from error


def as_variables(wanted: Settings) -> dict[str, str]:
    """The settings as environment variables, for a process to be started."""
    found = {}
    for name in Settings.__slots__:
        value = getattr(wanted, name)
        if value is not None:
            found[f"{_PREFIX}{name.upper()}"] = value.value if isinstance(value, Role) else str(value)
    return found


def environment_with(wanted: Settings, more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `more` and with settings, for a process to be started."""
    return {**os.environ, **more, **as_variables(wanted)}


@contextmanager
def applied(wanted: Settings) -> Iterator[None]:
    """Puts settings into this process's environment for the time of a `with` block."""
    before = dict(os.environ)
    os.environ.update(as_variables(wanted))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def log_level() -> int:
    """The level of the log that PARALLAX_LOG_LEVEL asks for, a number or a name; INFO when it is not set.

    Raises:
        ConfigError: when it is neither.
    """
    text = _get("LOG_LEVEL") or "INFO"
    level = int(text) if text.isdecimal() else logging.getLevelName(text.upper())
    if not isinstance(level, int):
        raise ConfigError(
            f"{_PREFIX}LOG_LEVEL must be a number or one of DEBUG, INFO, WARNING, ERROR, CRITICAL, and is {text!r}."
        )
    return level


def framework_level() -> int:
    """From which level on what TensorFlow writes at its start is shown: 0 INFO, 1 WARNING, 2 neither.

    The launcher's wish goes before TF_CPP_MIN_LOG_LEVEL, as the user has set it.
    """
    text = _get("FRAMEWORK_LOG") or os.environ.get(MIN_LOG_LEVEL, "")
    return int(text) if text.isdecimal() else FRAMEWORK_QUIET


@contextmanager
def listening_on(address: str) -> Iterator[None]:
    """Inside, a TensorFlow server listens on `address` only, and may take over a port that this process holds."""
    before = {name: os.environ.get(name) for name in (LISTEN_ADDRESS, _REUSE_PORT)}
    os.environ.update({LISTEN_ADDRESS: address, _REUSE_PORT: "1"})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def reach_directly(addresses: Iterable[str]) -> None:
    """Has gRPC connect to these addresses itself, also where the environment names a proxy for the web."""
    before = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy")
    os.environ[_NO_PROXY] = ",".join([*filter(None, [before]), *dict.fromkeys(addresses)])


def with_equal_hashes() -> dict[str, str] | None:
    """This process's environment with a seed for Python's hashes, by which sets of texts have one order everywhere.

    Returns:
        None where it has one: such a seed counts from a process's start only.
    """
    return None if HASH_SEED in os.environ else {**os.environ, HASH_SEED: EQUAL_HASHES}


def visible_gpus() -> str | None:
    """What CUDA_VISIBLE_DEVICES says."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def onednn_is_off() -> bool:
    """Whether the environment turns off oneDNN, by which TensorFlow computes on CPUs."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in ("0", "false")


def with_defaults(defaults: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(name, value) of these variables: what the environment sets itself goes before the default."""
    return tuple((name, os.environ.get(name, value)) for name, value in defaults.items())


def set_defaults(defaults: Mapping[str, str]) -> None:
    """Sets variables that are not set; for libraries that read them when they are loaded."""
    for name, value in with_defaults(defaults):
        os.environ[name] = value


def python_path_with(folder: Path) -> str:
    """PYTHONPATH with `folder` in front; an installed package is found without."""
    own = [] if folder.name in ("site-packages", "dist-packages") else [str(folder)]
    return os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _get(name: str) -> str | None:
    return os.environ.get(_PREFIX + name) or None


def _number(name: str) -> int | None:
    text = _get(name)
    return int(text) if text is not None else None
