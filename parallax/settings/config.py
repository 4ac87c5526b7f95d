"""The configuration of a run: each value is checked where it is set, at construction and at assignment alike.

The parts of a configuration (parts.py) are frozen values. `Config` itself is mutable, because programs written for
Parallax 2019 assign to it; `parallel_run` copies it, so nothing changes during a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from parallax.base.errors import ConfigError
from parallax.base.types import ConfigProto, Hook
from parallax.plans.half_precision import WIRE_DTYPES
from parallax.plans.plan import RUN_OPTIONS
from parallax.settings import checks
from parallax.settings.islands import Islands
from parallax.settings.options import (
    DOCTOR,
    PLAN,
    PROFILE,
    RUN,
    SIMULATE,
    VERIFY,
    Option,
    absolute,
    part,
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
from parallax.settings.variables import FIELD_BY_MAPPING, Variable, merge_mappings

STALL_TIMEOUT_S = 60.0
"""Seconds that a worker waits for the others in one run before the job is ended; far longer than any healthy step."""
HOST_TIMEOUT_S = 30.0
"""Seconds that a host may take to respond: an ssh login that queries other servers takes a few."""
AUTO = "auto"
"""The value of `stages` by which the planner chooses their number."""
OWN = "own"
"""The value of `batch_norm` for per-worker statistics."""
COMPUTE_DTYPES = ("bfloat16",)
"""The element types of products that can be selected instead of their own type."""


def _run_option(name: str, value: object) -> str:
    return "HYBRID" if value is None else checks.one_of(name, value, RUN_OPTIONS)


def _stages(name: str, value: object) -> int | str | tuple[str, ...] | None:
    if value == AUTO:
        return AUTO
    if isinstance(value, str):
        value = int(value) if value.isdecimal() else value.split(",")
    if isinstance(value, list | tuple) and value:
        return checks.distinct_names(name, value)
    if value is None or checks.is_int(value):
        return checks.number_or_none(name, value)
    raise ConfigError(
        f"{name} must be a number of stages, {AUTO!r}, or a list of the last op of each stage except the last, got "
        f"{value!r}."
    )


def _islands(name: str, value: object) -> Islands | None:
    if isinstance(value, str):
        return Islands.of_text(value)
    return None if value is None else checks.instance_of(name, value, Islands)


def _sess_config(name: str, value: object) -> ConfigProto:
    if value is not None and not hasattr(value, "gpu_options"):
        raise ConfigError(f"{name} must be a tf.ConfigProto, or None, got {value!r}.")
    return value


def _replan(name: str, value: object) -> ReplanConfig:
    if isinstance(value, str):
        return ReplanConfig(value)
    checked: ReplanConfig = checks.instance_of(name, value, ReplanConfig)
    return checked


def _hooks(name: str, value: object) -> tuple[Hook, ...]:
    if not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a list of SessionRunHooks, got {value!r}.")
    for hook in value:
        if isinstance(hook, type) or not hasattr(hook, "before_run") or not hasattr(hook, "after_run"):
            raise ConfigError(f"{name} must be a list of SessionRunHooks, and its entry {hook!r} is not one.")
    return tuple(value)


@checks.apply_rules
@dataclass
class Config:
    """Settings of `parallel_run`; also called `ParallaxConfig`.

    The first nine are those of Parallax 2019, in its order, by position or by name. All may be assigned later; a value
    is checked when it is set, and a name that is no setting is refused.

    Attributes:
        run_option: `HYBRID`, None: by variable. `MPI`: no servers. `PS`: all variables with a gradient on servers.
        average_sparse: average gradient rows over the global batch. False: sum them over the workers.
        sess_config: the sessions' ConfigProto.
        redirect_path: folder for copies of the workers' output (`call-2` for a script's second job).
        search_partitions: find the best number of partitions of tables on servers in the first steps. Not with
            sync=False.
        export_graph_path: folder for workers' graphs.
        communication_config: servers and mpirun.
        ckpt_config: checkpoints.
        profile_config: traces.
        workers: without a resource file. None: one per GPU, else two.
        variables: variable name -> Variable.
        routes: variable name -> `route`.
        partitions: variable name -> `partitions`.
        touched_rows: variable name -> `touched_rows`.
        plan_file: of `parallax plan --json`, used unchanged.
        cluster_profile: of `parallax calibrate`; plans then minimize predicted seconds.
        model_profile: of this graph's steps; overrides static shapes, not `touched_rows`.
        tables: large Keras variables.
        replan: a ReplanConfig or its mode.
        restart: restarts of a failed job.
        wire_dtype: `bfloat16` or `float16` on the wire, for float32 rows and gradients.
        accumulate_steps: batches per update, weighed by their examples: each `run` of a script's train_op is one.
            Keras and `parallax.function`: micro-batches of a step's batch, with the result of the whole batch; where
            examples interact, each is a batch by itself, and the plan says so.
        stages: a number of them, or the ops or layers that end all but the last. `auto`: as many as make the shortest
            step. None: no cut.
        micro_batches: another name of `accumulate_steps`, for stages.
        staleness: with `sync="bounded"`, runs that a worker may be ahead of the slowest; 0: synchronous servers.
        islands: train islands of workers by themselves, and average them now and then. None: all together.
        examples: of a worker's batch, where the graph leaves it open, for a plan's memory and stages.
        lazy_updates: update rows without a gradient when they are read, not in every step, with the same result.
        layouts: compute losses of a script's graph on the global batch. None: average gradients where that is
            impossible; the plan says why. True: refuse such a graph. False: always average.
        gather_limit: refuse a plan whose step all-gathers more bytes of tensors of known length.
        batch_norm: statistics of the `global` batch or each worker's `own`, whose moving averages are means. In TF1
            graphs: fused ones.
        overlap: a `run` returns once its fetches are computed, and updates overlap with the next. Not with servers.
        compute_dtype: `bfloat16` for matrix products and convolutions, on CPUs with oneDNN.
        guard: compare workers now and then; a difference ends the job. Not with sync=False.
        seed: of random numbers that the script does not seed. None: drawn and printed.
        stall_timeout_s: seconds that a worker may wait for others in a `run`; `math.inf`: forever.
        host_timeout_s: seconds for a host to answer before the start; `math.inf`: forever.
        hooks: SessionRunHooks for all workers.
        chief_only_hooks: SessionRunHooks for worker 0, which fetch no sharded table.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    run_option: str | None = setting("HYBRID", rule=_run_option)
    average_sparse: bool = setting(True, rule=checks.truth)
    sess_config: Any = setting(None, rule=_sess_config)
    redirect_path: Path | str | None = setting(None, rule=checks.path_or_none)
    search_partitions: bool = setting(False, rule=checks.truth)
    export_graph_path: Path | str | None = setting(None, rule=checks.path_or_none)
    communication_config: CommunicationConfig = part(CommunicationConfig)
    ckpt_config: CheckPointConfig = part(CheckPointConfig)
    profile_config: ProfileConfig = part(ProfileConfig)
    _: KW_ONLY
    workers: int | None = setting(None, rule=checks.number_or_none)
    variables: Mapping[str, Variable] = setting(dict, rule=partial(checks.by_variable, kind=Variable))
    routes: Mapping[str, str] = setting(dict, rule=partial(checks.by_variable, kind=str))
    partitions: Mapping[str, int] = setting(dict, rule=partial(checks.by_variable, kind=int, least=1))
    touched_rows: Mapping[str, int] = setting(dict, rule=partial(checks.by_variable, kind=int))
    plan_file: Path | str | None = setting(
        None,
        Option((RUN, PLAN, VERIFY), "use this plan unchanged", "FILE", ("--plan",), parse=absolute),
        rule=checks.path_or_none,
    )
    cluster_profile: Path | str | None = setting(
        None,
        Option(
            (RUN, PLAN, VERIFY, SIMULATE),
            "plan by seconds, with `calibrate`'s profile",
            "FILE",
            ("--cluster",),
            parse=absolute,
        ),
        Option((PROFILE,), "the cluster profile it belongs to", "FILE", ("--cluster",), parse=absolute),
        Option((DOCTOR,), "compare links with this profile", "FILE", ("--cluster",), parse=absolute),
        rule=checks.path_or_none,
    )
    model_profile: Path | str | None = setting(
        None,
        Option((RUN, PLAN, SIMULATE), "plan with `profile`'s touched rows", "FILE", ("--profile",), parse=absolute),
        rule=checks.path_or_none,
    )
    tables: TableConfig = part(TableConfig)
    replan: ReplanConfig = setting(ReplanConfig, rule=_replan)
    restart: RestartConfig = part(RestartConfig)
    wire_dtype: str | None = setting(
        None,
        Option((RUN, PLAN, VERIFY, SIMULATE), "half precision on the wire", choices=WIRE_DTYPES),
        rule=checks.optional(partial(checks.one_of, known=WIRE_DTYPES)),
    )
    accumulate_steps: int = setting(
        1, Option((RUN, PLAN, VERIFY, SIMULATE), "update once for K batches", "K", parse=positive), rule=checks.number
    )
    stages: int | str | Sequence[str] | None = setting(
        None,
        Option((RUN, PLAN, VERIFY), "cut into P stages, after ops or layers (OP,OP), or as is fastest (auto)", "P"),
        rule=_stages,
    )
    micro_batches: int | None = setting(
        None,
        Option(
            (RUN, PLAN, VERIFY), "with --stages: update once for M batches, or M parts of Keras's", "M", parse=positive
        ),
        rule=checks.number_or_none,
    )
    staleness: int | None = setting(None, rule=partial(checks.number_or_none, least=0))
    islands: Islands | None = setting(
        None,
        Option((RUN, PLAN, VERIFY), "average islands of workers: every=8,pull=0.5 (docs/islands.md)", "SETTINGS"),
        rule=_islands,
    )
    examples: int | None = setting(
        None,
        Option((RUN, PLAN), "a worker's open batch, for --memory or --stages", "N", parse=positive),
        rule=checks.number_or_none,
    )
    lazy_updates: bool = setting(True, rule=checks.truth)
    layouts: bool | None = setting(None, rule=checks.optional(checks.truth))
    gather_limit: int | None = setting(None, rule=partial(checks.number_or_none, least=0))
    batch_norm: str = setting("global", rule=partial(checks.one_of, known=("global", OWN)))
    overlap: bool = setting(False, rule=checks.truth)
    compute_dtype: str | None = setting(
        None,
        Option((RUN, VERIFY, PROFILE), "products in bfloat16", choices=COMPUTE_DTYPES),
        rule=checks.optional(partial(checks.one_of, known=COMPUTE_DTYPES)),
    )
    guard: bool = setting(True, rule=checks.truth)
    seed: int | None = setting(None, rule=partial(checks.number_or_none, most=2**31 - 1))
    stall_timeout_s: float = setting(STALL_TIMEOUT_S, rule=checks.seconds)
    host_timeout_s: float = setting(
        HOST_TIMEOUT_S,
        Option((RUN, DOCTOR), "a host's time to answer (default 30)", "S", parse=float),
        rule=checks.seconds,
    )
    hooks: Sequence[Any] = setting((), rule=_hooks)
    chief_only_hooks: Sequence[Any] = setting((), rule=_hooks)

    def __setattr__(self, name: str, value: object) -> None:
        """Checks and sets one value."""
        if name not in _RULES:
            raise ConfigError(checks.unknown_setting("Config", name, _RULES))
        value = _RULES[name](name, value)
        if name in _OF_VARIABLES:
            merge_mappings(**self._of_variables(**{name: value}))
        object.__setattr__(self, name, value)

    @property
    def batches_per_update(self) -> int:
        """The number of batches whose gradients an update uses.

        Raises:
            ConfigError: `accumulate_steps` and `micro_batches` differ.
        """
        if self.micro_batches is not None and self.accumulate_steps not in (1, self.micro_batches):
            raise ConfigError(
                f"micro_batches and accumulate_steps are two names of one setting, got {self.micro_batches} and "
                f"{self.accumulate_steps}. Set micro_batches alone."
            )
        return self.micro_batches or self.accumulate_steps

    def of_variables(self, said: str) -> dict[str, Any]:
        """Variable name -> value from `variables` and its mapping together, for variables that have one.

        Args:
            said: a field of `Variable`.

        Raises:
            ConfigError: when the two differ; a mapping may have been changed in place.
        """
        records = merge_mappings(**self._of_variables())
        return {name: value for name, record in records.items() if (value := getattr(record, said)) is not None}

    def _of_variables(self, **changed: object) -> dict[str, Any]:
        """The settings of variables, including a value that is about to be set."""
        now = {name: changed.get(name, getattr(self, name, {})) for name in _OF_VARIABLES}
        return {"variables": now.pop("variables"), "mappings": now}


_OF_VARIABLES = ("variables", *FIELD_BY_MAPPING)
_RULES = {declared.name: rule_of(declared) for declared in fields(Config)}
ParallaxConfig = Config


def list_ineffective_settings(config: Config) -> tuple[str, ...]:
    """A line for each setting that has no effect here, with the actual behaviour."""
    ps = config.communication_config.ps_config
    lines = {
        f"protocol={ps.protocol!r}: this TensorFlow no longer supports it; using plain gRPC.": ps.protocol != "grpc",
        "replicate_variables=False has no effect: workers hold copies of dense variables.": (
            not ps.replicate_variables
        ),
        "boundary_among_servers=False has no effect: the plan decides which server an op runs on.": (
            not ps.boundary_among_servers
        ),
        "boundary_between_workers_and_servers=False has no effect: the plan decides which ops run on servers.": (
            not ps.boundary_between_workers_and_servers
        ),
        "use_allgatherv=True has no effect: the plan decides which collective gathers rows.": (
            config.communication_config.mpi_config.use_allgatherv
        ),
    }
    return tuple(line for line, is_moot in lines.items() if is_moot)
