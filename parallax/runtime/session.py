"""The session that a worker's loop runs on: the user's names in, the transformed graph's values out.

Every `run` is read in names of the user's graph (fetches.py) and carried out on this worker's graph: whole values in
place of local rows, nothing fed for the parts of a fused exchange that a fetch does not need. While a run with
collectives lasts, a watch tells the launcher what it waits for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from tensorflow.python.client.session import SessionInterface  # what Saver asks of a session

from parallax.errors import SessionError
from parallax.graph_view import GraphView, split_tensor
from parallax.runtime.fetches import Request, map_structure, put_together, read_request
from parallax.runtime.traffic import ExchangeReport, exchange_report
from parallax.runtime.watch import Watch
from parallax.transform.pipeline import WorkerGraph


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a combination of fetches and feeds needs on this worker's graph.

    Attributes:
        tensors: names in the worker's graph, one for each name asked for.
        empty: what is fed with nothing.
        collectives: digest of the collectives that the run takes part in; empty when it takes part in none.
        text: the fetches, for messages.
    """

    tensors: tuple[str, ...]
    empty: dict[str, Any]
    collectives: str
    text: str


class Session(SessionInterface):  # type: ignore[misc]
    """Runs the user's fetches on all workers' graphs.

    Every fetch comes back as a list with one entry per replica, and every feed is given as one. Fetching a variable
    gives its whole value in the user's row order; all workers must then run the fetch. Used as a context manager, or
    ended by `close`.
    """

    def __init__(self, user_graph: Any, view: GraphView, worker_graph: WorkerGraph, monitored: Any, size: int) -> None:
        self._user_graph = user_graph
        self._view = view
        self._worker_graph = worker_graph
        self._worker_view = GraphView(worker_graph.graph_def)
        self._monitored = monitored
        self._size = size
        self._prepared: dict[tuple[tuple[str, ...], tuple[str, ...]], _Prepared] = {}
        self._watch = Watch()

    @property
    def graph(self) -> Any:
        """The user's graph, whose tensors are fetched and fed."""
        return self._user_graph

    @property
    def sess_str(self) -> str:
        """The TensorFlow target; workers run in their own process."""
        return ""

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """Runs fetches of the user's graph.

        Args:
            fetches: a tensor, operation, variable, name, or a nest of them.
            feed_dict: tensor or name -> list with one entry per replica.
            options: RunOptions for TensorFlow.
            run_metadata: RunMetadata that TensorFlow fills.

        Returns:
            The nest with a list per fetch, one entry per replica; None for operations.

        Raises:
            SessionError: when a fetch or feed is not in the user's graph, or cannot be had.
        """
        request = read_request(self._user_graph, fetches, feed_dict)
        prepared = self._prepare(request)
        with self._watch.run(prepared.text, prepared.collectives):
            values = self._monitored.run(
                list(prepared.tensors), {**request.feeds, **prepared.empty}, options=options, run_metadata=run_metadata
            )
        found = iter(values)
        return map_structure(lambda leaf: [put_together(leaf, [next(found) for _ in leaf.names])], request.structure)

    def should_stop(self) -> bool:
        """Whether a hook or a queue runner asked to stop."""
        return bool(self._monitored.should_stop())

    def close(self) -> None:
        """Ends the session; a second call changes nothing."""
        self._watch.close()
        if self._monitored is not None:
            self._monitored.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._watch.close()
        return bool(self._monitored.__exit__(kind, error, trace))

    def exchange_report(self) -> ExchangeReport:
        """Bytes of the training exchanges so far, predicted and counted, summed over the workers.

        All workers must call it. The prediction is the plan's formula at the measured touched rows.
        """
        counted = self._monitored.raw_session().run([c.tensor for c in self._worker_graph.counters])
        return exchange_report(self._worker_graph.counters, counted, self._size)

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> None:
        """Not supported: collectives need whole runs."""
        raise SessionError("A run must be whole, because all workers take part: use run in place of partial_run.")

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> None:
        """Not supported: collectives need whole runs."""
        self.partial_run_setup(fetches)

    def _prepare(self, request: Request) -> _Prepared:
        key = (request.names, tuple(sorted(request.feeds)))
        if key not in self._prepared:
            self._prepared[key] = self._resolve(request)
        return self._prepared[key]

    def _resolve(self, request: Request) -> _Prepared:
        fed = frozenset(request.feeds)
        tensors = tuple(self._worker_name(name) for name in request.names)
        asked = {_node(name) for name in request.names if name not in fed}
        needed = self._view.ancestors(asked, fed)
        runs = self._worker_view.ancestors({_node(t) for t in tensors if t not in fed}, fed)
        empty = {
            cut.tensor: np.zeros(cut.shape, cut.dtype)
            for cut in self._worker_graph.cuts
            if _node(cut.tensor) in runs and not needed & set(cut.needed_by)
        }
        collectives = sorted(n for n in runs if self._worker_view.op(n).startswith("Horovod"))
        digest = hashlib.sha256("\n".join(collectives).encode()).hexdigest()[:16] if collectives else ""
        return _Prepared(tensors, empty, digest, ", ".join(request.names))

    def _worker_name(self, name: str) -> str:
        whole = self._worker_graph.whole.get(name)
        if whole is not None:
            return whole
        if name in self._worker_graph.held_by_row:
            raise SessionError(
                f"A fetch must be something that one worker can have whole, and {name!r} is held by rows on all "
                "workers. Fetch the variable itself."
            )
        return name


def _node(name: str) -> str:
    return split_tensor(name)[0] if ":" in name else name
