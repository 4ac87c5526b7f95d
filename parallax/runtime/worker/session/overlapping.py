"""Overlaps runs: a run returns its fetches as soon as they are computed, while its tail continues.

The tail of a step is its all-reduces, pushes and updates. While it runs, the script prepares the next batch, and the
next run begins: an op that reads a variable waits for the update of that variable, and for nothing else
(parallax/native/turns.cc), so every value is the one that sequential runs would read. At most two runs are in flight;
with a model in stages, as many as there are stages from a worker's own stage on, so that the runs of micro-batches
follow each other forward and backward. Any other request to the session, from any caller, waits until none is in
flight. A run that fails after it has returned its values makes the next run fail, with the same error. The end of the
data is raised by the run that reaches it, because a run also waits until it has read its input, and has done everything
else that keeps state before the workers interact.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from parallax.base.errors import SessionError
from parallax.base.types import Operation, RunMetadata, Session, Value
from parallax.graph.control_flow import branches_of
from parallax.graph.view import GraphView, node_of
from parallax.report.logger import log
from parallax.runtime.worker.session.stage_failures import StageFailures
from parallax.transform.building.all_to_all import is_collective, library, native_ops
from parallax.transform.passes.cut_stages import RECEIVE, SEND
from parallax.transform.passes.turns import GATE, RUN_NUMBER, SCOPE, find_ungated, passes_on

MOST_ON_THEIR_WAY = 2
_ALIGNMENT, _LEAST_ALIGNED = 64, 1 << 12
_numbers = itertools.count(1)
"""Counter of runs, in all sessions of this process."""


@functools.cache
def _native() -> ctypes.CDLL:
    native = ctypes.CDLL(str(library()))
    native.parallax_turns_begin.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int]
    native.parallax_turns_end.argtypes = [ctypes.c_int64, ctypes.c_char_p]
    native.parallax_turns_forget.argtypes = [ctypes.c_int64]
    return native


@dataclass(frozen=True, slots=True)
class OverlappingRun:
    """A prepared run of fixed fetches and feeds.

    Attributes:
        keys: the stateful resources that these runs touch.
        call: executes one; its arguments are the fed values, then its number, and `run_metadata` of a traced one.
        collect: returns the values that a run has delivered, by its number.
        feeds: the indices of the fed values that it needs: a stage of a model may need none.
        fetched: how many tensors are fetched; for none, the number of the run is delivered.
        targets: the ops that are run.
    """

    keys: ctypes.Array[ctypes.c_char_p]
    call: Callable[..., Sequence[Value]]
    collect: Callable[..., Sequence[Value]]
    feeds: tuple[int, ...]
    fetched: int
    targets: tuple[str, ...]


@dataclass(slots=True)
class _Flight:
    """A run in flight.

    Attributes:
        done: is set when it has ended.
        is_raised: whether its error has been raised by a call that requested its values.
    """

    done: Future[Any] = field(default_factory=Future)
    is_raised: bool = False


class Overlapping:
    """The overlapping runs of one session.

    Args:
        raw: TensorFlow's session, in this process, of a graph with gates (transform/passes/turns.py). From now on its
            own runs wait until none of these is in flight.
        most: how many may be in flight.
        failures: notifies other stages of failed runs; None if the worker has the full model.
    """

    def __init__(self, raw: Session, most: int = MOST_ON_THEIR_WAY, failures: StageFailures | None = None) -> None:
        self._raw = raw
        self._most = most
        self._failures = failures
        self._make = raw._make_callable_from_options
        self._flying: deque[_Flight] = deque()
        self._last = 0
        self._sets = 0
        self._has_logged = False
        self._lock = threading.RLock()  # a script may run a session in several threads
        self._threads: set[int] = set()  # that have started runs, and to which failures are raised
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        raw.run = self._after_all(raw.run)
        make = raw.make_callable
        raw.make_callable = lambda *arguments, **named: self._after_all(make(*arguments, **named))
        raw._make_callable_from_options = lambda options: self._after_all(self._make(options))

    def ready(self, fetched: Sequence[str], fed: Sequence[str], trace_level: int = 0) -> OverlappingRun | None:
        """Prepares runs; None if they cannot overlap.

        Args:
            fetched: names of tensors and operations.
            fed: names of tensors.
            trace_level: of `RunOptions`; 0 for runs that are not traced.
        """
        with self._lock:
            return self._ready(fetched, fed, trace_level)

    def _ready(self, fetched: Sequence[str], fed: Sequence[str], trace_level: int) -> OverlappingRun | None:
        view = GraphView(self._raw.graph.as_graph_def())
        cut_off = frozenset(fed)
        runs = view.ancestors({node_of(name) for name in fetched}, cut_off)
        if not any(view.op(node) == GATE for node in runs):
            return None
        odd = find_ungated(view, sorted(runs))
        if odd is not None:
            self._log_once(f"Steps do not overlap: {odd!r} ({view.op(odd)}) keeps state that a step cannot wait for.")
            return None
        touching: dict[str, list[str]] = {}
        for node in runs:
            for gate in view.controls(node):
                if view.op(gate) == GATE:
                    touching.setdefault(view.nodes[gate].attr["key"].s.decode(), []).append(node)
        tensors = [name for name in fetched if ":" in name]
        leaving = {
            key: sorted(nodes) for key, nodes in touching.items() if not any(passes_on(view.nodes[n]) for n in nodes)
        }
        first = sorted({n for nodes in touching.values() for n in nodes} & _find_before_exchanges(view, runs))
        ended, collected = self._add(leaving, tensors, first)
        taken = {tensor for node in runs for tensor in view.inputs(node)} | set(tensors)
        awaited = {control for node in runs for control in view.controls(node)}
        feeds = tuple(place for place, name in enumerate(fed) if name in taken or node_of(name) in awaited)
        options = config_pb2.CallableOptions(feed=[*(fed[place] for place in feeds), RUN_NUMBER])
        options.target.extend([*(name for name in fetched if ":" not in name), *ended])
        options.run_options.trace_level = trace_level
        collect = self._make(config_pb2.CallableOptions(feed=[RUN_NUMBER], fetch=collected))
        keys = [key.encode() for key in touching]
        keys_of_run = (ctypes.c_char_p * len(keys))(*keys)
        return OverlappingRun(keys_of_run, self._make(options), collect, feeds, len(tensors), tuple(fetched))

    def _add(
        self, leaving: dict[str, list[str]], tensors: Sequence[str], first: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Adds the ops by which runs leave gates, deliver after `first`, and are collected: (ops to run, tensors)."""
        graph, ops = self._raw.graph, native_ops()
        self._sets += 1
        graph._unsafe_unfinalize()  # TensorFlow's monitored session has finalized it, against ops by mistake
        with graph.as_default(), tf.control_dependencies(None), tf.name_scope(f"{SCOPE}/runs_{self._sets}/"):
            run = graph.get_tensor_by_name(RUN_NUMBER)
            ended = []
            for key, nodes in leaving.items():
                ended.append(_add_waiting_op(ops.parallax_leave(run=run, key=key, name="leave"), nodes))
            values = [graph.get_tensor_by_name(name) for name in tensors] or [run]
            ended.append(_add_waiting_op(ops.parallax_deliver(run=run, values=values, name="deliver"), first))
            results = ops.parallax_collect(run=run, T=[value.dtype.base_dtype for value in values], name="collect")
            collected = [tensor.name for tensor in results]
        graph.finalize()
        return ended, collected

    def run(
        self, ready: OverlappingRun, values: Sequence[Value], run_metadata: RunMetadata | None = None
    ) -> list[Value]:
        """Starts a run, and returns its fetches; values are copied, because the script may write into its arrays.

        Args:
            ready: the prepared run.
            values: of its feeds.
            run_metadata: of a traced run, filled when the run has ended.

        Raises:
            Exception: the error of this run, or of an earlier one.
        """
        copied = [_copy(values[place]) for place in ready.feeds]
        flight = _Flight()
        with self._lock:
            self._threads.add(threading.get_ident())
            self._wait_for_runs(self._most - 1)
            tell = self._announce_failure(ready)
            self._last += 1
            number = next(_numbers)
            _native().parallax_turns_begin(number, ready.keys, len(ready.keys))
            self._flying.append(flight)
            self._run_in_thread(functools.partial(_execute, ready, number, copied, flight, tell, run_metadata))
        try:
            return list(ready.collect(np.int64(number)))[: ready.fetched]
        except tf.errors.AbortedError:
            error = flight.done.exception()  # its own, or that of an earlier run
            if error is not None and not isinstance(error, tf.errors.AbortedError):
                flight.is_raised = True
            self.settle()  # raises an earlier error
            raise error or SessionError("A run ended without results.") from None
        finally:
            _native().parallax_turns_forget(number)

    def _announce_failure(self, ready: OverlappingRun) -> Callable[[BaseException], None]:
        """Returns the function that notifies others of this run's failure."""
        if self._failures is None:
            return _ignore_error
        return functools.partial(self._failures.send_error, self._failures.begin(ready.targets))

    def settle(self) -> None:
        """Waits until no run is in flight.

        Raises:
            Exception: the error of the first failed run.
        """
        with self._lock:
            self._wait_for_runs(0)

    def _wait_for_runs(self, most: int) -> None:
        """Waits until at most `most` runs are in flight, or none after a failed one."""
        failed: BaseException | None = None
        has_failed = False
        if threading.get_ident() not in self._threads:  # a checkpoint's, for instance: the script raises the error too
            failed = next((error for flight in self._flying if (error := flight.done.exception()) is not None), None)
            if failed is not None:
                raise failed
            return
        while len(self._flying) > (0 if has_failed else most):
            flight = self._flying[0]
            error = flight.done.exception()  # waits; an interrupt leaves the run in flight
            self._flying.popleft()
            has_failed = has_failed or error is not None
            if not flight.is_raised:
                failed = failed or error
        if has_failed and not self._flying:
            _native().parallax_turns_reset()
        if failed is not None:
            raise failed

    def _after_all(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def alone(*arguments: Any, **named: Any) -> Any:
            if self._flying:
                self.settle()
            return run(*arguments, **named)

        return alone

    def _run_in_thread(self, task: Callable[[], None]) -> None:
        """Executes a run in its own thread, which does not delay the end of the process."""
        if self._last <= self._most:
            threading.Thread(target=self._work, name=f"run_{self._last}", daemon=True).start()
        self._tasks.put(task)

    def _work(self) -> None:
        while True:
            self._tasks.get()()

    def _log_once(self, text: str) -> None:
        if not self._has_logged:
            log.info(text)
        self._has_logged = True


def _copy(value: Value) -> Value:
    """Copies an array to an aligned address, from which TensorFlow reads it without a copy of its own."""
    array = np.asarray(value)
    if array.nbytes < _LEAST_ALIGNED or array.dtype.hasobject:
        return np.array(value)
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    copied = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def _ignore_error(error: BaseException) -> None:
    """Does nothing: no other process waits for messages of the run."""


def _execute(
    ready: OverlappingRun,
    number: int,
    values: Sequence[Value],
    flight: _Flight,
    tell: Callable[[BaseException], None],
    run_metadata: RunMetadata | None,
) -> None:
    try:
        ready.call(*values, np.int64(number), run_metadata=run_metadata)
    except BaseException as error:
        tell(error)
        _native().parallax_turns_end(number, str(error).encode(errors="replace") or b"unknown")
        flight.done.set_exception(error)  # last: who waits for it resets the turns, for runs to come
    else:
        _native().parallax_turns_end(number, b"")
        flight.done.set_result(None)


def is_exchange(op: str) -> bool:
    """Whether a worker waits for others in ops of a type."""
    return is_collective(op) or op in (SEND, RECEIVE)


def _find_before_exchanges(view: GraphView, runs: set[str]) -> set[str]:
    """The nodes of a run that depend on no synchronization of workers, touch no variable, and always run."""
    after: set[str] = set()
    nodes_before = set()
    branches = branches_of(view)
    for node in view.topological_order():
        if node not in runs:
            continue
        if is_exchange(view.op(node)) or any(needed in after for needed in view.predecessors(node)):
            after.add(node)
        elif not branches[node] and not any(view.op(node_of(tensor)) == "VarHandleOp" for tensor in view.inputs(node)):
            nodes_before.add(node)
    return nodes_before


def _add_waiting_op(made: Operation, nodes: Sequence[str]) -> str:
    """Makes a new op wait for others, and returns its name.

    `tf.control_dependencies` would set an attribute of the others, of which TensorFlow warns if they have run.
    """
    made._add_control_inputs([made.graph.get_operation_by_name(node) for node in nodes])
    return str(made.name)
