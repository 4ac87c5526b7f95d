"""What a user may set for a run: each value is checked where it is set, at construction and at assignment alike.

The parts of a configuration (how to communicate, where to save, what to profile) are frozen values. `Config` itself may
be assigned to, as drivers of Parallax 2019 do; `parallel_run` takes a copy, so nothing changes during a run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from parallax.errors import ConfigError
from parallax.plans.plan import RUN_OPTIONS
from parallax.plans.wire import WIRE_DTYPES
from parallax.settings import checked

STALL_TIMEOUT_S = 60.0
"""How long a worker waits for the others in one run before the job is ended; generous beside any healthy step."""
COMPUTE_DTYPES = ("bfloat16",)
"""What products may be computed in, besides their own type."""

OFF, ASK, ON = REPLAN_MODES = ("off", "ask", "on")
_PROTOCOLS = ("grpc", "grpc+verbs", "grpc+gdr")


@dataclass(frozen=True)
class PSConfig:
    """Servers: how workers and servers exchange.

    Attributes:
        protocol: `grpc`; `grpc+verbs` and `grpc+gdr`, which TensorFlow no longer has, stand for it.
        replicate_variables: dense variables on servers are mirrored in the workers, always; False changes nothing.
        local_aggregation: the workers of a host merge the rows that they ask for and their gradient rows before any of
            it leaves the host, on the way to servers and between workers.
        boundary_among_servers: placing of ops, which follows from the plan; False changes nothing.
        boundary_between_workers_and_servers: the same.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    protocol: str = "grpc"
    replicate_variables: bool = True
    local_aggregation: bool = True
    boundary_among_servers: bool = True
    boundary_between_workers_and_servers: bool = True

    def __post_init__(self) -> None:
        checked.one_of("protocol", self.protocol, _PROTOCOLS)
        checked.truth("replicate_variables", self.replicate_variables)
        checked.truth("local_aggregation", self.local_aggregation)
        checked.truth("boundary_among_servers", self.boundary_among_servers)
        checked.truth("boundary_between_workers_and_servers", self.boundary_between_workers_and_servers)


@dataclass(frozen=True)
class MPIConfig:
    """mpirun.

    Attributes:
        mpirun_options: words for mpirun's command, or one text that is split as a shell does.
        use_allgatherv: which collective gathers rows, which follows from the plan; True changes nothing.

    Raises:
        ConfigError: when it is neither, or a quote is not closed.
    """

    mpirun_options: str | Sequence[str] | None = ""
    use_allgatherv: bool = False

    def __post_init__(self) -> None:
        checked.truth("use_allgatherv", self.use_allgatherv)
        _ = self.words  # refuses what has none

    @property
    def words(self) -> tuple[str, ...]:
        """The options, a word each."""
        options = self.mpirun_options or ()
        if isinstance(options, str):
            try:
                return tuple(shlex.split(options))
            except ValueError as error:
                raise ConfigError(f"mpirun_options must have its quotes closed, and {options!r} was given.") from error
        if not isinstance(options, Sequence) or not all(isinstance(word, str) for word in options):
            raise ConfigError(f"mpirun_options must be a text or a list of words, and {options!r} was given.")
        return tuple(options)


