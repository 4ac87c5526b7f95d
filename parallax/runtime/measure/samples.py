"""Profiles a model from sample batches: every worker's ids are drawn, read or fed, and counted; nothing is trained.

On request, one process also trains a few steps to measure a worker's compute per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tensorflow as tf

from parallax.analysis.measuring.count_ids import LookedUpIds
from parallax.analysis.measuring.ids import (
    TableIds,
    collect_ids,
    explain_unmeasured,
    fetchable,
    table_profiles,
    tables_of,
    trained_on,
)
from parallax.analysis.stages import AnalysedGraph, plan_for, rewrites_of
from parallax.base.errors import ConfigError, GraphError
from parallax.base.types import Graph, Value
from parallax.cluster.profile_files import check_writable, default_path, write_model_profile
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


def write_profile(graph: Graph, analysed: AnalysedGraph, workers: int, config: Config, wanted: Settings) -> None:
    """Implements `parallax profile`: measures, prints, writes the file.

    Raises:
        ConfigError: feeds, the training op or the file are missing or wrong.
        GraphError: ids cannot be computed, or are no rows of their tables; the variables do not fit into memory.
    """
    if wanted.output:
        check_writable(Path(wanted.output))
    profile, notes = profile_samples(graph, analysed, workers, config, wanted)
    path = Path(wanted.output) if wanted.output else default_path(profile)
    write_model_profile(profile, path)
    show(profile_table(profile, notes) + f"Written to {path}\n")


@dataclass(frozen=True, slots=True)
class _Asking:
    """The subject and the options of a profile.

    Attributes:
        graph: the user's.
        analysed: the same.
        workers: how many.
        config: seed and session options.
        wanted: the command line's settings.
        feeds: of a step and worker.
        fed: names of the tensors that are fed.
    """

    graph: Graph
    analysed: AnalysedGraph
    workers: int
    config: Config
    wanted: Settings
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
        named = tuple((self.wanted.init or "").split())
        found = inputs_of(self.graph, self.analysed.captured, tensors, self.fed, named)
        if found.placeholders and self.wanted.feeds is None:
            raise missing_feeds("A profile", list(found.placeholders))
        if found.placeholders:
            raise ConfigError(
                f"{self.wanted.feeds} must feed every placeholder that is needed, but lacks "
                f"{', '.join(found.placeholders[:5])}. Give a batch for each."
            )
        plan = plan_for(self.analysed, one_host(self.workers), Config())
        return replace(found, alike=found.alike | frozenset(rewrites_of(self.analysed, plan).equal_random_ops))


def profile_samples(
    graph: Graph, analysed: AnalysedGraph, workers: int, config: Config, wanted: Settings
) -> tuple[ModelProfile, tuple[str, ...]]:
    """Returns the profile, and the values that could not be measured, a sentence each.

    Args:
        graph: the user's.
        analysed: the same.
        workers: how many.
        config: seed and session options.
        wanted: steps, feeds, fetch and other settings of the command line.
    """
    feeds = read_feeds(wanted.feeds) if wanted.feeds else _no_feeds
    asking = _Asking(
        graph, analysed, workers, config, wanted, feeds, frozenset(named_batch(graph, feeds(0, 0, workers)))
    )
    tables, notes = _measurable(asking)
    steps = wanted.steps or STEPS
    seen = _collect_ids(asking, tables, steps) if tables else [[[]] * steps] * workers
    counted = min(map(len, seen))
    if counted < steps:
        first = next(rank for rank, of_worker in enumerate(seen) if len(of_worker) == counted)
        notes.append(f"the data of worker {first} ended after {counted}")
    by_step = [[of_worker[step] for of_worker in seen] for step in range(counted)]
    found = _measure_compute(asking) if wanted.compute else ComputeMeasurement()
    profile = ModelProfile(
        version=MODEL_PROFILE_VERSION,
        graph=analysed.spec.model_key,
        cluster=wanted.cluster or "",
        steps=counted,
        source=SAMPLE_BATCHES,
        tables=table_profiles(tables, by_step),
        compute_s=found.step_s,
        memory_bytes=found.memory_bytes,
        one_core_s=found.one_core_s,
        op_seconds=found.op_seconds,
    )
    return profile, tuple(notes)


def _no_feeds(step: int, worker: int, size: int) -> dict[str, Value]:
    return {}


def _measurable(asking: _Asking) -> tuple[tuple[TableIds, ...], list[str]]:
    """The tables whose ids can be computed without training, and the reasons for the others."""
    captured, spec = asking.analysed.captured, asking.analysed.spec
    needed = None
    if asking.wanted.fetch:
        needed = captured.view.ancestors([train_op(asking.graph, asking.wanted.fetch).name.split(":")[0]])
    tables, reasons = fetchable(captured, tables_of(captured, spec, needed))
    made = {table.name: trained_on(captured, spec, table, asking.fed) for table in tables}
    reasons |= {name: f"{reason}: see parallax run --measure" for name, reason in made.items() if reason}
    return tuple(table for table in tables if table.name not in reasons), explain_unmeasured(reasons)


def _collect_ids(asking: _Asking, tables: Sequence[TableIds], steps: int) -> list[list[list[LookedUpIds]]]:
    """The ids that each worker looks up in each table in each step, `[worker][step][table]`, until its data ends."""
    tensors = [one.tensor for table in tables for one in table.tensors]
    inputs = asking.inputs(tensors)
    return [_seen_by(asking, inputs, tables, rank, steps) for rank in range(asking.workers)]


def _seen_by(
    asking: _Asking, inputs: Inputs, tables: Sequence[TableIds], rank: int, steps: int
) -> list[list[LookedUpIds]]:
    tensors = [one.tensor for table in tables for one in table.tensors]
    found: list[list[LookedUpIds]] = []
    try:
        with open_session(inputs, asking.worker(rank), asking.batch(0, rank)) as session:
            for step in range(steps):
                values = iter(session.run(tensors, inputs.fed_by(asking.batch(step, rank))))
                found.append(
                    [collect_ids(table, [next(values) for _ in table.tensors], rank, step) for table in tables]
                )
    except tf.errors.OutOfRangeError as error:
        if not found:
            raise GraphError(
                f"A profile needs a batch of every worker, but the data of worker {rank} ends before the first: "
                f"{error.message} Use fewer workers, or more data."
            ) from error
    except tf.errors.OpError as error:
        raise GraphError(
            f"The ids of worker {rank} cannot be computed in step {len(found)}: {error.message}"
        ) from error
    return found


def _measure_compute(asking: _Asking) -> ComputeMeasurement:
    fetch = train_op(asking.graph, asking.wanted.fetch).name
    inputs = asking.inputs([fetch])

    def batch(step: int) -> dict[str, Value]:
        return inputs.fed_by(asking.batch(step, 0))

    return measure_compute(inputs, fetch, batch, asking.worker(0), asking.config)
