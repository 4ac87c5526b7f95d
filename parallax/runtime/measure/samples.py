"""Profiles a model from sample batches: every worker's ids are drawn, read or fed, and counted; nothing is trained.

On request, one process also trains a few steps to measure a worker's compute per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph, plan_for, rewrites_of
from parallax.analysis.measuring.count_ids import LookedUpIds
from parallax.analysis.measuring.ids import (
    TableIds,
    collect_ids,
    explain_trained_ids,
    explain_unmeasured,
    find_fetchable_tables,
    list_tables,
    table_profiles,
)
from parallax.base.errors import ConfigError, GraphError
from parallax.base.types import Graph, Value
from parallax.cluster.profile_files import check_writable, default_path, save_profile
from parallax.cluster.profiles import MODEL_PROFILE_VERSION, ModelProfile
from parallax.plans.plan import one_host
from parallax.report.profile_table import profile_table
from parallax.report.show import show
from parallax.runtime.measure.compute import ComputeMeasurement, measure_compute
from parallax.runtime.measure.inputs import Inputs, inputs_of, open_session
from parallax.runtime.measure.options import STEPS
from parallax.runtime.worker.session.feeds import Feeds, missing_feeds, named_batch, read_feeds, train_op
from parallax.settings.config import Config
from parallax.settings.environment import Settings
from parallax.transform.building.editor import Worker

SAMPLE_BATCHES = "sample batches"


def write_profile(graph: Graph, analysed: AnalysedGraph, workers: int, config: Config, requested: Settings) -> None:
    """Implements `parallax profile`: measures, prints, writes the file.

    Raises:
        ConfigError: feeds, the training op or the file are missing or wrong.
        GraphError: ids cannot be computed, or are no rows of their tables; the variables do not fit into memory.
    """
    if requested.output:
        check_writable(Path(requested.output))
    profile, notes = profile_samples(graph, analysed, workers, config, requested)
    path = Path(requested.output) if requested.output else default_path(profile)
    save_profile(profile, path)
    show(profile_table(profile, notes) + f"Written to {path}\n")


@dataclass(frozen=True, slots=True)
class _ProfileRequest:
    """The subject and the options of a profile.

    Attributes:
        graph: the user's.
        analysed: the same.
        workers: how many.
        config: seed and session options.
        requested: the command line's settings.
        feeds: of a step and worker.
        fed: names of the tensors that are fed.
    """

    graph: Graph
    analysed: AnalysedGraph
    workers: int
    config: Config
    requested: Settings
    feeds: Feeds
    fed: frozenset[str]

    def batch(self, step: int, rank: int) -> dict[str, Value]:
        """The feeds of a worker, by the names of tensors."""
        return named_batch(self.graph, self.feeds(step, rank, self.workers))

    def worker(self, rank: int) -> Worker:
        """The worker whose random numbers and shard are used."""
        return Worker(rank, self.workers, self.config.seed or 1)

    def inputs(self, tensors: Sequence[str]) -> Inputs:
        """Extracts the part that some tensors need; refuses placeholders that are not fed."""
        named = tuple((self.requested.init or "").split())
        inputs = inputs_of(self.graph, self.analysed.captured, tensors, self.fed, named)
        if inputs.placeholders and self.requested.feeds is None:
            raise missing_feeds("A profile", list(inputs.placeholders))
        if inputs.placeholders:
            raise ConfigError(
                f"{self.requested.feeds} must feed every placeholder that is needed, but lacks "
                f"{', '.join(inputs.placeholders[:5])}. Give a batch for each."
            )
        plan = plan_for(self.analysed, one_host(self.workers), Config())
        return replace(
            inputs, equal_draws=inputs.equal_draws | frozenset(rewrites_of(self.analysed, plan).equal_random_ops)
        )


def profile_samples(
    graph: Graph, analysed: AnalysedGraph, workers: int, config: Config, requested: Settings
) -> tuple[ModelProfile, tuple[str, ...]]:
    """Returns the profile, and the values that could not be measured, a sentence each.

    Args:
        graph: the user's.
        analysed: the same.
        workers: how many.
        config: seed and session options.
        requested: steps, feeds, fetch and other settings of the command line.
    """
    feeds = read_feeds(requested.feeds) if requested.feeds else _no_feeds
    asking = _ProfileRequest(
        graph, analysed, workers, config, requested, feeds, frozenset(named_batch(graph, feeds(0, 0, workers)))
    )
    tables, notes = _measurable(asking)
    steps = requested.steps or STEPS
    seen = _collect_ids(asking, tables, steps) if tables else [[[]] * steps] * workers
    counted = min(map(len, seen))
    if counted < steps:
        first = next(rank for rank, of_worker in enumerate(seen) if len(of_worker) == counted)
        notes.append(f"the data of worker {first} ended after {counted}")
    by_step = [[of_worker[step] for of_worker in seen] for step in range(counted)]
    compute = _measure_compute(asking) if requested.compute else ComputeMeasurement()
    profile = ModelProfile(
        version=MODEL_PROFILE_VERSION,
        graph=analysed.spec.model_key,
        cluster=requested.cluster or "",
        steps=counted,
        source=SAMPLE_BATCHES,
        tables=table_profiles(tables, by_step),
        compute_s=compute.step_s,
        memory_bytes=compute.memory_bytes,
        one_core_s=compute.one_core_s,
        op_seconds=compute.op_seconds,
    )
    return profile, tuple(notes)


def _no_feeds(step: int, worker: int, size: int) -> dict[str, Value]:
    return {}


def _measurable(request: _ProfileRequest) -> tuple[tuple[TableIds, ...], list[str]]:
    """The tables whose ids can be computed without training, and the reasons for the others."""
    captured, spec = request.analysed.captured, request.analysed.spec
    needed = None
    if request.requested.fetch:
        needed = captured.view.ancestors([train_op(request.graph, request.requested.fetch).name.split(":")[0]])
    tables, reasons = find_fetchable_tables(captured, list_tables(captured, spec, needed))
    made = {table.name: explain_trained_ids(captured, spec, table, request.fed) for table in tables}
    reasons |= {name: f"{reason}: see parallax run --measure" for name, reason in made.items() if reason}
    return tuple(table for table in tables if table.name not in reasons), explain_unmeasured(reasons)


def _collect_ids(request: _ProfileRequest, tables: Sequence[TableIds], steps: int) -> list[list[list[LookedUpIds]]]:
    """The ids that each worker looks up in each table in each step, `[worker][step][table]`, until its data ends."""
    tensors = [one.tensor for table in tables for one in table.tensors]
    inputs = request.inputs(tensors)
    return [_collect_worker_ids(request, inputs, tables, rank, steps) for rank in range(request.workers)]


def _collect_worker_ids(
    request: _ProfileRequest, inputs: Inputs, tables: Sequence[TableIds], rank: int, steps: int
) -> list[list[LookedUpIds]]:
    tensors = [one.tensor for table in tables for one in table.tensors]
    ids_by_step: list[list[LookedUpIds]] = []
    try:
        with open_session(inputs, request.worker(rank), request.batch(0, rank)) as session:
            for step in range(steps):
                values = iter(session.run(tensors, inputs.fed_by(request.batch(step, rank))))
                ids_by_step.append(
                    [collect_ids(table, [next(values) for _ in table.tensors], rank, step) for table in tables]
                )
    except tf.errors.OutOfRangeError as error:
        if not ids_by_step:
            raise GraphError(
                f"A profile needs a batch of every worker, but the data of worker {rank} ends before the first: "
                f"{error.message} Use fewer workers, or more data."
            ) from error
    except tf.errors.OpError as error:
        raise GraphError(
            f"The ids of worker {rank} cannot be computed in step {len(ids_by_step)}: {error.message}"
        ) from error
    return ids_by_step


def _measure_compute(request: _ProfileRequest) -> ComputeMeasurement:
    fetch = train_op(request.graph, request.requested.fetch).name
    inputs = request.inputs([fetch])

    def batch(step: int) -> dict[str, Value]:
        return inputs.fed_by(request.batch(step, 0))

    return measure_compute(inputs, fetch, batch, request.worker(0), request.config)
