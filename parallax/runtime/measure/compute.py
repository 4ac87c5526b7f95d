"""What one worker computes in a step, alone and without any exchange: the user's own graph, trained on one device.

It trains in a session of its own; what it learns is thrown away.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parallax.errors import GraphError
from parallax.report import bytes_text
from parallax.runtime.measure.inputs import Inputs, opened
from parallax.runtime.measure.memory import free_bytes, peak_bytes, reset_peak, variable_bytes
from parallax.transform.edit import Worker

_UNTIMED, _TIMED = 3, 10
"""The first steps make memory and kernels ready, once; of the others the median counts."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What was measured.

    Attributes:
        step_s: median seconds of a step; None when it was not measured.
        cpu_s: median processor seconds of a step, of all threads of the process; None likewise.
        memory_bytes: peak memory of the process besides its variables; None when the kernel does not tell.
    """

    step_s: float | None
    cpu_s: float | None
    memory_bytes: int | None


def computed(
    inputs: Inputs, fetch: str, batch: Callable[[int], dict[str, Any]], worker: Worker, options: Any = None
) -> Computed:
    """Trains some steps in this process, on all cores that a session takes.

    Args:
        inputs: what the training op needs.
        fetch: the training op.
        batch: what is fed, by step.
        worker: whose random numbers and shard.
        options: a ConfigProto; by default all devices are taken.

    Raises:
        GraphError: when the variables do not fit into memory, or a step fails.
    """
    import tensorflow as tf

    whole_machine = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    held = variable_bytes(inputs.graph_def.node)
    _check_fits(inputs, held)
    times_s: list[float] = []
    cpu_times_s: list[float] = []
    tells = False
    try:
        with opened(inputs, worker, batch(0), options or whole_machine) as session:
            tells = reset_peak()
            for step in range(_UNTIMED + _TIMED):
                fed = batch(step)
                began_s, cpu_began_s = time.perf_counter(), time.process_time()
                session.run(fetch, fed)
                cpu_times_s.append(time.process_time() - cpu_began_s)
                times_s.append(time.perf_counter() - began_s)
            peak = peak_bytes()
    except tf.errors.OutOfRangeError as error:
        if len(times_s) <= _UNTIMED:
            raise GraphError(
                f"To time a step takes more than {_UNTIMED} batches, and the data ended after {len(times_s)}. "
                "Take more data, or leave --compute out."
            ) from error
        peak = peak_bytes()
    except tf.errors.OpError as error:
        raise GraphError(f"Step {len(times_s)} of one process alone fails: {error.message}") from error
    medians = (statistics.median(times[_UNTIMED:]) for times in (times_s, cpu_times_s))
    return Computed(*medians, max(0, peak - held) if tells else None)


def _check_fits(inputs: Inputs, held: int) -> None:
    """Refuses variables that do not fit; the largest is counted twice, as an initial value is made, then assigned."""
    largest = max((variable_bytes([node]) for node in inputs.graph_def.node), default=0)
    free = free_bytes()
    if held + largest > free:
        raise GraphError(
            f"To time a step one process must hold all variables with their slots, {bytes_text(held)}, and the largest "
            f"twice while it is made, {bytes_text(held + largest)}; {bytes_text(free)} are free. Leave --compute out, "
            "or measure in a job: parallax run --measure FILE."
        )
