"""Fast path for repeated runs: the same fetches again.

TensorFlow parses every fetch and feed of every run again, for its hooks and itself, which for short steps of many
workers on few cores is a tenth of the step. Repeated runs are prepared once. Where hooks look at every run, TensorFlow
calls them around a run as ever, and only the run below them is a prepared one, if it overlaps with others. A trace that
is requested through run options ends with its run; one that shows how runs overlap is requested by a `TraceRequest`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from tensorflow.core.protobuf import config_pb2

from parallax.base.types import Graph, RunMetadata, Session, TensorShape, Value
from parallax.runtime.worker.session.overlapping import MOST_ON_THEIR_WAY, Overlapping
from parallax.runtime.worker.session.stage_failures import StageFailures

_CONVERTED = (np.ndarray, np.generic, bool, int, float, str, bytes, list, tuple)
"""Types of fed values that NumPy converts."""
_CALLER = "caller"
"""TensorFlow's name for the fetches of the caller among those of hooks."""


@runtime_checkable
class Finishing(Protocol):
    """A hook that has no more work from some run on."""

    finished: bool
    """Whether it has no more work."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request to trace the next run, which may overlap with others.

    Attributes:
        level: of TensorFlow's RunOptions.
        run_metadata: filled when the run has ended, which is after it has returned.
    """

    level: int
    run_metadata: RunMetadata


@runtime_checkable
class TracesOverlap(Protocol):
    """A hook that traces runs that overlap."""

    request: TraceRequest | None
    """Set before a run that is to be traced, else None."""


