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
        run_option: `HYBRID`, or None: each variable takes the route that suits it. `MPI`: no servers. `PS`: all
            variables with a gradient on servers.
        average_sparse: True: gradient rows are the mean over the global batch. False: their sum over the workers, the
            default in Parallax 2019.
        sess_config: a ConfigProto for the workers' sessions.
        redirect_path: a folder for copies of each worker's output; a script's second job writes to `call-2` there.
        search_partitions: a job with tables on servers tries numbers of partitions in its first steps and keeps the
            best. No effect without servers or with sync=False.
        export_graph_path: a folder for each worker's graph.
        communication_config: servers and mpirun.
        ckpt_config: checkpoints.
        profile_config: traces.
        workers: workers on this machine without a resource file. None: one per GPU, or two without a GPU.
        variables: variable name -> Variable, to override the plan.
        routes: variable name -> `route` of its Variable.
        partitions: variable name -> `partitions` of its Variable.
        touched_rows: variable name -> `touched_rows` of its Variable.
        plan_file: a plan of `parallax plan --json`, used unchanged.
        cluster_profile: a profile of these hosts by `parallax calibrate`; plans then minimize predicted seconds.
        model_profile: a profile of this graph's steps; overrides static shapes, not `touched_rows`.
        tables: large variables of Keras models.
        replan: what a running job does about a better plan: a ReplanConfig, or its mode, as `on`.
        restart: whether a failed job is restarted.
        wire_dtype: `bfloat16` or `float16`: float32 rows and gradients are sent in half precision. None: unchanged.
        accumulate_steps: number of batches, one per `run` of the train_op, whose gradients a worker accumulates for one
            update.
        lazy_updates: True: where an optimizer also changes rows of a table that no gradient touched, these are updated
            when they are read, with the same result, so a step costs the rows that it touches. False: every step
            updates all rows, as in the graph.
        layouts: each tensor of a step has a layout (replicated, sharded by example, partial sum), so a loss is computed
            on the global batch. In a script's graph, batches are placeholders, iterators and queues with an open first
            dimension (None); workers may have unequal shares. Rows of a tf.sparse_placeholder are examples; so are its
            columns when it multiplies rows of the batch, as an adjacency does. An integer fed for the batch length is
            the per-worker length. A fixed batch is opened if its constants can be told. None: if a script's graph
            cannot be followed, workers' gradients are averaged as for a mean over the batch, and the plan says why.
            True: such a graph is refused. False: gradients are averaged in every script's graph.
        gather_limit: most bytes of the global batch that a step may all-gather for ops in which examples interact; a
            plan with more is refused and names the ops. None: no limit. Tensors of a length unknown before the run are
            not counted.
        batch_norm: `global`: batch normalizations of Keras and `parallax.function` use statistics of the global batch,
            as one process does; the plan names the traffic. `own`: each worker uses its own batch; moving averages are
            means over the workers.
        overlap: True: a `run` returns when its fetches are computed; all-reduces, pushes and updates overlap with the
            next one, with the same values, and other uses of the session wait for them. False: a `run` ends with its
            updates. No effect with servers.
        compute_dtype: `bfloat16`: TensorFlow computes matrix products and convolutions in bfloat16 where it can, on
            CPUs with oneDNN. None: unchanged.
        guard: whether workers are compared after steps 1, 2, 4, 8 and later at times, in less than 1 % of the time; a
            difference in what must be equal ends the job. No effect with sync=False.
        seed: seed of all random numbers that the script does not seed. None: drawn and printed. A resumed job keeps its
            first seed.
        stall_timeout_s: seconds that a worker may wait in one `run` for others; `math.inf`: forever.
        host_timeout_s: seconds that a host may take to answer before the start; `math.inf`: forever.
        hooks: SessionRunHooks for all workers; they may name tensors of the user's graph. Instead of a folder shared by
            all, worker R writes to `worker-R` in it, worker 0 to the folder.
        chief_only_hooks: SessionRunHooks for worker 0 alone, such as logging. They fetch only what worker 0 has: its
            loss, no sharded table.

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
