"""Trains a program: by one process on the global batch, and by workers whose graphs are combined into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ops.exactness.roundings import with_roundings
from ops.exactness.script import Script, concatenate_batches, fed
from ops.exactness.session import NamedSession
from ops.exactness.transport import check_meetings, combine_workers, name_run_marker, of_worker
from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.analysis.reading.capture import capture, initialization_phases
from parallax.graph.view import GraphView
from parallax.runtime.worker.session.accumulation import Accumulation, MicroBatchRun
from parallax.runtime.worker.session.names import Names
from parallax.runtime.worker.session.resolved_run import ResolvedRun
from parallax.transform.building.editor import Worker
from parallax.transform.passes.cut_stages import ops_here
from parallax.transform.passes.fused_all_reduces import unfuse_view
from parallax.transform.passes.random_seeds import set_seeds
from parallax.transform.pipeline import WorkerGraph

SEED = 7
Watched = Sequence[Sequence[str]]
"""For each op to run in turn, the tensors to record, which it needs."""


class NotFinite(ValueError):
    """The one process ends with values that are not finite, so there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of all steps: by variable its first and last value, and the recorded tensors of each step."""

    initial: dict[str, Any]
    last: dict[str, Any]
    seen: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Built:
    """A program's graphs for a worker's batch and for the global batch, and each worker's batch of each step.

    `needed` has the nodes that each of the ops depends on in the script's graph: a run is fed no other placeholders.
    """

    script: Script
    graph: Any
    ops: list[Any]
    whole: Any
    whole_ops: list[Any]
    batches: list[list[dict[str, Any]]]
    needed: list[set[str]]

    @staticmethod
    def of(source: str | Script, are_uneven: bool = False) -> Built:
        """Builds a program from text or a script. `are_uneven` makes the workers' shares of an open batch unequal."""
        script = Script.load(source) if isinstance(source, str) else source
        graph, ops = script.graph(script.rows)
        whole, whole_ops = (graph, ops) if script.is_open else script.graph(script.rows * script.workers)
        view = GraphView(graph.as_graph_def(add_shapes=True))
        needed = [view.ancestors([op.name]) for op in ops]
        batches = script.batches(len(ops), are_uneven and script.is_open)
        return Built(script, graph, ops, whole, whole_ops, batches, needed)

    def trained(self) -> frozenset[str]:
        """Returns the names of trained variables."""
        return frozenset(v.name for v in self.graph.get_collection("trainable_variables"))

    def computed_in(self, view: GraphView) -> str:
        """Returns the least precise type to which values of the variables' type are cast before an update (`float32`).

        `tf.compat.v1.losses` weights losses in float32, whatever the model's type.
        """
        import tensorflow as tf

        own = tf.as_dtype(self.script.dtype)
        in_graph = [view.nodes[name] for name in view.ancestors(op.name for op in self.ops)]
        in_functions = [node for function in view.graph_def.library.function for node in function.node_def]
        casts = [node.attr for node in (*in_graph, *in_functions) if node.op == "Cast"]
        types = [tf.as_dtype(a["DstT"].type) for a in casts if a["SrcT"].type == own.as_datatype_enum]
        return str(min([own, *(one for one in types if one.is_floating)], key=lambda one: one.size).name)


def train_one_process(
    built: Built, watched: Watched = (), start: Mapping[str, Any] | None = None, draw: int | None = None
) -> Ran:
    """Trains one process on the global batches.

    Args:
        built: the program.
        watched: tensors to record, of the graph with its calls inlined.
        start: initial values by variable, in place of the program's.
        draw: of the roundings that perturb arithmetic; None for none.

    Raises:
        NotFinite: final values or their squares are not finite.
    """
    graph = built.whole
    graph_def = capture(graph).view.graph_def if watched else graph.as_graph_def()
    seeded = type(graph_def)()
    seeded.CopyFrom(graph_def)
    set_seeds(seeded, frozenset(), Worker(0, 1, SEED, equal_randomness=True))
    seeded = seeded if draw is None else with_roundings(seeded, draw)
    reads = _reads(graph)
    seen = []
    with NamedSession(seeded, built.script.options()) as session:
        tensors = [[t for t in of_op if session.has(t)] for of_op in watched] or [[] for _ in built.ops]
        begun = {tensor: start[name] for name, tensor in _initial_values(graph).items()} if start is not None else {}
        for phase in _phases(graph):
            session.run(phase, begun)
        initial = dict(zip(reads, session.run(list(reads.values())), strict=True))
        for step, batches in enumerate(built.batches):
            turn = step % len(built.ops)
            feeds = fed(concatenate_batches(batches), built.needed[turn])
            values = session.run([built.whole_ops[turn].name, *tensors[turn]], feeds)
            seen.append(dict(zip(tensors[turn], values[1:], strict=True)))
        last = dict(zip(reads, session.run(list(reads.values())), strict=True))
    if not all(map(_has_finite_squares, last.values())):
        raise NotFinite("The one process ends with values that are not finite, or whose squares are not.")
    return Ran(initial, last, tuple(seen))


