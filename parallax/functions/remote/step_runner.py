"""Runs the steps of a StepGraph in a worker's session, and reads and writes its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from parallax.base.types import ArrayOnWorker0, Comm, Operation, Session, Tensor, Value, Variable
from parallax.functions.batches.micro_batches import StepCut
from parallax.functions.batches.split_batch import BatchPart
from parallax.functions.tracing.step_graph import GraphStep, LoopVariables, StepGraph
from parallax.functions.tracing.traced_values import InFile, source_of
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.session.accumulation import MicroBatchRun

INITIAL = "initial"
"""The place of a value that is the traced initial value, not yet computed."""


class RunningSteps:
    """Steps of one graph on this worker; all workers make the same calls in the same order.

    Attributes:
        size: number of workers.
        rank: this worker's.
        comm: communicator of the workers, used for nothing else.
        resumed_step: the number of counted steps that were run before the session, which has a checkpoint's values;
            None where it has none.
        steps: the number of counted steps that were run.
    """

    def __init__(
        self, graph: StepGraph, session: Session, size: int, rank: int, cut: StepCut | None = None, islands: int = 1
    ) -> None:
        """Takes over a session that was opened on the graph.

        Args:
            graph: with its steps.
            session: of `open_session`, with values.
            size: number of workers.
            rank: this worker's.
            cut: the number of micro-batches into which steps are split; None where they are not.
            islands: into how many the workers are cut.
        """
        self._graph, self._cut = graph, cut or StepCut()
        self._session = session
        self._ops = {name: variable.handle.op.name for name, variable in graph.made.items()}
        self.size, self.rank, self._team_size = size, rank, size // islands
        self.comm: Comm = session.workers
        self.resumed_step: int | None = session.resumed_step
        self.steps = self.resumed_step or 0

    def load(self, prefix: str, names: Sequence[str]) -> None:
        """Loads values of variables from a checkpoint; every worker must call it."""
        self._session.values.load(prefix, [self._ops[name] for name in names])

    def store(self, folder: Path, names: Sequence[str], step: int | None = None) -> dict[str, InFile]:
        """Writes a checkpoint of variables; every worker must call it.

        Args:
            folder: on worker 0's host.
            names: of the variables.
            step: its number; None for the number after those in the folder.

        Returns:
            The place of each.

        Raises:
            CheckpointError: on all workers, when writing fails.
        """
        prefix = self._session.values.save(str(folder), [self._ops[name] for name in names], step)
        return {name: InFile(prefix, self._ops[name]) for name in names}

    @property
    def saved_step(self) -> int | None:
        """The counted step of the session's latest checkpoint; None while there is none."""
        checkpoints = self._session.checkpoints
        step: int | None = None if checkpoints is None else checkpoints.saved_step
        return step

    def run(
        self, step: GraphStep, share: BatchPart, fetches: Sequence[Tensor], rows: Sequence[Tensor] = ()
    ) -> tuple[list[Value], list[list[tuple[Value, BatchPart]]]]:
        """Runs a step, or a split one once for each of its micro-batches.

        Args:
            step: one of the graph's.
            share: this worker's arguments.
            fetches: the requested results, tensors of the graph.
            rows: the requested results with a row for each example.

        Returns:
            The values of the fetches, arrays; and for each of `rows` the values of all micro-batches, with their
            shares: of a stand-in's where a share has no rows. With stages, the first stage has all values, and another
            stage None for those of others.
        """
        tensors, parts = [step.run, *fetches, *rows], self._cut.micro_batches(step, share, self._team_size)
        runs = [MicroBatchRun(len(parts), part.weight_in(share.total)) for part in parts]
        results = self._session.run_parts(
            tensors, [self._feeds(step, part) for part in parts], runs if self._cut.count > 1 else None
        )
        whole_results = [[None if one is None else one[0] for one in own] for own in results]
        self.steps += step.is_counted
        by_tensor = list(zip(*whole_results, strict=True))[1:]
        values = [self._cut.combine_results(one.name, own) for one, own in zip(fetches, by_tensor, strict=False)]
        return values, [list(zip(own, parts, strict=True)) for own in by_tensor[len(fetches) :]]

    def _feeds(self, step: GraphStep, share: BatchPart) -> dict[Tensor, list[Value]]:
        fed = {placeholder: [value] for placeholder, value in zip(step.feeds, share.arrays, strict=True)}
        if step.rows is not None and share.is_stand_in:
            fed[step.rows] = [np.asarray(0, np.int64)]
        if step.length is not None and share.total:
            fed[step.length] = [np.asarray(share.total, np.int64)]
        return fed

    def read_epoch(self) -> tuple[int, int, int]:
        """The graph's record of the loop: an epoch, the step at which it began, and its batches (-1: unknown)."""
        op, values = self._loop().epoch.op.name, self._session.values
        barrier(values.comm)
        epoch, step, batches = values.comm.bcast(values.read([op])[op])
        return int(epoch), int(step), int(batches)

    def note_epoch(self, epoch: int, step: int, batches: int | None) -> None:
        """Records the start of an epoch for checkpoints; every worker must call it.

        Args:
            epoch: its number.
            step: the step at which it began.
            batches: the number of its batches; None if unknown.
        """
        noted = np.array([epoch, step, -1 if batches is None else batches], np.int64)
        self._session.values.write({self._loop().epoch.op.name: noted if self.rank == 0 else None})

    def _loop(self) -> LoopVariables:
        assert self._graph.loop is not None, "no step of this graph is counted"
        return self._graph.loop

    def reset(self, op: Operation) -> None:
        """Runs an op of the graph that resets this worker's parts of sums to zero."""
        self._session.run(op)

    def read(self, names: Sequence[str]) -> dict[str, ArrayOnWorker0]:
        """The values of variables by name, arrays on worker 0, None elsewhere; every worker must call it."""
        value_by_op = self._session.values.read([self._ops[name] for name in names])
        return {name: value_by_op[self._ops[name]] for name in names}

    def write(self, values: Mapping[str, ArrayOnWorker0]) -> None:
        """Writes worker 0's values of variables by name (None elsewhere), wherever they are stored."""
        arrays = {name: value if value is None else np.asarray(value) for name, value in values.items()}
        self._session.values.write({self._ops[name]: value for name, value in arrays.items()})

    def settle(self) -> bool:
        """Ends the steps of one call; every worker must call it.

        Returns:
            Whether the session can serve another call, whose steps are counted from 0.
        """
        self.steps = 0
        return bool(self._session.settle())

    def close(self) -> None:
        """Ends the session."""
        self._session.close()


def place_of_value(variable: Variable) -> InFile | str | None:
    """The place of a variable's value, in a form that can be sent; None where it is in this process."""
    source = source_of(variable)
    return source if source is None or isinstance(source, InFile) else INITIAL
