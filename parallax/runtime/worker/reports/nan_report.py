"""Reports once the step and the worker in which a scalar that the script fetches was first NaN.

Only the values that a run fetches anyway are checked: the scalars (one element) of training runs. Another worker that
sees a NaN sends worker 0 a message and goes on. NaN spreads with the gradients, so worker 0 checks for messages when it
sees one itself, at intervals, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from parallax.base.types import Comm, MpiRequest, Value
from parallax.graph.view import GraphView
from parallax.report.logger import log
from parallax.runtime.worker.barrier import barrier, wait_for
from parallax.runtime.worker.polling import has_message

_LOOK_EVERY = 64
"""The interval in steps at which worker 0 checks for messages of others: a check takes a microsecond."""

_First = tuple[int, int, str]  # (step, rank, tensor)


class NanReport:
    """Inspects one worker's runs; every worker must have one, and call `finish`.

    Args:
        view: the user's graph.
        trains: whether a run trains that fetches these names.
        workers: communicator of the workers, reserved for this.
    """

    def __init__(self, view: GraphView, trains: Callable[[tuple[str, ...]], bool], workers: Comm) -> None:
        self._view, self._trains, self._workers = view, trains, workers
        self._rank = int(workers.Get_rank())
        self._scalar_places: dict[tuple[str, ...], tuple[int, ...] | None] = {}
        self._steps = 0
        self._is_done = False
        self._sent: MpiRequest | None = None
        self._heard: list[int] = []

    def after_run(self, names: tuple[str, ...], fetched: Sequence[Value]) -> None:
        """Inspects the scalars of a run's results.

        Args:
            names: the script's fetches.
            fetched: the values of these names, and possibly of more.
        """
        if names not in self._scalar_places:
            self._scalar_places[names] = self._places_of_numbers(names) if self._trains(names) else None
        places = self._scalar_places[names]
        if places is None:
            return
        self._steps += 1
        if self._is_done:
            return
        for place in places:
            value = fetched[place]
            if value is not None and value != value:  # only NaN is unequal to itself
                self._report((self._steps, self._rank, names[place]))
                return
        if not self._rank and self._steps % _LOOK_EVERY == 0:
            self._say(self._receive())

    def finish(self) -> None:
        """Reports the messages of all workers, when all loops have ended; later runs count as a new loop."""
        barrier(self._workers)
        senders = [rank for rank, has in enumerate(self._workers.allgather(self._sent is not None)) if has]
        if self._sent is not None:
            wait_for(self._sent)
            self._sent = None
        if not self._rank:
            self._say(self._receive([rank for rank in senders if rank not in self._heard]))
        self._steps, self._is_done = 0, False
        self._heard.clear()

    def _places_of_numbers(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """The indices of the fetches that are floating-point scalars."""
        return tuple(place for place, name in enumerate(names) if ":" in name and self._is_number(name))

    def _is_number(self, tensor: str) -> bool:
        shape = self._view.shape(tensor)
        return shape is not None and all(length == 1 for length in shape) and self._is_floating(tensor)

    def _is_floating(self, tensor: str) -> bool:
        return bool(tf.as_dtype(self._view.dtype(tensor)).is_floating)

    def _report(self, first: _First) -> None:
        if self._rank:
            self._is_done = True
            self._sent = self._workers.isend(first, 0)
        else:
            self._say([first, *self._receive()])

    def _receive(self, waited_for: Sequence[int] = ()) -> list[_First]:
        """Receives the messages that other workers have sent by now, and awaits those that are known to be sent."""
        received = []
        while has_message(self._workers):
            received.append(self._workers.recv())
            self._heard.append(received[-1][1])
        received += [self._workers.recv(source=rank) for rank in waited_for if rank not in self._heard]
        return received

    def _say(self, reports: Sequence[_First]) -> None:
        """Warns of the first of several NaN, once."""
        if self._is_done or not reports:
            return
        self._is_done = True
        step, rank, tensor = min(reports)
        log.warning(
            f"{tensor} became NaN in step {step} on worker {rank}. Training continues. Check the batch of that step "
            "and the learning rate; tf.train.NanTensorHook in Config.hooks ends a job there."
        )