def _has_finite_squares(value: np.ndarray[Any, Any]) -> bool:
    """Returns whether a value is too far from overflow for the order of a loss's terms to matter."""
    with np.errstate(over="ignore"):
        return not np.issubdtype(value.dtype, np.floating) or bool(np.isfinite(np.square(value)).all())


def train_workers(built: Built, analysed: AnalysedGraph, made: list[WorkerGraph], watched: Watched = ()) -> list[Ran]:
    """Trains every worker on its batches, all in one session; the results have no initial values.

    Raises:
        Exception: an error of a worker's run or of the transport.
    """
    ranks, ops = range(len(made)), [op.name for op in built.ops]
    reads = _reads(built.graph)
    seen: list[list[dict[str, Any]]] = [[] for _ in ranks]
    with NamedSession(
        combine_workers([one.graph_def for one in made], dict.fromkeys(ops)), built.script.options()
    ) as session:
        job = JobInMemory(session, analysed, made)
        tensors = [[job.there(rank, of_op) for rank in ranks] for of_op in watched] or [[[]] * len(made)] * len(ops)
        for phase in initialization_phases(analysed.captured):
            job.run_ops([phase] * len(made))
        job.run_ops([list(one.counter_initializers) for one in made])
        for step, batches in enumerate(built.batches):
            turn = step % len(ops)
            given = [fed(batch, built.needed[turn]) for batch in batches]
            for rank, values in zip(ranks, job.run([ops[turn]], given, tensors[turn]), strict=True):
                seen[rank].append(dict(zip(tensors[turn][rank], values[1:], strict=True)))
        last = job.run(list(reads.values()), [{}] * len(made))
    return [Ran({}, dict(zip(reads, last[rank], strict=True)), tuple(seen[rank])) for rank in ranks]


