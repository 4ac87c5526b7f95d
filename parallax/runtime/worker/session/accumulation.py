"""Gradient accumulation: decides which runs only accumulate gradients, and which one updates the variables.

A training run is one whose fetches need an update. Of every `accumulate_steps` of them all but the last accumulate
their gradients: they execute the fetches that depend on no gradient and no write of a shared variable, and return None
for the rest. So shared variables, the global step among them, change with the update only; per-batch state (a moving
average of its statistics, the counts of a metric) is written in every run. Runs are counted by gradient, so several
train_ops may alternate. Between updates no plan is changed and no checkpoint is written.

A front end splits the batch of each of its steps into micro-batches (functions/batches/micro_batches.py), and passes
the index and the number of micro-batches with each run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tensorflow.python.framework import op_def_registry

from parallax.base.errors import SessionError
from parallax.graph.ops import source_of, state_op
from parallax.graph.view import GraphView, node_of, split_tensor
from parallax.transform.pipeline import WorkerGraph

_ACTS = ("Print", "PyFunc", "EagerPyFunc")
"""Ops that return a tensor and have side effects too; other ops with side effects return none."""


@dataclass(frozen=True, slots=True)
class Gather:
    """A run without an update.

    Attributes:
        sources: the sources whose gradients it accumulates, as named by `GradientAccumulation`; none if it does not
            train.
        is_first: whether they replace earlier accumulated gradients.
    """

    sources: frozenset[str]
    is_first: bool


@dataclass(frozen=True, slots=True)
class MicroBatchRun:
    """A run of one micro-batch.

    Attributes:
        count: the number of micro-batches in its step.
        share: its share of the step's examples.
    """

    count: int
    share: float


@dataclass
class Accumulation:
    """The batches of the next update that a worker has.

    Attributes:
        steps: how many an update takes.
        batches: source -> how many of them are accumulated.
        micro_batches: how many the next update takes, if a front end has split a step; else 0.
    """

    steps: int = 1
    batches: dict[str, int] = field(default_factory=dict)
    micro_batches: int = 0

    @property
    def of_update(self) -> int:
        """The number of batches of the next update."""
        return self.micro_batches or self.steps

    @property
    def pending(self) -> int:
        """The number of batches whose accumulated gradients await an update."""
        return max(self.batches.values(), default=0)

    def text_of_rest(self) -> str:
        """The message when a loop ends between two updates."""
        return (
            f"The gradients of the last {self.pending} batches were not applied: an update needs those of {self.steps}."
        )

    def next_run(self, sources: frozenset[str], micro_batch: MicroBatchRun | None = None) -> Gather | None:
        """Classifies a run that trains with the gradients of these sources; None for one with the update.

        Args:
            sources: the sources.
            micro_batch: its index in a front end's step.

        Raises:
            SessionError: some of them were run without the others before.
        """
        if self.steps == 1:
            return None
        self.micro_batches = 0 if micro_batch is None else micro_batch.count
        counts = {self.batches.get(source, 0) for source in sources}
        if len(counts) > 1:
            most = max(sorted(sources), key=lambda source: self.batches.get(source, 0))
            raise SessionError(
                f"With accumulate_steps={self.steps}, ops that are updated together must be run together for every "
                f"batch, but {self.batches[most]} batches of {most!r} are accumulated and only {min(counts)} of "
                "others in this run. Fetch the same train_op in every run until the update."
            )
        (count,) = counts or {0}
        return Gather(sources, count == 0) if count < self.of_update - 1 else None

    def has_run(self, sources: frozenset[str]) -> None:
        """Counts a run."""
        for source in sources:
            self.batches[source] = (self.batches.get(source, 0) + 1) % self.of_update


class AccumulatedGradients:
    """The part of a worker's graph that can run before an update.

    Args:
        view: the user's graph.
        worker_view: this worker's.
        worker_graph: the same.
        here: name in the user's graph -> name in this worker's.
    """

    def __init__(
        self, view: GraphView, worker_view: GraphView, worker_graph: WorkerGraph, here: Callable[[str], str]
    ) -> None:
        self._view = worker_view
        self.keepings = {keeping.source: keeping for keeping in worker_graph.accumulations}
        self._source_of = {node: keeping.source for keeping in worker_graph.accumulations for node in keeping.take}
        ops = {op for keeping in worker_graph.accumulations for op in (*keeping.begin, *keeping.add)}
        before = worker_view.ancestors(ops)  # ops that gradients depend on run with every batch
        local = worker_graph.local_variables
        shared = (node for node in view.nodes if _writes_shared(view, node, local))
        once = (*(node for node in shared if node not in worker_graph.batch_writes), *worker_graph.update_writes)
        writes = set(map(here, once)) - before
        after = worker_view.descendants(self._source_of, waits=True) - self._source_of.keys()
        self._updates = writes & after
        self._of_gradients = after | self._source_of.keys()
        self._later = self._of_gradients | worker_view.descendants(writes, waits=True)
        self._acting = {here(node): node for node in view.nodes if _acts(view, node)}

    def of(self, runs: Collection[str]) -> frozenset[str]:
        """The sources whose gradients the update among these nodes needs."""
        return frozenset() if self._updates.isdisjoint(runs) else self.sources_in(runs)

    def sources_in(self, runs: Collection[str]) -> frozenset[str]:
        """The sources on which some of these nodes depend."""
        return frozenset(source for node, source in self._source_of.items() if node in runs)

    def without_update(self, tensor: str, gather: Gather) -> str | None:
        """The tensor that has a fetch's value in a run without an update; None if only an update computes it.

        A value that only waits for an update, such as a loss that is returned after it, is available without.
        """
        later = self._later if gather.sources else self._of_gradients  # a run that does not train may write
        while (node := node_of(tensor) if ":" in tensor else tensor) in later:
            if self._view.op(node) not in ("Identity", "IdentityN") or ":" not in tensor:
                return None
            tensor = self._view.inputs(node)[split_tensor(tensor)[1]]
        return tensor

    def acting(self, runs: Collection[str]) -> dict[str, str]:
        """Of these nodes those with side effects that can run in every run: name here -> user's name."""
        return {node: user for node, user in self._acting.items() if node in runs and node not in self._later}

    def ops(self, gather: Gather) -> list[str]:
        """The ops by which a run accumulates its gradients."""
        accumulations = [self.keepings[source] for source in sorted(gather.sources)]
        return [op for keeping in accumulations for op in (keeping.begin if gather.is_first else keeping.add)]


def _writes_shared(view: GraphView, node: str, local: Collection[str]) -> bool:
    """Whether a node writes a variable that is not per-worker."""
    state = state_op(view.op(node), len(view.inputs(node)))
    if state is None:
        return False
    return source_of(view.inputs(node)[state.state[0]], view.nodes) not in local


def _acts(view: GraphView, node: str) -> bool:
    """Whether a node has side effects."""
    if state_op(view.op(node), len(view.inputs(node))) is not None or view.op(node) in _ACTS:
        return True
    definition = op_def_registry.get(view.op(node))
    return definition is not None and definition.is_stateful and not definition.output_arg
