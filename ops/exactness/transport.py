"""The transport in memory: workers are threads of one process, and a collective is a meeting of these threads.

`in_memory` puts Python functions in place of the collectives of a worker's graph. Each calls `Meetings.meet`, which
returns when all workers have brought their part. A worker that ends its run, or fails, while others wait for it ends
the wait with an error that names the node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TIMEOUT_S = 60.0
"""A worker that has neither come to a meeting nor ended its run: two that wait for each other at different nodes."""

AVERAGE, SUM, MIN, MAX = 0, 1, 3, 4
"""Horovod's numbers of reductions."""


class MeetingError(RuntimeError):
    """A collective that not all workers take part in, or to which they bring what does not fit together."""


@dataclass
class _Meeting:
    parts: dict[int, Any] = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)


class Meetings:
    """Where the workers of one job meet.

    Args:
        size: number of workers.
        timeout_s: how long one waits for the others.
    """

    def __init__(self, size: int, timeout_s: float = TIMEOUT_S) -> None:
        self.size = size
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], _Meeting] = {}
        self._times: dict[tuple[str, int], int] = {}
        self._runs = [0] * size
        self._failure = ""

    def meet(self, node: str, rank: int, part: Any) -> list[Any]:
        """The parts of all workers, by rank.

        Args:
            node: name of the collective; each time that a worker runs it is a meeting of its own.
            rank: of the worker that calls.
            part: what this worker brings.

        Raises:
            MeetingError: one of the workers does not come.
        """
        with self._lock:
            time = self._times.get((node, rank), 0)
            self._times[node, rank] = time + 1
            meeting = self._open.setdefault((node, time), _Meeting())
            meeting.parts[rank] = part
            if len(meeting.parts) == self.size:
                del self._open[node, time]
                meeting.is_over.set()
            self._end_the_vain()
        if not meeting.is_over.wait(self._timeout_s):
            missing = sorted(set(range(self.size)) - meeting.parts.keys())
            self.fail(f"{node}: worker {rank} waits, and workers {missing} wait elsewhere")
        if len(meeting.parts) < self.size:
            raise MeetingError(self._failure)
        return [meeting.parts[number] for number in range(self.size)]

    def has_run(self, rank: int) -> None:
        """A worker has ended a run: whoever still waits for it in that run waits in vain."""
        with self._lock:
            self._runs[rank] += 1
            self._end_the_vain()

    def fail(self, why: str) -> None:
        """Ends every wait with an error; the first reason is kept."""
        with self._lock:
            self._failure = self._failure or why
            for meeting in self._open.values():
                meeting.is_over.set()
            self._open.clear()

    def _end_the_vain(self) -> None:
        for (node, time), meeting in list(self._open.items()):
            waiting = min(self._runs[rank] for rank in meeting.parts)
            gone = [r for r in range(self.size) if r not in meeting.parts and self._runs[r] > waiting]
            if gone or self._failure:
                self._failure = self._failure or (
                    f"{node}: workers {sorted(meeting.parts)} wait, and workers {gone} have ended the run without it"
                )
                del self._open[node, time]
                meeting.is_over.set()


def in_memory(graph_def: Any, rank: int, meetings: Meetings) -> list[Any]:
    """Puts meetings in place of the collectives of a worker's graph, in place.

    Returns:
        The functions, which must be kept as long as the graph runs.

    Raises:
        NotImplementedError: a collective has no meaning here.
    """
    functions = []
    for node in graph_def.node:
        if node.op in _COLLECTIVES:
            functions.append(_replace(node, _COLLECTIVES[node.op](node, rank, meetings)))
        elif node.op.startswith("Horovod"):
            raise NotImplementedError(f"{node.op} {node.name!r} has no transport in memory.")
    return functions


