"""Records a verification's claims: the tensors checked in each step, and the values that each worker saves.

A step can hold only a limited amount in memory: if the tensors with claims exceed LIMIT_BYTES, they are checked in
groups, one group per step. Before each step all variables are saved, and the one process starts from them, so that each
step is checked by itself. Tensors that are left out are part of the result, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.analysis.planner import part_routes, placements
from parallax.analysis.propagation.propagate import walk_graph
from parallax.analysis.propagation.walk import Walk
from parallax.base.errors import ConfigError
from parallax.base.types import Graph, RunArgs, RunContext, RunValues, Value
from parallax.plans.plan import Plan
from parallax.runtime.supervisor.sealed_files import read_file_value, write_value
from parallax.runtime.verify.batches_of_graph import read_batches, text_as_bytes
from parallax.runtime.verify.claims import Claims, find_watched
from parallax.runtime.verify.draws import read_draws
from parallax.runtime.worker.session.run_context import TrainingRuns

v1 = tf.compat.v1

LIMIT_BYTES = 256 << 20
"""Limit of the values of one step that a process stores at once."""

GROUPS_FILE, PLAN_FILE, RESULT_FILE = "groups.json", "plan.json", "claims.json"
START_FILE, KEPT_FILE = "start-{step}.npz", "kept-{rank}-{step}.npz"


@dataclass(frozen=True, slots=True)
class ClaimGroups:
    """The tensors that are checked in each step.

    Attributes:
        groups: step k checks number k, and so on cyclically; each in topological order.
        too_large: tensors that alone exceed the limit.
        unclaimed: the number of tensors without a claim: mostly values of each worker's own batch.
        has_layouts: whether the claims are layouts of tensors.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    too_large: tuple[str, ...] = ()
    unclaimed: int = 0
    has_layouts: bool = False

    def of(self, step: int) -> tuple[str, ...]:
        """The tensors of a step."""
        return self.groups[step % len(self.groups)] if self.groups else ()

    def write(self, folder: Path) -> None:
        """Saves them for both sides."""
        write_value(folder / GROUPS_FILE, asdict(self))

    @staticmethod
    def read(folder: Path) -> ClaimGroups:
        """Reads the saved groups."""
        return read_file_value(folder / GROUPS_FILE, ClaimGroups)


def check_claims(plan: Plan, joined_args: str | None, replan: str | None) -> None:
    """Refuses, before anything is started, claims that cannot be checked.

    Raises:
        ConfigError: names the reason and the remedy.
    """
    reason = ""
    if plan.servers:
        reason = "this plan has rows on servers. Leave --claims out, or keep rows on workers: run_option='HYBRID'."
    elif plan.accumulate_steps > 1:
        reason = f"an update takes {plan.accumulate_steps} batches here. Leave --claims or accumulate_steps out."
    elif plan.stages:
        reason = "a worker holds one stage of the model here. Leave --claims or the stages out."
    elif plan.islands is not None:
        reason = "each island has a process of its own here. Leave --claims or the islands out."
    elif joined_args is not None:
        reason = (
            "with --joined-args the one process builds another graph. Leave the batch dimension of the placeholders "
            "open (None), or leave --claims out."
        )
    elif replan is not None:
        reason = "--replan may change the plan between steps. Leave one of the two out."
    if reason:
        raise ConfigError(
            f"--claims checks the tensors of workers that each train the whole model by one plan, but {reason}"
        )


def walk_of(analysed: AnalysedGraph, plan: Plan) -> Walk:
    """Runs the analysis on the graph of a verification, in which all workers draw the same random numbers."""
    spec = analysed.spec
    return walk_graph(analysed.captured, analysed.sources, part_routes(spec, plan), True, placements(spec, plan))


def groups_of(
    claims: Claims, tensors: Sequence[str], sizes: Mapping[str, int], limit_bytes: int = LIMIT_BYTES
) -> ClaimGroups:
    """Distributes tensors over steps.

    Args:
        claims: about them.
        tensors: all that can be fetched, in topological order.
        sizes: of each tensor with a claim, in bytes, on the global batch.
        limit_bytes: of one step.
    """
    claimed = [tensor for tensor in tensors if claims.describe(tensor)]
    groups: list[list[str]] = []
    room, too_large = 0, []
    for tensor in claimed:
        needed = sum(sizes[name] for name in claims.needs(tensor))
        if needed > limit_bytes:
            too_large.append(tensor)
            continue
        if not groups or needed > room:
            groups.append([])
            room = limit_bytes
        groups[-1] += [name for name in reversed(claims.needs(tensor)) if name not in groups[-1]]
        room -= needed
    return ClaimGroups(tuple(map(tuple, groups)), tuple(too_large), len(tensors) - len(claimed))


def save_claims(walk: Walk, folder: Path, fetch: str, sizes: Callable[[Sequence[str]], Mapping[str, int]]) -> None:
    """Saves for both sides the tensors that are checked in each step.

    Args:
        walk: that has the claims.
        folder: of the job.
        fetch: the op that a step runs.
        sizes: returns the bytes of tensors, on the global batch.
    """
    claims, tensors = Claims(walk), find_watched(walk.view, fetch)
    needed = dict.fromkeys(name for tensor in tensors if claims.describe(tensor) for name in claims.needs(tensor))
    groups = groups_of(claims, tensors, sizes(list(needed)))
    replace(groups, has_layouts=walk.facts.layouts is not None).write(folder)


class SavedTensors(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Fetches tensors along with a step, and saves their values: claims, draws and batches; every worker has one.

    Args:
        folder: of the job, with the drawn and the read tensors, and with the groups if claims are checked.
        rank: of this worker.
        training: identifies the runs that are steps.
    """

    def __init__(self, folder: Path, rank: int, training: TrainingRuns) -> None:
        self._folder = folder
        self._rank = rank
        self._training = training
        self._draws = [*read_draws(folder), *read_batches(folder)]
        self._groups = ClaimGroups.read(folder) if (folder / GROUPS_FILE).exists() else ClaimGroups()
        self.finished = not self._draws and not self._groups.groups
        self._step: int | None = None
        self._requested: list[str] = []

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Adds fetches of those tensors that this worker's graph has, which may be one stage's."""
        self._step = None if self.finished else self._training.step
        if self._step is None:
            return None
        graph = run_context.session.graph
        fetches = dict.fromkeys([*self._groups.of(self._step), *self._draws])
        self._requested = [tensor for tensor in fetches if _is_in(graph, tensor)]
        return v1.train.SessionRunArgs(self._requested)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Saves the fetched values."""
        if self._step is not None:
            file = KEPT_FILE.format(rank=self._rank, step=self._step)
            save(self._folder / file, dict(zip(self._requested, run_values.results, strict=True)))


def _is_in(graph: Graph, tensor: str) -> bool:
    try:
        graph.get_tensor_by_name(tensor)
    except (KeyError, ValueError):
        return False
    return True


def save(path: Path, values: Mapping[str, Value]) -> None:
    """Writes arrays; types that NumPy lacks (bfloat16) as float32, which represents all their values."""
    np.savez(path, **{name: _as_saved(value) for name, value in values.items()})


def _as_saved(value: Value) -> Value:
    kind = np.asarray(value).dtype.kind
    if kind in "OS":
        return text_as_bytes(value)
    return value.astype(np.float32) if kind == "V" else value
