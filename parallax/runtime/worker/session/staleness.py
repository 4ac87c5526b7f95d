"""Bounds how far asynchronous workers drift apart: a clock for each worker on server 0, and a hook that waits for it.

A worker's clock is the number of training runs that it has begun. A run begins when the clock of no other worker is
more than the staleness behind it (Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", 2013). The clocks are entries of a lookup table of TensorFlow's, which needs no initializer and which all
sessions of the cluster share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from parallax.base.types import ConfigProto, RunContext, Session
from parallax.runtime.worker.ranks import SERVER_TASK
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.transform.building.editor import SCOPE

v1 = tf.compat.v1
_POLL_S = 0.002
_ENDED = 2**62
"""The clock of a worker that begins no more runs, and for which nobody waits."""


class RunClocks:
    """The clocks of all workers; one object for each worker.

    Args:
        target: of TensorFlow's session in a cluster with servers.
        options: of the session.
        rank: of this worker.
        size: the number of workers.
        staleness: by how many runs a worker may be ahead of another; at least 1.
    """

    def __init__(self, target: str, options: ConfigProto, rank: int, size: int, staleness: int) -> None:
        with tf.Graph().as_default() as graph, tf.device(f"/job:{SERVER_TASK}/task:0"):
            table = tf.raw_ops.MutableHashTableV2(
                shared_name=f"{SCOPE}/clocks", key_dtype=tf.int64, value_dtype=tf.int64
            )
            self._new = v1.placeholder(tf.int64, [1])
            own = tf.constant([rank], tf.int64)
            self._set = tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=own, values=self._new)
            others = tf.constant([other for other in range(size) if other != rank], tf.int64)
            none_begun = tf.constant(0, tf.int64)
            self._read = tf.raw_ops.LookupTableFindV2(table_handle=table, keys=others, default_value=none_begun)
        self._session = v1.Session(target, graph, options)
        self._rank, self._staleness = rank, staleness
        self._slowest = 0
        self._others = tuple(other for other in range(size) if other != rank)

    def may_begin(self, run: int) -> bool:
        """Whether this worker may begin a run, numbered from 1; asks the server only if the last answer is too old."""
        if self._others and self._slowest < run - self._staleness:
            self._slowest = int(np.min(self._session.run(self._read)))
        return not self._others or self._slowest >= run - self._staleness

    def begin(self, run: int) -> None:
        """Sets this worker's clock to a run, numbered from 1, which is about to begin."""
        self._session.run(self._set, {self._new: [run]})

    def find_slowest(self) -> int:
        """The worker whose clock is furthest behind."""
        return self._others[int(np.argmin(self._session.run(self._read)))]

    def end(self) -> None:
        """Makes nobody wait for this worker any more; a second call has no effect."""
        if self._session is not None:
            self.begin(_ENDED)
            self._session.close()
            self._session = None


class BoundedStaleness(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Delays this worker's training runs until they are within the bound.

    Args:
        clocks: of the workers.
        worker: whose runs they are.
        training: counts them.
        joins: called while this worker waits, with its session: take part in what others have called for, such as a
            checkpoint.
    """

    def __init__(
        self,
        clocks: RunClocks,
        worker: WorkerContext,
        training: TrainingRuns,
        joins: Sequence[Callable[[Session], None]] = (),
    ) -> None:
        self._clocks, self._worker, self._training, self._joins = clocks, worker, training, joins

    def before_run(self, run_context: RunContext) -> None:
        """Waits until a training run may begin, and counts it."""
        step = self._training.step
        if step is None:
            return
        if not self._clocks.may_begin(step + 1):
            self._wait(step + 1)
        self._clocks.begin(step + 1)

    def _wait(self, run: int) -> None:
        text = f"run {run}, for which worker {self._clocks.find_slowest()} is too far behind"
        with self._worker.watch.run(text, "staleness", patient=True):
            while not self._clocks.may_begin(run):
                for join in self._joins:
                    join(self._worker.raw)
                time.sleep(_POLL_S)

    def end(self, session: Session) -> None:
        """Makes nobody wait for this worker any more."""
        self._clocks.end()
