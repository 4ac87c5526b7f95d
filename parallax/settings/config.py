"""What a user may set for a run: each value is checked where it is set, at construction and at assignment alike.

The parts of a configuration (parts.py) are frozen values. `Config` itself may be assigned to, as drivers of Parallax
2019 do; `parallel_run` takes a copy, so nothing changes during a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from parallax.errors import ConfigError
from parallax.plans.half_precision import WIRE_DTYPES
from parallax.plans.plan import RUN_OPTIONS
from parallax.settings import checks
from parallax.settings.options import (
    DOCTOR,
    PLAN,
    PROFILE,
    RUN,
    SIMULATE,
    VERIFY,
    Option,
    absolute,
    positive,
    rule_of,
    setting,
)
from parallax.settings.parts import (
    CheckPointConfig,
    CommunicationConfig,
    ProfileConfig,
    ReplanConfig,
    RestartConfig,
    TableConfig,
)
from parallax.settings.variables import FIELD_BY_MAPPING, Variable, together
from parallax.types import ConfigProto, Hook

STALL_TIMEOUT_S = 60.0
"""How long a worker waits for the others in one run before the job is ended; generous beside any healthy step."""
HOST_TIMEOUT_S = 30.0
"""How long a host may take to answer: a login over ssh that asks other servers takes a few seconds."""
COMPUTE_DTYPES = ("bfloat16",)
"""What products may be computed in, besides their own type."""


def _run_option(name: str, value: object) -> str:
    return "HYBRID" if value is None else checks.one_of(name, value, RUN_OPTIONS)


def _wire_dtype(name: str, value: object) -> str | None:
    return None if value is None else checks.one_of(name, value, WIRE_DTYPES)


def _batch_norm(name: str, value: object) -> str:
    return checks.one_of(name, value, ("global", "own"))


def _compute_dtype(name: str, value: object) -> str | None:
    return None if value is None else checks.one_of(name, value, COMPUTE_DTYPES)


def _sess_config(name: str, value: object) -> ConfigProto:
    if value is not None and not hasattr(value, "gpu_options"):
        raise ConfigError(f"{name} must be a tf.ConfigProto, or None, and {value!r} was given.")
    return value


def _replan(name: str, value: object) -> ReplanConfig:
    if isinstance(value, str):
        return ReplanConfig(value)
    found: ReplanConfig = checks.instance_of(name, value, ReplanConfig)
    return found


def _hooks(name: str, value: object) -> tuple[Hook, ...]:
    if not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a list of SessionRunHooks, and {value!r} was given.")
    for hook in value:
        if isinstance(hook, type) or not hasattr(hook, "before_run") or not hasattr(hook, "after_run"):
            raise ConfigError(f"{name} must be SessionRunHooks, and {hook!r} is none.")
    return tuple(value)


@checks.refuse_unknown
@dataclass
class Config:
    """Settings of `parallel_run`; also called `ParallaxConfig`.

    The first nine are those of Parallax 2019, in its order, by position or by name. All may be assigned later; a value
    is checked when it is set, and a name that is no setting is refused.

    Attributes:
        run_option: `HYBRID`: every variable by the route that suits it. `MPI`: no servers. `PS`: all variables with a
            gradient on servers. None for `HYBRID`.
        average_sparse: True: rows are the mean over the global batch, on every route. False: they are summed over the
            workers. Changed: the default of 2019 was False, and its True meant another thing by each run option.
        sess_config: a ConfigProto for the workers' sessions.
        redirect_path: a folder; each worker's output also goes to files there, in `call-2` for a script's second job.
        search_partitions: a job with tables on servers tries numbers of partitions in its first steps, and stays with
            the best; nothing is started twice. Without servers, or with sync=False, no effect.
        export_graph_path: a folder; each worker's graph is written there.
        communication_config: servers and mpirun.
        ckpt_config: checkpoints.
        profile_config: traces.
        workers: workers on this machine when there is no resource file; None for one per GPU, or two without a GPU.
        variables: variable name -> Variable, where the user knows better than the plan.
        routes: variable name -> `route` of its Variable.
        partitions: variable name -> `partitions` of its Variable.
        touched_rows: variable name -> `touched_rows` of its Variable.
        plan_file: a plan written by `parallax plan --json`, to be used as it is.
        cluster_profile: what `parallax calibrate` measured of these hosts; plans are then made by predicted seconds.
        model_profile: what was measured of this graph's steps; goes before static shapes, and after `touched_rows`.
        tables: large variables of Keras models.
        replan: what a running job does about a better plan: a ReplanConfig, or its mode alone, as `on`.
        restart: whether a job that fails is started again.
        wire_dtype: `bfloat16` or `float16`: float32 rows and gradients travel in half precision, rounded; None, the
            default: as they are.
        accumulate_steps: of how many batches a worker keeps the gradients before they travel; each `run` of the
            train_op is one batch, and the last of so many updates. 1, the default: every batch updates.
        lazy_updates: True: where an optimizer's update of a table changes rows that no gradient touched, these rows are
            brought up to date when they are read; the numbers are the same, and a step takes the time of the rows that
            it touches. False: as the graph has it.
        layouts: every tensor of a step has a layout (replicated, sharded by example, partial sum), so that whatever a
            loss makes of a batch is that of the global batch. In a script's graph the batches are what placeholders,
            iterators and queues give with an open first dimension (None): workers may have unequal shares. Of a
            tf.sparse_placeholder the rows are the examples, and so are the columns where it is multiplied by rows of
            the batch, as an adjacency is. An integer that is fed for the batch's length is the per-worker length. A
            batch of fixed length is opened where it can be told which constants are the batch's. None, the default:
            where that cannot be done in a script's graph, each worker's loss is taken for a mean over its batch,
            gradients are averaged, and the plan says why. True: a graph that cannot be followed is refused. False:
            every script's graph is taken so.
        gather_limit: how many bytes of tensors of the global batch a step may all-gather, as ops need them in which
            examples interact; a plan with more is refused, by the ops. None, the default: any number. What is as long
            as no batch tells before the run is not counted.
        batch_norm: "global", the default: batch normalizations of Keras and `parallax.function` take statistics of the
            global batch, as one process does; the plan says what that sends. "own": those of a worker's own batch, as
            replicas of TensorFlow do, and moving averages take the mean over the workers.
        overlap: True: a `run` gives back what it fetches as soon as it is there, and all-reduces, pushes and updates go
            on while the next one begins; every value is the one that runs one after the other give. Whatever else is
            asked of the session waits for them. False, the default: a `run` ends with its updates. With servers, no
            effect.
        compute_dtype: `bfloat16`: matrix products and convolutions are computed in it where TensorFlow offers that, on
            CPUs with oneDNN; None, the default: as they are.
        guard: whether workers are compared while they train, after steps 1, 2, 4, 8 and then now and again, at less
            than a hundredth of the time; a difference in what they must have equal ends the job. With sync=False, where
            nothing is equal, no effect.
        seed: of all random numbers that the script does not seed itself; drawn and printed when None. A job that goes
            on from a checkpoint keeps the one it began with.
        stall_timeout_s: seconds that a worker may wait in one `run` for others that do not come; infinite for ever.
        host_timeout_s: seconds that a host of the resource file may take to answer before the job is started; infinite
            for ever.
        hooks: SessionRunHooks for the workers' sessions; they may name tensors of the user's graph. What all workers
            would write to one folder, worker R writes to `worker-R` in it, but for worker 0.
        chief_only_hooks: such hooks for worker 0 alone, as those that log. They fetch what worker 0 has by itself: its
            own loss, no table that workers share.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    run_option: str | None = setting("HYBRID", rule=_run_option)
    average_sparse: bool = setting(True, rule=checks.truth)
    sess_config: Any = setting(None, rule=_sess_config)
    redirect_path: Path | str | None = setting(None, rule=checks.path_or_none)
    search_partitions: bool = setting(False, rule=checks.truth)
    export_graph_path: Path | str | None = setting(None, rule=checks.path_or_none)
    communication_config: CommunicationConfig = setting(
        CommunicationConfig, rule=partial(checks.instance_of, wanted=CommunicationConfig)
    )
    ckpt_config: CheckPointConfig = setting(CheckPointConfig, rule=partial(checks.instance_of, wanted=CheckPointConfig))
    profile_config: ProfileConfig = setting(ProfileConfig, rule=partial(checks.instance_of, wanted=ProfileConfig))
    _: KW_ONLY
    workers: int | None = setting(None, rule=checks.number_or_none)
    variables: Mapping[str, Variable] = setting(dict, rule=partial(checks.by_variable, wanted=Variable))
    routes: Mapping[str, str] = setting(dict, rule=partial(checks.by_variable, wanted=str))
    partitions: Mapping[str, int] = setting(dict, rule=partial(checks.by_variable, wanted=int, least=1))
    touched_rows: Mapping[str, int] = setting(dict, rule=partial(checks.by_variable, wanted=int))
    plan_file: Path | str | None = setting(
        None,
        Option((RUN, PLAN, VERIFY), "use a plan file unchanged", "FILE", ("--plan",), parse=absolute),
        rule=checks.path_or_none,
    )
    cluster_profile: Path | str | None = setting(
        None,
        Option(
            (RUN, PLAN, VERIFY, SIMULATE),
            "plan by seconds, with a profile of `parallax calibrate`",
            "FILE",
            ("--cluster",),
            parse=absolute,
        ),
        Option(
            (PROFILE,), "the cluster profile that the model profile belongs to", "FILE", ("--cluster",), parse=absolute
        ),
        Option((DOCTOR,), "the cluster profile with which links are compared", "FILE", ("--cluster",), parse=absolute),
        rule=checks.path_or_none,
    )
    model_profile: Path | str | None = setting(
        None,
        Option(
            (RUN, PLAN, SIMULATE),
            "plan with the touched rows that `parallax profile` counted",
            "FILE",
            ("--profile",),
            parse=absolute,
        ),
        rule=checks.path_or_none,
    )
    tables: TableConfig = setting(TableConfig, rule=partial(checks.instance_of, wanted=TableConfig))
    replan: ReplanConfig = setting(ReplanConfig, rule=_replan)
    restart: RestartConfig = setting(RestartConfig, rule=partial(checks.instance_of, wanted=RestartConfig))
    wire_dtype: str | None = setting(
        None,
        Option(
            (RUN, PLAN, VERIFY, SIMULATE),
            "half precision on the wire for float32 rows and gradients",
            choices=WIRE_DTYPES,
        ),
        rule=_wire_dtype,
    )
    accumulate_steps: int = setting(
        1,
        Option((RUN, PLAN, VERIFY, SIMULATE), "update once for the gradients of K batches", "K", parse=positive),
        rule=checks.number,
    )
    lazy_updates: bool = setting(True, rule=checks.truth)
    layouts: bool | None = setting(None, rule=checks.truth_or_none)
    gather_limit: int | None = setting(None, rule=partial(checks.number_or_none, least=0))
    batch_norm: str = setting("global", rule=_batch_norm)
    overlap: bool = setting(False, rule=checks.truth)
    compute_dtype: str | None = setting(
        None,
        Option(
            (RUN, VERIFY, PROFILE),
            "compute matrix products and convolutions in bfloat16",
            choices=COMPUTE_DTYPES,
        ),
        rule=_compute_dtype,
    )
    guard: bool = setting(True, rule=checks.truth)
    seed: int | None = setting(None, rule=partial(checks.number_or_none, most=2**31 - 1))
    stall_timeout_s: float = setting(STALL_TIMEOUT_S, rule=checks.seconds)
    host_timeout_s: float = setting(
        HOST_TIMEOUT_S,
        Option((RUN, DOCTOR), "hosts that give no answer within S seconds are named (default 30)", "S", parse=float),
        rule=checks.seconds,
    )
    hooks: Sequence[Any] = setting((), rule=_hooks)
    chief_only_hooks: Sequence[Any] = setting((), rule=_hooks)

    def __setattr__(self, name: str, value: object) -> None:
        """Sets one value, checks."""
        if name not in _RULES:
            raise ConfigError(checks.unknown_setting("Config", name, _RULES))
        value = _RULES[name](name, value)
        if name in _OF_VARIABLES:
            together(**self._of_variables(**{name: value}))
        object.__setattr__(self, name, value)

    def of_variables(self, said: str) -> dict[str, Any]:
        """Variable name -> what `variables` and its mapping say together, for those of which anything is said.

        Args:
            said: a field of `Variable`.

        Raises:
            ConfigError: when the two say different things; a mapping may have been changed in place.
        """
        records = together(**self._of_variables())
        return {name: value for name, record in records.items() if (value := getattr(record, said)) is not None}

    def _of_variables(self, **changed: object) -> dict[str, Any]:
        """What is said of variables, with a value that is about to be set."""
        now = {name: changed.get(name, getattr(self, name, {})) for name in _OF_VARIABLES}
        return {"variables": now.pop("variables"), "mappings": now}


_OF_VARIABLES = ("variables", *FIELD_BY_MAPPING)
_RULES = {declared.name: rule_of(declared) for declared in fields(Config)}
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
