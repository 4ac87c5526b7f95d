"""Measures one worker's compute per step, without any exchange: the user's own graph, trained on one device.

It trains in its own session; the trained values are discarded.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from parallax.base.errors import GraphError
from parallax.base.types import Session, Value
from parallax.report.text import bytes_text
from parallax.runtime.measure.inputs import Inputs, open_session
from parallax.runtime.measure.memory import free_bytes, peak_bytes, reset_peak, variable_bytes
from parallax.runtime.trace.ops import read_step
from parallax.settings.config import Config
from parallax.transform.building.editor import Worker

_UNTIMED, _TIMED = 3, 10
"""Steps excluded at the start, which allocate memory and prepare kernels; the median is of the others."""

_TRACED, _SHARE = 3, 0.99
"""Steps in which ops are timed, and the share of their time for which the longest ones are recorded."""

_UNTIMED_ON_ONE = 1
"""The same, after threads have been moved to one core."""


@dataclass(frozen=True, slots=True)
class ComputeMeasurement:
    """The measured compute of a worker.

    Attributes:
        step_s: median seconds of a step; None if not measured.
        one_core_s: the same with one core for all threads; None if the kernel does not support that.
        memory_bytes: peak memory of the process in addition to its variables; None if the kernel does not report it.
        op_seconds: op -> mean seconds in a step, of the ops that take most of it.
    """

    step_s: float | None = None
    one_core_s: float | None = None
    memory_bytes: int | None = None
    op_seconds: Mapping[str, float] = field(default_factory=dict)


def measure_compute(
    inputs: Inputs, fetch: str, batch: Callable[[int], dict[str, Value]], worker: Worker, config: Config
) -> ComputeMeasurement:
    """Trains some steps in this process, on all cores that a session uses.

    Args:
        inputs: the subgraph that the training op needs.
        fetch: the training op.
        batch: the feeds, by step.
        worker: the worker whose random numbers and shard are used.
        config: options of the session, which uses all devices by default, and the element type of products.

    Raises:
        GraphError: when the variables do not fit into memory, or a step fails.
    """
    from parallax.runtime.worker.session.bfloat16 import options_with

    def time_step(session: Session, step: int) -> float:
        fed = batch(step)
        began_s = time.perf_counter()
        session.run(fetch, fed)
        return time.perf_counter() - began_s

    whole_machine = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    options = options_with(config.sess_config or whole_machine, config.compute_dtype)
    held = variable_bytes(inputs.graph_def.node)
    _check_fits(inputs, held)
    times_s: list[float] = []
    on_one_s: list[float] = []
    has_reset = False
    op_seconds: dict[str, float] = {}
    try:
        with open_session(inputs, worker, batch(0), options) as session:
            has_reset = reset_peak()
            for step in range(_UNTIMED + _TIMED):
                times_s.append(time_step(session, step))
            peak = peak_bytes()
            op_seconds = _time_ops(session, fetch, [batch(len(times_s) + step) for step in range(_TRACED)])
            with _pin_to_one_core() as moved:
                while moved and len(on_one_s) < _UNTIMED_ON_ONE + _TIMED:
                    on_one_s.append(time_step(session, len(times_s) + _TRACED + len(on_one_s)))
    except tf.errors.OutOfRangeError as error:
        if len(times_s) <= _UNTIMED:
            raise GraphError(
                f"Timing a step needs more than {_UNTIMED} batches, but the data ended after {len(times_s)}. Take "
                "more data, or leave --compute out."
            ) from error
        peak = peak_bytes()
    except tf.errors.OpError as error:
        raise GraphError(f"Step {len(times_s)} fails in one process: {error.message}") from error
    on_one_s = on_one_s[_UNTIMED_ON_ONE:]
    return ComputeMeasurement(
        statistics.median(times_s[_UNTIMED:]),
        statistics.median(on_one_s) if on_one_s else None,
        max(0, peak - held) if has_reset else None,
        op_seconds,
    )


def _time_ops(session: Session, fetch: str, batches: Sequence[dict[str, Value]]) -> dict[str, float]:
    """The mean seconds of the ops that take most of a step."""
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    found: dict[str, float] = {}
    for number, fed in enumerate(batches):
        metadata = tf.compat.v1.RunMetadata()
        session.run(fetch, fed, options, metadata)
        for op in read_step(number, metadata.step_stats).ops:
            found[op.name] = found.get(op.name, 0.0) + (op.end_us - op.start_us) / 1e6 / len(batches)
    left = _SHARE * sum(found.values())
    longest = {}
    for name in sorted(found, key=lambda one: -found[one]):
        if left > 0:
            longest[name] = found[name]
        left -= found[name]
    return longest


@contextlib.contextmanager
def _pin_to_one_core() -> Iterator[bool]:
    """Context that moves all threads of this process to one core; yields whether it could."""
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    cores = os.sched_getaffinity(0)
    _move({min(cores)})
    try:
        yield True
    finally:
        _move(cores)


def _move(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(thread.name), cores)


def _check_fits(inputs: Inputs, held: int) -> None:
    """Refuses variables that do not fit; the largest counts twice, for building its initial value and assigning it."""
    largest = max((variable_bytes([node]) for node in inputs.graph_def.node), default=0)
    free = free_bytes()
    if held + largest > free:
        raise GraphError(
            f"To time a step, one process must hold all variables and slots, {bytes_text(held)}, and the largest "
            f"twice during initialization, {bytes_text(held + largest)} in all, but only {bytes_text(free)} are "
            "free. Leave --compute out, or measure in a job: parallax run --measure FILE."
        )
