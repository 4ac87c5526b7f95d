"""Runs a program: as one process on the joined batch, and as workers that are threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ops.exactness.script import Script, fed, joined
from ops.exactness.transport import Meetings, in_memory
from parallax.analysis.capture import capture, initialization_phases
from parallax.runtime.names import Names
from parallax.runtime.planning import Analysed
from parallax.transform.edit import Worker
from parallax.transform.pipeline import WorkerGraph
from parallax.transform.seeds import set_seeds

v1 = tf.compat.v1
SEED = 7
Watched = Sequence[Sequence[str]]
"""For each of the ops that are run in turn, tensors that it needs."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of all steps has left: by variable its first and last value, and what was watched in each step."""

    initial: dict[str, Any]
    last: dict[str, Any]
    seen: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Built:
    """A program's graph for a worker's batch and for the joined one, and what is fed in each step to each worker."""

    script: Script
    graph: Any
    ops: list[Any]
    whole: Any
    whole_ops: list[Any]
    batches: list[list[dict[str, Any]]]

    @staticmethod
    def of(source: str) -> Built:
        """Loads and builds a program."""
        script = Script.load(source)
        graph, ops = script.graph(script.rows)
        whole, whole_ops = (graph, ops) if script.is_open else script.graph(script.rows * script.workers)
        return Built(script, graph, ops, whole, whole_ops, script.batches())

    def trained(self) -> frozenset[str]:
        """The names of variables that are trained."""
        return frozenset(v.name for v in self.graph.get_collection("trainable_variables"))


def one_process(built: Built, watched: Watched = ()) -> Ran:
    """Trains the joined batches; tensors that are watched are those of the graph with its calls inlined.

    Raises:
        ValueError: values end infinite, so that nothing can be compared.
    """
    graph = built.whole
    graph_def = capture(graph).view.graph_def if watched else graph.as_graph_def()
    seeded = type(graph_def)()
    seeded.CopyFrom(graph_def)
    set_seeds(seeded, frozenset(), Worker(0, 1, SEED, equal_randomness=True))
    imported = _imported(seeded)
    reads = _reads(graph)
    tensors = [_there(imported, of_op) for of_op in watched] or [[] for _ in built.ops]
    seen = []
    with v1.Session(graph=imported, config=built.script.options()) as session:
        for phase in _phases(graph):
            session.run(phase)
        initial = session.run(reads)
        for step, batches in enumerate(built.batches):
            turn = step % len(built.ops)
            values = session.run([built.whole_ops[turn].name, *tensors[turn]], fed(graph, joined(batches)))
            seen.append(dict(zip(tensors[turn], values[1:], strict=True)))
        last = session.run(reads)
    if any(np.issubdtype(v.dtype, np.floating) and not np.all(np.isfinite(v)) for v in last.values()):
        raise ValueError("The one process ends with values that are not finite.")
    return Ran(initial, last, tuple(seen))


def workers(built: Built, analysed: Analysed, made: list[WorkerGraph], watched: Watched = ()) -> list[Ran]:
    """Trains every worker's batches on its graph, each on a thread; the initial values are left out.

    Raises:
        Exception: the first that a worker raised.
    """
    meetings = Meetings(built.script.workers)
    found: dict[int, Ran] = {}
    errors: list[Exception] = []

    def work(rank: int) -> None:
        try:
            found[rank] = _one_worker(built, analysed, made[rank], rank, meetings, watched)
        except Exception as error:  # raised again below, on the thread that waits
            errors.append(error)
            meetings.fail(f"worker {rank} failed: {error}")

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(len(made))]


def _one_worker(
    built: Built, analysed: Analysed, made: WorkerGraph, rank: int, meetings: Meetings, watched: Watched
) -> Ran:
    names = Names(analysed.captured.view, made)
    graph_def = type(made.graph_def)()
    graph_def.CopyFrom(made.graph_def)
    functions = in_memory(graph_def, rank, meetings)
    imported = _imported(graph_def)
    reads = _reads(built.graph)
    tensors = [_there(imported, of_op) for of_op in watched] or [[] for _ in built.ops]
    seen = []
    with v1.Session(graph=imported, config=built.script.options()) as session:

        def run(fetches: Sequence[str], given: dict[str, Any], more: Sequence[str] = ()) -> tuple[list[Any], list[Any]]:
            resolved = names.resolve(tuple(fetches), given)
            count = len(resolved.tensors)
            values = session.run([*resolved.tensors, *more], {**resolved.feeds(given), **resolved.empty})
            meetings.has_run(rank)
            return list(resolved.values(values[:count])), values[count:]

        for phase in [*initialization_phases(analysed.captured), list(made.counter_initializers)]:
            session.run(phase)
            meetings.has_run(rank)
        for step, batches in enumerate(built.batches):
            turn = step % len(built.ops)
            _, values = run([built.ops[turn].name], fed(built.graph, batches[rank]), tensors[turn])
            seen.append(dict(zip(tensors[turn], values, strict=True)))
        last, _ = run(list(reads.values()), {})
    del functions
    return Ran({}, dict(zip(reads, last, strict=True)), tuple(seen))


def _imported(graph_def: Any) -> Any:
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return imported


def _there(graph: Any, tensors: Sequence[str]) -> list[str]:
    """Those tensors that a graph has; a transform may have left a node without some."""
    found = []
    for tensor in tensors:
        try:
            graph.get_tensor_by_name(tensor)
        except (KeyError, ValueError):
            continue
        found.append(tensor)
    return found


def _phases(graph: Any) -> list[list[str]]:
    """Initial values may be read from trained variables, so these come first."""
    trained = {id(v) for v in graph.get_collection("trainable_variables")}
    every = graph.get_collection("variables") + graph.get_collection("local_variables")
    first = [v.initializer.name for v in every if id(v) in trained]
    return [first, [v.initializer.name for v in every if id(v) not in trained]]


def _reads(graph: Any) -> dict[str, str]:
    """Variable -> the tensor that reads it."""
    return {v.name: graph.as_graph_element(v).name for v in graph.get_collection("variables")}