class DirectRuns:
    """The runs of one session that nothing hooks into.

    Args:
        raw: TensorFlow's session, in this process.
        waits_for: hooks that must see all runs until they have finished.
        has_hooks: whether other hooks see every run.
        overlaps: whether its graph has gates at which runs take turns.
        repeats: whether all runs recur, as the steps of a front end do; else a run is prepared at its second
            occurrence.
        most: how many overlapping runs may be in flight.
        failures: notifies other stages of failed runs; None if the worker has the full model.
        tracer: the hook that traces overlapping runs, if any.
    """

    def __init__(
        self,
        raw: Session,
        waits_for: Sequence[Finishing] = (),
        has_hooks: bool = False,
        overlaps: bool = False,
        repeats: bool = False,
        most: int = MOST_ON_THEIR_WAY,
        failures: StageFailures | None = None,
        tracer: TracesOverlap | None = None,
    ) -> None:
        self._raw = raw
        self._tracer = tracer
        self._repeats = repeats
        self._failures = failures
        self._overlapping = Overlapping(raw, most, failures) if overlaps else None
        self._waits_for = list(waits_for)
        self._has_hooks = has_hooks
        self._hooked = threading.local()
        if (has_hooks or waits_for) and self._overlapping is not None:
            raw.run = self._overlap_below_hooks(raw.run)
        self._ready: dict[tuple[tuple[str, ...], tuple[str, ...], int], _Ready | None] = {}

    def run(self, tensors: tuple[str, ...], feeds: Mapping[str, Value], overlaps: bool = False) -> list[Value] | None:
        """Returns the fetched values, None for each operation; or None if this run needs the regular path.

        Args:
            tensors: names of tensors and operations in the worker's graph.
            feeds: tensor name -> value.
            overlaps: whether the ops after the fetches may continue while the next run begins.
        """
        if self._has_hooks or self._is_waiting():
            return None
        return self._run(tensors, feeds, overlaps)

    @contextmanager
    def below_hooks(self, overlaps: bool) -> Iterator[None]:
        """Context of a run with hooks, whose ops after the fetches may continue while the next run begins."""
        self._hooked.overlaps = overlaps and (self._tracer is not None or not self._is_waiting())
        try:
            yield
        finally:
            self._hooked.overlaps = False

    def settle(self) -> None:
        """Waits until no run is in flight; raises the error of a failed one."""
        if self._overlapping is not None:
            self._overlapping.settle()

    def _is_waiting(self) -> bool:
        """Whether a hook that must see all runs has not finished."""
        if self._waits_for:
            self._waits_for = [hook for hook in self._waits_for if not hook.finished]
        return bool(self._waits_for)

    def _run(
        self, tensors: tuple[str, ...], feeds: Mapping[str, Value], overlaps: bool, request: TraceRequest | None = None
    ) -> list[Value] | None:
        key = (tensors, tuple(feeds), 0 if request is None else request.level)
        if key not in self._ready:
            if not tensors or len({*tensors, *feeds}) < len(tensors) + len(feeds):
                return None
            self._ready[key] = None
            if not self._repeats and request is None:  # preparation does not pay for a run that does not recur
                return None
        ready = self._ready[key]
        if ready is None:
            ready = self._ready[key] = _Ready(self._raw, *key, self._overlapping if overlaps else None)
        return ready.run(tuple(feeds.values()), self._failures, None if request is None else request.run_metadata)

    def _overlap_below_hooks(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the run that TensorFlow calls with the fetches of the caller and of the hooks."""

        @functools.wraps(run)
        def run_below_hooks(fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
            if not (isinstance(fetches, dict) and _CALLER in fetches):  # hooks may run the session too
                return run(fetches, feed_dict, options, run_metadata)
            request = None if self._tracer is None else self._tracer.request
            overlaps, self._hooked.overlaps = getattr(self._hooked, "overlaps", False), False
            if overlaps and not options.ListFields():
                values = self._run_names(fetches, feed_dict or {}, request)
                if values is not None:
                    return values
            if request is None:
                return run(fetches, feed_dict, options, run_metadata)
            options.trace_level = max(options.trace_level, request.level)
            values = run(fetches, feed_dict, options, run_metadata)
            request.run_metadata.CopyFrom(run_metadata)
            return values

        return run_below_hooks

    def _run_names(
        self, fetches: Mapping[Any, Any], feeds: Mapping[Any, Value], request: TraceRequest | None
    ) -> dict[Any, list[Value]] | None:
        """The values of lists of names; None if fetches or feeds are anything else."""
        if not all(
            isinstance(names, list) and all(isinstance(one, str) for one in names) for names in fetches.values()
        ):
            return None
        if not all(isinstance(fed, str) for fed in feeds):
            return None
        tensors = tuple(dict.fromkeys(name for names in fetches.values() for name in names))
        values = self._run(tensors, feeds, True, request)
        if values is None:
            return None
        value_by_name = dict(zip(tensors, values, strict=True))
        return {key: [value_by_name[name] for name in names] for key, names in fetches.items()}


class _Ready:
    """One set of fetches and feeds."""

    def __init__(
        self,
        raw: Session,
        tensors: Sequence[str],
        fed: Sequence[str],
        trace_level: int,
        overlapping: Overlapping | None,
    ) -> None:
        fed_tensors = [raw.graph.get_tensor_by_name(name) for name in fed]
        self._takes = [(tensor.dtype.base_dtype.as_numpy_dtype, _dims(tensor.shape)) for tensor in fed_tensors]
        self._places = [":" in name for name in tensors]
        self._targets = tensors
        self._overlapping = overlapping
        self._flight = None if overlapping is None else overlapping.ready(tensors, fed, trace_level)
        if self._flight is not None:
            return
        options = config_pb2.CallableOptions(feed=fed)
        options.fetch.extend(name for name in tensors if ":" in name)
        options.target.extend(name for name in tensors if ":" not in name)
        options.run_options.trace_level = trace_level
        self._call = raw._make_callable_from_options(options)  # make_callable accepts no feeds in this way

    def run(
        self, values: Sequence[Value], failures: StageFailures | None, run_metadata: RunMetadata | None
    ) -> list[Value] | None:
        arrays = []
        for value, (dtype, dims) in zip(values, self._takes, strict=True):
            array = _to_array(value, dtype)
            if array is None or not _fits(array.shape, dims):
                return None  # TensorFlow reports its error
            arrays.append(array)
        if self._overlapping is not None and self._flight is not None:
            results = iter(self._overlapping.run(self._flight, arrays, run_metadata))
        elif failures is not None:
            results = iter(failures.call(self._targets, lambda: self._call(*arrays, run_metadata=run_metadata)))
        else:
            results = iter(self._call(*arrays, run_metadata=run_metadata))
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


def can_be_direct(graph: Graph, target: str) -> bool:
    """Whether runs may bypass TensorFlow's sessions: this process has all variables, and no queue is filled by runs.

    Args:
        graph: the worker's.
        target: the session's target; empty for this process.
    """
    return not target and not graph.get_collection("queue_runners")
