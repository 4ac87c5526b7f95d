"""Fast path for repeated runs that need no session hooks: the same fetches again.

TensorFlow parses every fetch and feed of every run again, for its hooks and itself, which for short steps of many
workers on few cores is a tenth of the step. Repeated runs are prepared once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from tensorflow.core.protobuf import config_pb2

from parallax.base.types import Graph, Hook, Session, TensorShape, Value
from parallax.runtime.worker.session.overlapping import MOST_ON_THEIR_WAY, Overlapping
from parallax.runtime.worker.session.stage_failures import StageFailures

_CONVERTED = (np.ndarray, np.generic, bool, int, float, str, bytes, list, tuple)
"""Types of fed values that NumPy converts."""


@runtime_checkable
class Finishing(Protocol):
    """A hook that has no more work from some run on."""

    finished: bool
    """Whether it has no more work."""


class DirectRuns:
    """The runs of one session that nothing hooks into.

    Args:
        raw: TensorFlow's session, in this process.
        waits_for: hooks that must see all runs until they have finished.
        overlaps: whether its graph has gates at which runs take turns.
        repeats: whether all runs recur, as the steps of a front end do; else a run is prepared at its second
            occurrence.
        most: how many overlapping runs may be in flight.
        failures: notifies other stages of failed runs; None if the worker has the full model.
    """

    def __init__(
        self,
        raw: Session,
        waits_for: Sequence[Finishing] = (),
        overlaps: bool = False,
        repeats: bool = False,
        most: int = MOST_ON_THEIR_WAY,
        failures: StageFailures | None = None,
    ) -> None:
        self._raw = raw
        self._repeats = repeats
        self._failures = failures
        self._overlapping = Overlapping(raw, most, failures) if overlaps else None
        self._waits_for = list(waits_for)
        self._ready: dict[tuple[tuple[str, ...], tuple[str, ...]], _Ready | None] = {}

    def run(self, tensors: tuple[str, ...], feeds: Mapping[str, Value], overlaps: bool = False) -> list[Value] | None:
        """Returns the fetched values, None for each operation; or None if this run needs the regular path.

        Args:
            tensors: names of tensors and operations in the worker's graph.
            feeds: tensor name -> value.
            overlaps: whether the ops after the fetches may continue while the next run begins.
        """
        if self._waits_for:
            self._waits_for = [hook for hook in self._waits_for if not hook.finished]
            if self._waits_for:
                return None
        key = (tensors, tuple(feeds))
        if key not in self._ready:
            if not tensors or len({*tensors, *feeds}) < len(tensors) + len(feeds):
                return None
            self._ready[key] = None
            if not self._repeats:  # preparation does not pay for a run that does not recur
                return None
        ready = self._ready[key]
        if ready is None:
            ready = self._ready[key] = _Ready(self._raw, *key, self._overlapping if overlaps else None)
        return ready.run(tuple(feeds.values()), self._failures)

    def settle(self) -> None:
        """Waits until no run is in flight; raises the error of a failed one."""
        if self._overlapping is not None:
            self._overlapping.settle()


class _Ready:
    """One set of fetches and feeds."""

    def __init__(
        self, raw: Session, tensors: Sequence[str], fed: Sequence[str], overlapping: Overlapping | None
    ) -> None:
        fed_tensors = [raw.graph.get_tensor_by_name(name) for name in fed]
        self._takes = [(tensor.dtype.base_dtype.as_numpy_dtype, _dims(tensor.shape)) for tensor in fed_tensors]
        self._places = [":" in name for name in tensors]
        self._targets = tensors
        self._overlapping = overlapping
        self._flight = None if overlapping is None else overlapping.ready(tensors, fed)
        if self._flight is not None:
            return
        options = config_pb2.CallableOptions(feed=fed)
        options.fetch.extend(name for name in tensors if ":" in name)
        options.target.extend(name for name in tensors if ":" not in name)
        self._call = raw._make_callable_from_options(options)  # make_callable accepts no feeds in this way

    def run(self, values: Sequence[Value], failures: StageFailures | None) -> list[Value] | None:
        arrays = []
        for value, (dtype, dims) in zip(values, self._takes, strict=True):
            array = _to_array(value, dtype)
            if array is None or not _fits(array.shape, dims):
                return None  # TensorFlow reports its error
            arrays.append(array)
        if self._overlapping is not None and self._flight is not None:
            results = iter(self._overlapping.run(self._flight, arrays))
        elif failures is not None:
            results = iter(failures.call(self._targets, lambda: self._call(*arrays)))
        else:
            results = iter(self._call(*arrays))
        return [next(results) if is_tensor else None for is_tensor in self._places]


def _to_array(value: Value, dtype: type[Any]) -> np.ndarray[Any, Any] | None:
    """A fed value as `Session.run` converts it; None if `Session.run` would refuse it, or convert it in another way."""
    if type(value) is np.ndarray and value.dtype == dtype:
        return value
    if not isinstance(value, _CONVERTED):
        return None
    try:
        if isinstance(value, int) and dtype(value) != value:
            return None
        return np.asarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return None


def _dims(shape: TensorShape) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def _fits(shape: tuple[int, ...], dims: tuple[int | None, ...] | None) -> bool:
    """Whether an array of a shape may be fed; TensorFlow's own comparison takes as long as a small op."""
    if dims is None or len(shape) != len(dims):
        return dims is None
    return all(known is None or known == length for length, known in zip(shape, dims, strict=True))


def can_be_direct(graph: Graph, hooks: Sequence[Hook], target: str) -> bool:
    """Whether runs need no hooks from some run on: there are no permanent hooks, and no queue runners.

    Args:
        graph: the worker's.
        hooks: of the session, without the last.
        target: the session's target; empty for this process.
    """
    finish = all(isinstance(hook, Finishing) for hook in hooks)
    return not target and finish and not graph.get_collection("queue_runners")