class JobInMemory:
    """All workers' graphs in one session.

    Args:
        session: of the combined graph.
        analysed: the program.
        made: the graph of each worker; for a model in stages, the graphs of a replica are adjacent.
    """

    def __init__(self, session: NamedSession, analysed: AnalysedGraph, made: Sequence[WorkerGraph]) -> None:
        self._session, self._made = session, made
        self._views = [unfuse_view(one.graph_def) for one in made]
        self._stages = 1 if made[0].stages is None else made[0].stages.count
        captured = analysed.captured
        self._names = [Names(captured.view, one, fixed=captured.fixed) for one in made]
        self._kept = [Accumulation(one.accumulate_steps) for one in made]
        self._met: set[tuple[tuple[frozenset[str], frozenset[str]], ...]] = set()

    def there(self, rank: int, tensors: Sequence[str]) -> list[str]:
        """Returns those tensors that a worker's graph has; a transform may have removed some."""
        return [tensor for tensor in tensors if self._session.has(of_worker(rank, tensor))]

    def run_ops(self, ops: Sequence[Sequence[str]]) -> None:
        """Runs ops of every worker's graph; for a model in stages, those that each worker has."""
        own = [ops_here(worker.stages, names) for worker, names in zip(self._made, ops, strict=True)]
        self._check(own, [()] * len(own))
        self._session.run([of_worker(rank, op) for rank, names in enumerate(own) for op in names])

    def run(
        self,
        fetches: Sequence[str],
        given: Sequence[dict[str, Any]],
        more: Sequence[Sequence[str]] = (),
        micro_batch: MicroBatchRun | None = None,
    ) -> list[list[Any]]:
        """Runs every worker once.

        Args:
            fetches: of the user's graph.
            given: each worker's feeds, by tensor of the user's graph.
            more: further tensors of each worker's graph.
            micro_batch: its index in a front end's step.

        Returns:
            By worker, the values of its fetches and of `more`; True for an op that has run. A run that only accumulates
            gradients returns None for fetches that need an update.
        """
        asked, all_names, all_feeds, shown = [], [], [], []
        feeds: dict[str, Any] = {}
        for rank, names in enumerate(self._names):
            sources = names.accumulated_by(tuple(fetches), given[rank])
            resolved = names.resolve(tuple(fetches), given[rank], self._kept[rank].next_run(sources, micro_batch))
            self._kept[rank].has_run(sources)
            own = {**resolved.feeds(given[rank]), **resolved.empty, **names.micro_batch_feeds(sources, micro_batch)}
            asked.append((resolved, more[rank] if more else ()))
            all_names.append([*resolved.tensors, *asked[-1][1]])
            all_feeds.append(own)
            shown += [self._shown(rank, name) for name in all_names[-1]]
            feeds |= {of_worker(rank, tensor): value for tensor, value in own.items()}
        self._check(all_names, all_feeds)
        values = iter(self._session.run(shown, feeds))
        results = [([next(values) for _ in one.tensors], [next(values) for _ in names]) for one, names in asked]
        given_by = [[*one.values(own), *others] for (one, _), (own, others) in zip(asked, results, strict=True)]
        return [self._of_replica(rank, one, given_by) for rank, (one, _) in enumerate(asked)]

    def _check(self, fetches: Sequence[Sequence[str]], fed: Sequence[Iterable[str]]) -> None:
        """Checks once for each run that the workers of each stage run the same collectives."""
        run = tuple((frozenset(names), frozenset(given)) for names, given in zip(fetches, fed, strict=True))
        if run in self._met:
            return
        for stage in range(self._stages):
            of_stage = slice(stage, None, self._stages)
            check_meetings(self._views[of_stage], fetches[of_stage], fed[of_stage])
        self._met.add(run)

    def _of_replica(self, rank: int, run: ResolvedRun, given: Sequence[list[Any]]) -> list[Any]:
        """Returns the results of a worker's run, with those of other stages where these compute them."""
        first = rank - rank % self._stages
        brought = {place: given[first + stage][place] for place, stage in run.stages.items()}
        return [brought.get(place, value) for place, value in enumerate(given[rank])]

    def run_alone(self, rank: int, fetches: Sequence[str], given: dict[str, Any]) -> list[Any]:
        """Runs a worker of asynchronous training once; arguments as in `run`."""
        names = self._names[rank]
        resolved = names.resolve(tuple(fetches), given, None)
        feeds = {of_worker(rank, tensor): value for tensor, value in resolved.feeds(given).items()}
        return list(self._session.run([self._shown(rank, name) for name in resolved.tensors], feeds))

    def _shown(self, rank: int, name: str) -> str:
        """Returns the name of a worker's tensor; for an op, that of its run marker, if it has one."""
        if ":" in name or not self._session.has(name_run_marker(rank, name)):
            return of_worker(rank, name)
        return name_run_marker(rank, name)


def _phases(graph: Any) -> list[list[str]]:
    """Returns the initializers in two phases: trained variables come first, as initial values may depend on them."""
    trained = {id(v) for v in graph.get_collection("trainable_variables")}
    every = graph.get_collection("variables") + graph.get_collection("local_variables")
    first = [v.initializer.name for v in every if id(v) in trained]
    return [first, [v.initializer.name for v in every if id(v) not in trained]]


def _initial_values(graph: Any) -> dict[str, str]:
    """Returns variable -> the tensor that its initializer writes."""
    return {v.name: v.initializer.inputs[1].name for v in graph.get_collection("variables")}


def _reads(graph: Any) -> dict[str, str]:
    """Returns variable -> the tensor that reads it."""
    return {v.name: graph.as_graph_element(v).name for v in graph.get_collection("variables")}