@dataclass(frozen=True)
class CommunicationConfig:
    """How gradients travel: by servers and by MPI.

    Attributes:
        ps_config: servers; None for the defaults.
        mpi_config: mpirun; None for the defaults.

    Raises:
        ConfigError: when a part is of another type.
    """

    ps_config: PSConfig = field(default_factory=PSConfig)
    mpi_config: MPIConfig = field(default_factory=MPIConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ps_config", checked.instance_of("ps_config", self.ps_config, PSConfig))
        object.__setattr__(self, "mpi_config", checked.instance_of("mpi_config", self.mpi_config, MPIConfig))


@dataclass(frozen=True)
class CheckPointConfig:
    """Checkpoints during the run; without a folder there are none.

    Attributes:
        ckpt_dir: the folder, or None.
        save_ckpt_steps: steps from one checkpoint to the next.
        save_ckpt_secs: seconds from one checkpoint to the next.

    Raises:
        ConfigError: when a value breaks its rule, or there is a folder and neither steps nor seconds.
    """

    ckpt_dir: Path | str | None = None
    save_ckpt_steps: int | None = None
    save_ckpt_secs: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ckpt_dir", checked.path_or_none("ckpt_dir", self.ckpt_dir))
        checked.number_or_none("save_ckpt_steps", self.save_ckpt_steps)
        checked.seconds_or_none("save_ckpt_secs", self.save_ckpt_secs)
        if self.ckpt_dir is not None and self.save_ckpt_steps is None and self.save_ckpt_secs is None:
            raise ConfigError(
                f"ckpt_dir needs save_ckpt_steps or save_ckpt_secs, and {str(self.ckpt_dir)!r} was given without. "
                "Say how often to save."
            )


@dataclass(frozen=True)
class ProfileConfig:
    """Which steps are traced; without a folder none is.

    Attributes:
        profile_dir: where the traces go.
        profile_steps: the steps to trace.
        profile_range: first step to trace, and the step after the last.
        profile_worker: the rank whose steps are traced; None for all.

    Raises:
        ConfigError: when a value breaks its rule; steps and range, or neither, are given for a folder.
    """

    profile_dir: Path | str | None = None
    profile_steps: Sequence[int] | None = None
    profile_range: tuple[int, int] | None = None
    profile_worker: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile_dir", checked.path_or_none("profile_dir", self.profile_dir))
        for name in ("profile_steps", "profile_range"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Sequence) or not all(checked.is_int(step) and step >= 0 for step in value):
                raise ConfigError(f"{name} must be a list of whole numbers from 0, or None, and {value!r} was given.")
            object.__setattr__(self, name, tuple(value) or None)  # drivers give [] for none
        if self.profile_range is not None and (
            len(self.profile_range) != 2 or self.profile_range[0] >= self.profile_range[1]
        ):
            raise ConfigError(
                f"profile_range must be the first step and one after the last, and {self.profile_range!r} was given."
            )
        checked.number_or_none("profile_worker", self.profile_worker, least=0)
        wanted = (self.profile_steps is not None) + (self.profile_range is not None)
        if wanted == 2 or (self.profile_dir is not None) != (wanted == 1):
            raise ConfigError(
                "A profile needs profile_dir and one of profile_steps and profile_range, and given were "
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


@dataclass(frozen=True)
class ReplanConfig:
    """Whether a running job takes a better plan when its first steps have shown what they touch.

    Attributes:
        mode: `off`: plans stay. `ask`: a better plan is printed and written to a file. `on`: the job goes over to it.
        margin: by which share of the predicted step the other plan must be shorter.
        after_steps: how many steps are measured before the plans are compared.
        plan_file: where worker 0 writes the other plan; None for `parallax-plan-GRAPH.json` in its working folder.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    mode: str = OFF
    margin: float = 0.1
    after_steps: int = 20
    plan_file: Path | str | None = None

    def __post_init__(self) -> None:
        checked.one_of("replan", self.mode, REPLAN_MODES)
        if not isinstance(self.margin, int | float) or isinstance(self.margin, bool) or not 0 <= self.margin < 1:
            raise ConfigError(f"margin must be a share from 0 up to 1, and {self.margin!r} was given. 0.1 is a tenth.")
        checked.number("after_steps", self.after_steps)
        object.__setattr__(self, "plan_file", checked.path_or_none("plan_file", self.plan_file))


@dataclass
class Config:
    """Settings of `parallel_run`; also called `ParallaxConfig`.

    The first nine are those of Parallax 2019, in its order, by position or by name. All may be assigned later; a value
    is checked when it is set, and a name that is no setting is refused.

    Attributes:
        run_option: `HYBRID`: every variable by the route that suits it. `MPI`: no servers. `PS`: all variables with a
            gradient on servers. None for `HYBRID`.
        average_sparse: True: rows are the mean over the joined batch, on every route. False: they are summed over the
            workers. Changed: the default of 2019 was False, and its True meant another thing by each run option.
        sess_config: a ConfigProto for the workers' sessions.
        redirect_path: a folder; each worker's output also goes to files there.
        search_partitions: a job with tables on servers tries numbers of partitions in its first steps, and stays with
            the best; nothing is started twice. Without servers, or with sync=False, no effect.
        export_graph_path: a folder; each worker's graph is written there.
        communication_config: servers and mpirun.
        ckpt_config: checkpoints.
        profile_config: traces.
        workers: workers on this machine when there is no resource file; None for one per GPU, or two without a GPU.
        routes: variable name -> route, where the user knows better than the plan.
        partitions: variable name -> how many partitions it has on the servers.
        touched_rows: variable name -> distinct rows that a worker reads in a step, where the batch has no static shape.
        plan_file: a plan written by `parallax plan --json`, to be used as it is.
        cluster_profile: what `parallax calibrate` measured of these hosts; plans are then made by predicted seconds.
        model_profile: what was measured of this graph's steps; goes before static shapes, and after `touched_rows`.
        replan: what a running job does about a better plan: a ReplanConfig, or its mode alone, as `on`.
        wire_dtype: `bfloat16` or `float16`: float32 rows and gradients travel in half precision, rounded; None, the
            default: as they are.
        accumulate_steps: of how many batches a worker keeps the gradients before they travel; each `run` of the
            train_op is one batch, and the last of so many updates. 1, the default: every batch updates.
        compute_dtype: `bfloat16`: matrix products and convolutions are computed in it where TensorFlow offers that, on
            CPUs with oneDNN; None, the default: as they are.
        guard: whether workers are compared while they train, after steps 1, 2, 4, 8 and then now and again, at less
            than a hundredth of the time; a difference in what they must have equal ends the job. With sync=False, where
            nothing is equal, no effect.
        seed: of all random numbers that the script does not seed itself; drawn and printed when None.
        stall_timeout_s: seconds that a worker may wait in one `run` for others that do not come; infinite for ever.
        hooks: SessionRunHooks for the workers' sessions; they may name tensors of the user's graph.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    run_option: str | None = "HYBRID"
    average_sparse: bool = True
    sess_config: Any = None
    redirect_path: Path | str | None = None
    search_partitions: bool = False
    export_graph_path: Path | str | None = None
    communication_config: CommunicationConfig = field(default_factory=CommunicationConfig)
    ckpt_config: CheckPointConfig = field(default_factory=CheckPointConfig)
    profile_config: ProfileConfig = field(default_factory=ProfileConfig)
    _: KW_ONLY
    workers: int | None = None
    routes: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    touched_rows: Mapping[str, int] = field(default_factory=dict)
    plan_file: Path | str | None = None
    cluster_profile: Path | str | None = None
    model_profile: Path | str | None = None
    replan: ReplanConfig = field(default_factory=ReplanConfig)
    wire_dtype: str | None = None
    accumulate_steps: int = 1
    compute_dtype: str | None = None
    guard: bool = True
    seed: int | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S
    hooks: Sequence[Any] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets one value, checked."""
        if name not in _RULES:
            raise ConfigError(f"A setting of Config must be one of {', '.join(_RULES)}, and {name!r} was set.")
        object.__setattr__(self, name, _RULES[name](name, value))


ParallaxConfig = Config


def moot_settings(config: Config) -> tuple[str, ...]:
    """A line for each setting that has no effect here, saying what happens instead."""
    ps = config.communication_config.ps_config
    lines = {
        f"protocol={ps.protocol!r}: TensorFlow no longer has it, plain gRPC is used.": ps.protocol != "grpc",
        "replicate_variables=False: the workers hold copies of dense variables all the same.": (
            not ps.replicate_variables
        ),
        "boundary_among_servers=False: which server an op runs on follows from the plan all the same.": (
            not ps.boundary_among_servers
        ),
        "boundary_between_workers_and_servers=False: what runs on servers follows from the plan all the same.": (
            not ps.boundary_between_workers_and_servers
        ),
        "use_allgatherv=True: which collective gathers rows follows from the plan all the same.": (
            config.communication_config.mpi_config.use_allgatherv
        ),
    }
    return tuple(line for line, is_moot in lines.items() if is_moot)


def _run_option(name: str, value: Any) -> str:
    return "HYBRID" if value is None else checked.one_of(name, value, RUN_OPTIONS)


def _wire_dtype(name: str, value: Any) -> str | None:
    return None if value is None else checked.one_of(name, value, WIRE_DTYPES)


def _compute_dtype(name: str, value: Any) -> str | None:
    return None if value is None else checked.one_of(name, value, COMPUTE_DTYPES)


def _sess_config(name: str, value: Any) -> Any:
    if value is not None and not hasattr(value, "gpu_options"):
        raise ConfigError(f"{name} must be a tf.ConfigProto, or None, and {value!r} was given.")
    return value


def _replan(name: str, value: Any) -> ReplanConfig:
    if isinstance(value, str):
        return ReplanConfig(value)
    found: ReplanConfig = checked.instance_of(name, value, ReplanConfig)
    return found


def _hooks(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a list of SessionRunHooks, and {value!r} was given.")
    for hook in value:
        if isinstance(hook, type) or not hasattr(hook, "before_run") or not hasattr(hook, "after_run"):
            raise ConfigError(f"{name} must be SessionRunHooks, and {hook!r} is none.")
    return tuple(value)


_RULES: dict[str, Callable[[str, Any], Any]] = {
    "run_option": _run_option,
    "average_sparse": checked.truth,
    "sess_config": _sess_config,
    "redirect_path": checked.path_or_none,
    "search_partitions": checked.truth,
    "export_graph_path": checked.path_or_none,
    "communication_config": partial(checked.instance_of, wanted=CommunicationConfig),
    "ckpt_config": partial(checked.instance_of, wanted=CheckPointConfig),
    "profile_config": partial(checked.instance_of, wanted=ProfileConfig),
    "workers": checked.number_or_none,
    "routes": partial(checked.by_variable, wanted=str),
    "partitions": partial(checked.by_variable, wanted=int, least=1),
    "touched_rows": partial(checked.by_variable, wanted=int),
    "plan_file": checked.path_or_none,
    "cluster_profile": checked.path_or_none,
    "model_profile": checked.path_or_none,
    "replan": _replan,
    "wire_dtype": _wire_dtype,
    "accumulate_steps": checked.number,
    "compute_dtype": _compute_dtype,
    "guard": checked.truth,
    "seed": partial(checked.number_or_none, most=2**31 - 1),
    "stall_timeout_s": checked.seconds,
    "hooks": _hooks,
}