def reduced(parts: Sequence[Any], kind: int, before: float = 1.0, after: float = 1.0) -> Any:
    """The elementwise sum (times both factors), mean, minimum or maximum of arrays of one shape."""
    shapes = {(part.shape, part.dtype) for part in parts}
    if len(shapes) > 1:
        raise MeetingError(f"All workers must bring one shape, and they bring {sorted(map(str, shapes))}")
    scaled = [_times(part, before) for part in parts]
    stacked = np.stack(scaled)
    made = {SUM: np.sum, AVERAGE: np.mean, MIN: np.min, MAX: np.max}[kind](stacked, axis=0)
    return _times(made, after).astype(parts[0].dtype)


def received(parts: Sequence[tuple[Any, Any]], rank: int) -> tuple[Any, Any]:
    """What a worker gets of an all-to-all: the rows of all, by worker, and how many came from each.

    Args:
        parts: by worker its rows `[n, ...]`, ordered by where they go, and `[W]` how many go to each.
        rank: the worker that receives.
    """
    pieces, counts = [], []
    for rows, splits in parts:
        begin = int(splits[:rank].sum())
        pieces.append(rows[begin : begin + int(splits[rank])])
        counts.append(len(pieces[-1]))
    return np.concatenate(pieces), np.array(counts, np.int32)


def _times(part: Any, factor: float) -> Any:
    return part if factor == 1.0 else part * np.asarray(factor, part.dtype)


def _all_reduce(node: Any, rank: int, meetings: Meetings) -> Callable[..., Any]:
    kind, name = node.attr["reduce_op"].i, node.name
    before, after = node.attr["prescale_factor"].f, node.attr["postscale_factor"].f
    return lambda tensor: reduced(meetings.meet(name, rank, tensor.copy()), kind, before, after)


def _all_gather(node: Any, rank: int, meetings: Meetings) -> Callable[..., Any]:
    name = node.name
    return lambda tensor: np.concatenate(meetings.meet(name, rank, tensor.copy()))


def _broadcast(node: Any, rank: int, meetings: Meetings) -> Callable[..., Any]:
    name, root = node.name, node.attr["root_rank"].i
    return lambda tensor: meetings.meet(name, rank, tensor.copy())[root]


def _all_to_all(node: Any, rank: int, meetings: Meetings) -> Callable[..., Any]:
    name = node.name
    if node.attr["among"].s != b"workers":
        raise NotImplementedError(f"{name!r} is among the workers of a host, of which there is one in memory.")

    def exchange(rows: Any, splits: Any, *arriving: Any) -> tuple[Any, Any]:
        found = received(meetings.meet(name, rank, (rows.copy(), splits.copy())), rank)
        if arriving and not np.array_equal(arriving[0], found[1]):
            raise MeetingError(f"{name}: {arriving[0]} rows were to arrive, and {found[1]} did")
        return found

    return exchange


_COLLECTIVES: dict[str, Callable[[Any, int, Meetings], Callable[..., Any]]] = {
    "HorovodAllreduce": _all_reduce,
    "HorovodAllgather": _all_gather,
    "HorovodBroadcast": _broadcast,
    "ParallaxAllToAll": _all_to_all,
}


def _replace(node: Any, function: Callable[..., Any]) -> Any:
    """Makes a node call a Python function; Horovod's ops are stateless for TensorFlow, so that it may fold them."""
    from tensorflow.core.framework import types_pb2
    from tensorflow.python.ops import script_ops

    is_exchange = node.op == "ParallaxAllToAll"
    known = node.attr["known"].i if is_exchange else 0
    of = node.attr["T"].type
    taken = [of, *[types_pb2.DT_INT32] * (1 + known)] if is_exchange else [of]
    given = [of, types_pb2.DT_INT32] if is_exchange else [of]
    node.op = "PyFunc" if is_exchange else "PyFuncStateless"
    node.attr.clear()
    node.attr["token"].s = script_ops._py_funcs.insert(function).encode()
    node.attr["Tin"].list.type.extend(taken)
    node.attr["Tout"].list.type.extend(given)
    return function
