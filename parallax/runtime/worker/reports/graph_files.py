"""Writes the workers' graphs to files: for TensorBoard, and as text to be read and imported again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from parallax.base.errors import ConfigError
from parallax.base.types import Graph, MetaGraphDef
from parallax.graph.view import GraphView
from parallax.plans.plan import Plan
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import WorkerGraph, transform


def write_planned(view: GraphView, rewrites: Rewrites, plan: Plan, seed: int, folder: Path) -> None:
    """Writes the graphs that all workers would run, without starting any.

    Args:
        view: the user's graph.
        rewrites: its rewrites.
        plan: for which workers and servers.
        seed: of the job.
        folder: the parent of `worker-RANK` for each worker.

    Raises:
        ConfigError: when the folder cannot be written.
    """
    for rank in range(plan.num_workers):
        (replica, stage), size = plan.grid.place(rank), plan.num_replicas
        hosts = tuple(plan.layout.host_by_rank[other] for other in plan.grid.find_team(stage))
        island, replica = divmod(replica, size)
        hosts = hosts[island * size : (island + 1) * size]
        worker = Worker(
            replica, size, seed, hosts=hosts, servers=plan.servers, stage=stage, island=island, islands=plan.num_islands
        )
        write_events(folder, rank, transform(view, rewrites, worker))


def write_events(folder: Path, rank: int, worker_graph: WorkerGraph) -> None:
    """Writes a worker's graph as an event file: `tensorboard --logdir FOLDER` shows the workers side by side.

    Raises:
        ConfigError: when the folder cannot be written.
    """
    place = folder / f"worker-{rank}"
    with _writing("--graph", place):
        place.mkdir(parents=True, exist_ok=True)
        for old in sorted(place.glob("events.out.tfevents.*")):  # TensorBoard would continue to show it
            old.unlink()
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(worker_graph.graph_def, name="")
            tf.compat.v1.summary.FileWriter(str(place), graph).close()


def write_text(folder: Path, rank: int, imported: Graph) -> None:
    """Writes a worker's graph and collections as a MetaGraphDef in text, which `tf.train.import_meta_graph` reads.

    Args:
        folder: the parent of `graph_worker_RANK`, as in Parallax 2019.
        rank: of the worker.
        imported: the tf.Graph that the worker runs.

    Raises:
        ConfigError: when the folder cannot be written.
    """
    place = folder / f"graph_worker_{rank}"
    with _writing("export_graph_path", place):
        folder.mkdir(parents=True, exist_ok=True)
        place.write_text(str(meta_graph(imported)), encoding="utf-8")


def meta_graph(graph: Graph) -> MetaGraphDef:
    """Converts a graph to a MetaGraphDef."""
    with graph.as_default():  # variables are not written under eager execution
        return tf.compat.v1.train.export_meta_graph(graph=graph)


@contextlib.contextmanager
def _writing(setting: str, place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{setting} must name a writable folder: {place}: {error.strerror}. Name another.") from error
