"""Profiles a model from sample batches: every worker's ids are drawn, read or fed, and counted; nothing is trained.

Beside that, where it is asked for, one process trains a few steps to see what a worker computes in one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parallax.analysis.ids import TableIds, asked, fetchable, tables_of, trained_on
from parallax.analysis.measure import Asked, table_profile
from parallax.config import Config
from parallax.environment import Settings
from parallax.errors import ConfigError, GraphError
from parallax.profile_files import check_writable, default_path, write_model_profile
from parallax.profiles import MODEL_PROFILE_VERSION, ModelProfile
from parallax.report import profile_table
from parallax.runtime.feeds import Feeds, missing_feeds, named_batch, read_feeds, train_op
from parallax.runtime.measure.compute import Computed, computed
from parallax.runtime.measure.inputs import Inputs, inputs_of, opened
from parallax.runtime.measure.wish import STEPS
from parallax.runtime.planning import Analysed
from parallax.transform.edit import Worker

SAMPLE_BATCHES = "sample batches"


def write_profile(graph: Any, analysed: Analysed, workers: int, config: Config, wanted: Settings) -> None:
    """What `parallax profile` does: measures, prints, writes the file.

    Raises:
        ConfigError: feeds, the training op or the file are missing or wrong.
        GraphError: ids cannot be computed, or are no rows of their tables; the variables do not fit into memory.
    """
    if wanted.measure:
        check_writable(Path(wanted.measure))
    profile, notes = profile_samples(graph, analysed, workers, config, wanted)
    path = Path(wanted.measure) if wanted.measure else default_path(profile)
    write_model_profile(profile, path)
    sys.stdout.write(profile_table(profile, notes) + f"Written to {path}\n")
    sys.stdout.flush()


def profile_samples(
    graph: Any, analysed: Analysed, workers: int, config: Config, wanted: Settings
) -> tuple[ModelProfile, tuple[str, ...]]:
    """The profile, and what could not be measured, a sentence each.

    Args:
        graph: the user's.
        analysed: the same.
        workers: how many.
        config: seed and session options.
        wanted: steps, feeds, fetch and what else the command line says.
    """
    captured, spec = analysed.captured, analysed.spec
    feeds = read_feeds(wanted.feeds) if wanted.feeds else _no_feeds
    fed = frozenset(named_batch(graph, feeds(0, 0, workers)))
    needed = captured.view.ancestors([train_op(graph, wanted.fetch).name.split(":")[0]]) if wanted.fetch else None
    tables, reasons = fetchable(captured, tables_of(captured, spec, needed))
    for table in tables:
        reason = trained_on(captured, spec, table, fed)
        if reason:
            reasons[table.name] = reason
    tables = tuple(table for table in tables if table.name not in reasons)
    named = tuple((wanted.initializers or "").split())
    steps = wanted.steps or STEPS
    profiles, notes = [], [f"{name}: not measured, {reason}" for name, reason in sorted(reasons.items())]
    if tables:
        tensors = [one.tensor for table in tables for one in table.tensors]
        inputs = inputs_of(graph, captured, tensors, fed, named)
        _check_fed(inputs, wanted)
        seen = [_worker_steps(graph, inputs, tables, feeds, _worker(rank, workers, config), steps)
                for rank in range(workers)]  # fmt: skip
        counted = min(map(len, seen))
        if counted < steps:
            notes.append(f"the data of worker {min(range(workers), key=lambda r: len(seen[r]))} ended after {counted}")
        steps = counted
        for number, table in enumerate(tables):
            by_step = [[seen[rank][step][number] for rank in range(workers)] for step in range(steps)]
            profiles.append(table_profile(table.name, table.first_rows, by_step))
    found = Computed(None, None)
    if wanted.compute:
        found = _computed(graph, analysed, feeds, fed, workers, config, wanted)
    return ModelProfile(
        version=MODEL_PROFILE_VERSION,
        graph=spec.fingerprint,
        cluster=wanted.cluster or "",
        steps=steps,
        source=SAMPLE_BATCHES,
        tables=tuple(profiles),
        compute_s=found.step_s,
        memory_bytes=found.memory_bytes,
    ), tuple(notes)


def _no_feeds(step: int, worker: int, size: int) -> dict[str, Any]:
    return {}


def _worker(rank: int, size: int, config: Config) -> Worker:
    return Worker(rank, size, config.seed or 1)


def _check_fed(inputs: Inputs, wanted: Settings) -> None:
    """Refuses, before anything is run, placeholders that nobody feeds."""
    if inputs.placeholders and wanted.feeds is None:
        raise missing_feeds("A profile", list(inputs.placeholders))
    if inputs.placeholders:
        raise ConfigError(
            f"{wanted.feeds} must feed every placeholder that is needed, and lacks "
            f"{', '.join(inputs.placeholders[:5])}. Give a batch for each."
        )


def _worker_steps(
    graph: Any, inputs: Inputs, tables: Sequence[TableIds], feeds: Feeds, worker: Worker, steps: int
) -> list[list[Asked]]:
    """What one worker asks of each table, step by step, until its data ends."""
    import tensorflow as tf

    tensors = [one.tensor for table in tables for one in table.tensors]
    found: list[list[Asked]] = []
    try:
        with opened(inputs, worker, named_batch(graph, feeds(0, worker.rank, worker.size))) as session:
            for step in range(steps):
                batch = inputs.fed_by(named_batch(graph, feeds(step, worker.rank, worker.size)))
                values = iter(session.run(tensors, batch))
                found.append(
                    [asked(table, [next(values) for _ in table.tensors], worker.rank, step) for table in tables]
                )
    except tf.errors.OutOfRangeError as error:
        if not found:
            raise GraphError(
                f"A profile needs a batch of every worker, and the data of worker {worker.rank} ends before the first: "
                f"{error.message} Take fewer workers, or more data."
            ) from error
    except tf.errors.OpError as error:
        raise GraphError(
            f"The ids of worker {worker.rank} cannot be computed in step {len(found)}: {error.message}"
        ) from error
    return found


def _computed(
    graph: Any, analysed: Analysed, feeds: Feeds, fed: frozenset[str], workers: int, config: Config, wanted: Settings
) -> Computed:
    fetch = train_op(graph, wanted.fetch).name
    inputs = inputs_of(graph, analysed.captured, [fetch], fed, tuple((wanted.initializers or "").split()))
    _check_fed(inputs, wanted)

    def batch(step: int) -> dict[str, Any]:
        return inputs.fed_by(named_batch(graph, feeds(step, 0, workers)))

    return computed(inputs, fetch, batch, _worker(0, workers, config), config.sess_config)
