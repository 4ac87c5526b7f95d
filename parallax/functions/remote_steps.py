"""The steps of a graph as the process that drives workers sees them: like those of one worker that has it all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from parallax.functions.numbered_rows import NumberedRows
from parallax.functions.running import place_of_value
from parallax.functions.serving import DriverRequest, ReadyWorkers, StepResults, WantedResults
from parallax.functions.shares import Share, rows_of, share_of
from parallax.functions.step_graph import GraphStep, StepGraph
from parallax.functions.traced import InFile, bytes_of
from parallax.runtime.checkpoint.stored import groups
from parallax.runtime.driver_channel import DriverConnection, deferred_interrupts
from parallax.types import Array, ArrayOnWorker0, Comm, Nest, Operation, Picklable, Tensor, Value, Variable


class RequestQueue:
    """RequestQueue to workers, which answer some of them, in order.

    Args:
        channel: to worker 0.
    """

    def __init__(self, channel: DriverConnection) -> None:
        self._channel = channel
        self._asked = self._heard = 0  # requests with answers, and answers
        self._answers: dict[int, Picklable] = {}

    def tell(self, kind: str, *arguments: Picklable, own: Picklable = None) -> None:
        """Sends a request that has no answer.

        Args:
            kind: of it.
            arguments: for all workers.
            own: for worker 0 alone.

        Raises:
            ChannelClosed: the workers have gone.
        """
        with deferred_interrupts():
            self._channel.send(DriverRequest(kind, arguments, own is not None))
            if own is not None:
                self._channel.send(own)

    def ask(self, kind: str, *arguments: Picklable, own: Picklable = None) -> Callable[..., Picklable]:
        """Sends a request that has an answer; arguments are those of `tell`.

        Returns:
            A function that waits for the answer and returns it. It takes a timeout in seconds, infinite by default, and
            raises TimeoutError, or ChannelClosed where the workers have gone.
        """
        with deferred_interrupts():
            self.tell(kind, *arguments, own=own)
            number = self._asked
            self._asked += 1

        def wait(seconds: float = math.inf) -> Picklable:
            until_s = time.monotonic() + seconds
            while number not in self._answers:
                self._channel.wait(until_s)
                with deferred_interrupts():
                    self._answers[self._heard] = self._channel.receive()
                    self._heard += 1
            return self._answers.pop(number)

        return wait


class RemoteSteps:
    """Steps that workers run for this process; used as `RunningSteps` of a single worker.

    Attributes:
        size, rank: of the single worker.
        comm: there is nobody to talk to.
        resumed_step: as in `RunningSteps`.
        steps: as in `RunningSteps`.
    """

    size, rank = 1, 0
    comm: Comm = None

    def __init__(self, graph: StepGraph, requests: RequestQueue, ready: ReadyWorkers) -> None:
        """Takes over workers that have opened the graph.

        Args:
            graph: with its steps.
            requests: to the workers.
            ready: what they have answered.
        """
        self._graph, self._tell, self._ask = graph, requests.tell, requests.ask
        self._workers, self.resumed_step = ready
        self.steps = self.resumed_step or 0
        self._wanted: dict[str, WantedResults] = {}
        self._sent: dict[tuple[int, ...], tuple[int, Sequence[Array]]] = {}

    def variables(self) -> dict[str, Variable]:
        """As that of `RunningSteps`."""
        return {one.name: one.variable for one in self._graph.taken()}

    def begin(self, local: Sequence[str]) -> None:
        """As that of `RunningSteps`: gives the workers the script's values."""
        if self.resumed_step is not None:
            return
        in_files: dict[str, list[str]] = {}
        here: dict[str, Value] = {}
        for name, variable in self.variables().items():
            place = place_of_value(variable)
            if name in local:
                continue
            if place is None:
                here[name] = variable.numpy()
            elif isinstance(place, InFile):
                in_files.setdefault(place.prefix, []).append(name)
        self.write(here)
        for prefix, names in in_files.items():
            self._tell("load", prefix, names)

    def share_of(self, batch: Nest) -> Share:
        """All of a batch, which is cut when it is sent."""
        return Share(tuple(batch), rows_of(batch), rows_of(batch))

    def start(
        self, step: GraphStep, share: Share, fetches: Sequence[Tensor], parts: Sequence[Tensor] = ()
    ) -> Callable[[], list[Value]]:
        """As that of `RunningSteps`, of the global batch; what is given waits for the results."""
        rows = [bool(one.shape.rank) and one.shape[0] is None for one in fetches]
        numbers = [one.name for one, has_rows in zip(fetches, rows, strict=True) if not has_rows]
        joined = [one.name for one, has_rows in zip(fetches, rows, strict=True) if has_rows]
        wanted = WantedResults(tuple(one.name for one in parts), tuple(numbers), tuple(joined))
        if self._wanted.get(step.name) != wanted:
            self._wanted[step.name] = wanted
            self._tell("wish", step.name, wanted)
        answer = self._send_batch(step.name, share)
        self.steps += step.is_counted

        def wait() -> list[Value]:
            found: StepResults = answer()
            waiting = iter(found.means), iter(found.rows)
            return [*found.sums, *(next(waiting[has_rows]) for has_rows in rows)]

        return wait

    def read(self, names: Sequence[str]) -> dict[str, ArrayOnWorker0]:
        """Variables' values by name."""
        variables, found = self.variables(), {}
        for group in groups({name: bytes_of(variables[name]) for name in names}):
            found.update(self._ask("read", group)())
        return found

    def read_everywhere(self, name: str) -> ArrayOnWorker0:
        """A variable's value."""
        return self.read([name])[name]

    def write(self, values: Mapping[str, ArrayOnWorker0]) -> None:
        """Gives variables values, by name."""
        arrays = {name: np.asarray(value) for name, value in values.items()}
        for group in groups({name: array.nbytes for name, array in arrays.items()}):
            self._tell("write", group, own=[arrays[name] for name in group])

    def store(self, folder: Path, names: Sequence[str], step: int | None = None) -> dict[str, InFile]:
        """As that of `RunningSteps`."""
        found: dict[str, InFile] = self._ask("store", folder, list(names), step)()
        return found

    def run_op(self, op: Operation) -> None:
        """Runs an op of the graph without feeds."""
        self._tell("op", op.name)

    def _send_batch(self, step: str, batch: Share) -> Callable[..., Picklable]:
        """Sends row numbers of arrays, which the workers get once, or their shares of a batch; gives what waits."""
        numbered = [part for part in batch.arrays if isinstance(part, NumberedRows)]
        if not numbered or len(numbered) < len(batch.arrays):
            shares = [share_of(batch.arrays, one, self._workers) for one in range(self._workers)]
            return self._ask("shares", step, own=shares)
        key = tuple(id(part.array) for part in numbered)
        if key not in self._sent:
            arrays = [part.array for part in numbered]  # held, so that no others are taken for them
            self._sent[key] = len(self._sent), arrays
            self._tell("arrays", self._sent[key][0], own=arrays)
        return self._ask("rows", step, self._sent[key][0], numbered[0].numbers)
