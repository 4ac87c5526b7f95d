"""The steps of a graph as the process that drives workers sees them: like those of one worker that has it all."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from parallax import call as calls
from parallax.functions.numbered_rows import NumberedRows
from parallax.functions.running import place_of_value
from parallax.functions.served_graph import ServedGraph
from parallax.functions.serving import END, DriverRequest, ReadyWorkers, Served, StepResults, WantedResults, serve
from parallax.functions.shares import Share, rows_of, share_of
from parallax.functions.step_graph import GraphStep, StepGraph
from parallax.functions.traced import InFile
from parallax.runtime.driver_channel import ChannelClosed, DriverConnection, DriverSocket
from parallax.runtime.worker.called import packed_function
from parallax.settings.config import Config
from parallax.types import Array, ArrayOnWorker0, Comm, Nest, Operation, Picklable, Tensor, Value, Variable


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

    def __init__(self, graph: StepGraph, channel: DriverConnection) -> None:
        """Waits until the workers are ready.

        Args:
            graph: with its steps.
            channel: to worker 0.
        """
        self._graph, self._channel = graph, channel
        ready: ReadyWorkers = channel.receive()
        self._workers, self.resumed_step = ready
        self.steps = self.resumed_step or 0
        self._asked = self._heard = 0  # requests with answers, and answers
        self._answers: dict[int, Picklable] = {}
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
        for name, variable in self.variables().items():
            place = place_of_value(variable)
            if name in local:
                continue
            if place is None:
                self.write(name, variable.numpy())
            elif isinstance(place, InFile):
                in_files.setdefault(place.prefix, []).append(name)
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
        self._send_batch(step.name, share)
        self.steps += step.is_counted
        answer = self._expect()

        def wait() -> list[Value]:
            found: StepResults = answer()
            waiting = iter(found.means), iter(found.rows)
            return [*found.sums, *(next(waiting[has_rows]) for has_rows in rows)]

        return wait

    def read(self, name: str) -> ArrayOnWorker0:
        """A variable's value."""
        self._tell("read", name)
        return self._expect()()

    read_everywhere = read

    def write(self, name: str, value: ArrayOnWorker0) -> None:
        """Gives a variable a value."""
        self._tell("write", name, own=np.asarray(value))

    def store(self, folder: Path, names: Sequence[str], step: int | None = None) -> dict[str, InFile]:
        """As that of `RunningSteps`."""
        self._tell("store", folder, list(names), step)
        found: dict[str, InFile] = self._expect()()
        return found

    def run_op(self, op: Operation) -> None:
        """Runs an op of the graph without feeds."""
        self._tell("op", op.name)

    def _send_batch(self, step: str, batch: Share) -> None:
        """Sends row numbers of arrays, which the workers get once, or their shares of a batch."""
        numbered = [part for part in batch.arrays if isinstance(part, NumberedRows)]
        if not numbered or len(numbered) < len(batch.arrays):
            self._tell("shares", step, own=[share_of(batch.arrays, one, self._workers) for one in range(self._workers)])
            return
        key = tuple(id(part.array) for part in numbered)
        if key not in self._sent:
            arrays = [part.array for part in numbered]  # held, so that no others are taken for them
            self._sent[key] = len(self._sent), arrays
            self._tell("arrays", self._sent[key][0], own=arrays)
        self._tell("rows", step, self._sent[key][0], numbered[0].numbers)

    def _tell(self, kind: str, *arguments: Picklable, own: Picklable = None) -> None:
        self._channel.send(DriverRequest(kind, arguments, own is not None))
        if own is not None:
            self._channel.send(own)

    def _expect(self) -> Callable[[], Picklable]:
        """What waits for the answer to the last request, after those to the requests before."""
        number = self._asked
        self._asked += 1

        def wait() -> Picklable:
            while number not in self._answers:
                self._answers[self._heard] = self._channel.receive()
                self._heard += 1
            return self._answers.pop(number)

        return wait


@contextmanager
def driven_steps(
    number: int,
    graph: StepGraph,
    steps: Mapping[str, GraphStep],
    config: Config,
    resource: str | Path | None = None,
) -> Iterator[RemoteSteps]:
    """A job whose workers serve this process; within it its steps can be run.

    Args:
        number: of the call (`calls.next_call`).
        graph: of the steps.
        steps: by name.
        config: settings.
        resource: a resource file; None for workers on this machine.

    Raises:
        JobFailed: the job has failed, and has said why.
        ParallaxError: before anything is started, as `parallel_run`.
    """
    listening = DriverSocket()
    attachment = pickle.dumps(Served(ServedGraph.of(graph, steps), config, listening.address), protocol=5)
    channel = None
    with calls.beside(number, graph.graph, packed_function(serve), attachment, config, resource) as job:
        try:
            channel = listening.accept(lambda: job.is_alive)
            if channel is None:
                raise ChannelClosed
            yield RemoteSteps(graph, channel)
            channel.send(END)
        except ChannelClosed:
            job.fail()
        finally:
            listening.close()
            if channel is not None:
                channel.close()
