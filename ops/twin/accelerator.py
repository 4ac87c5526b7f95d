"""Layers on an emulated accelerator: forward and backward passes take its time, and no time of the cores.

Tensors are on the accelerator (a layer's input from the layer before, and its output) or come from the host and return
there (variables, rows of tables, their gradients, the loss). A layer is launched when all its inputs are available,
without waiting for the layer before to finish: the accelerator runs layers one at a time, in launch order. Outputs to
the host are available when the layer has finished.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from ops.twin.library import twin_ops

Compute = Callable[..., Any]
"""Computes a layer's output from its input tensors."""


class Values(enum.Enum):
    """How the layers of a graph compute values, and at what pace.

    Attributes:
        ZEROS: zeros of the right shapes, at the accelerator's pace.
        REAL: computed values, at the accelerator's pace unless the cores, which compute them, are slower.
        CORES: computed values, at the cores' pace, without an accelerator.
    """

    ZEROS = "zeros"
    REAL = "real"
    CORES = "cores"


def layer(
    values: Values,
    compute: Compute,
    inputs: Sequence[Any],
    from_host: Sequence[Any],
    forward_s: float,
    backward_s: float,
    *,
    to_host: bool = False,
) -> Any:
    """Adds a layer to the default graph, and returns its output, which has gradients.

    Args:
        values: how the output and the gradients are computed.
        compute: makes the output, one tensor, of `inputs` followed by `from_host`. With ZEROS only its shape is used.
        inputs: tensors on the accelerator.
        from_host: tensors that come from the host, to which their gradients go.
        forward_s: seconds on the accelerator, at least 0.
        backward_s: the same, for the gradients of all inputs.
        to_host: whether the output goes to the host, as a loss does.

    Raises:
        ValueError: a shape is not known before the graph runs.
    """
    import tensorflow as tf

    taken = [*inputs, *from_host]
    if values is Values.CORES:
        return compute(*taken)
    unknown = [one for one in taken if not one.shape.is_fully_defined()]
    if unknown:
        raise ValueError(f"A layer's shapes must be known, but {unknown[0].name} is {unknown[0].shape}.")
    zeros = values is Values.ZEROS

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*taken: Any) -> Any:
        output = None if zeros else compute(*taken)
        like = _output_of(compute, taken) if zeros else output
        until, [launched] = _launch(taken if zeros else [output], [like], forward_s, passes=not zeros)

        def gradients(gradient: Any) -> list[Any]:
            after = [gradient, launched]  # the forward pass's output, so that the backward pass comes after it
            if not zeros:
                until, [gradient] = _launch(after, [gradient], backward_s, passes=True)
                found = tf.gradients(output, taken, gradient, stop_gradients=taken)
                return [*found[: len(inputs)], *(_wait(until, one) for one in found[len(inputs) :])]
            floats = [one for one in taken[: len(inputs)] if one.dtype.is_floating]
            until, on_accelerator = _launch(after, floats, backward_s, passes=False)
            back = iter(on_accelerator)
            found = [next(back) if one.dtype.is_floating else None for one in taken[: len(inputs)]]
            return [*found, *(_wait_for_zeros(until, one) for one in taken[len(inputs) :])]

        if to_host:
            return (_wait_for_zeros(until, like) if zeros else _wait(until, launched)), gradients
        return launched, gradients

    return run(*taken)


def _launch(inputs: Sequence[Any], like: Sequence[Any], seconds: float, *, passes: bool) -> tuple[Any, list[Any]]:
    """Launches a layer; returns the time when it finishes, and its outputs, with the types and shapes of `like`."""
    until, outputs = twin_ops().twin_launch(
        inputs=list(inputs),
        output_types=[one.dtype for one in like],
        output_shapes=[one.shape for one in like],
        seconds=seconds,
        passes=passes,
    )
    return until, list(outputs)


def _wait(until: Any, value: Any) -> Any:
    """Returns a tensor, or None, once a layer has finished."""
    if value is None:
        return None
    types, shapes = [value.dtype], [value.shape]
    return twin_ops().twin_wait(until, [value], output_types=types, output_shapes=shapes, passes=True)[0]


def _wait_for_zeros(until: Any, like: Any) -> Any:
    """Returns zeros of a tensor's shape once a layer has finished; None for a tensor without a gradient."""
    if not like.dtype.is_floating:
        return None
    types, shapes = [like.dtype], [like.shape]
    return twin_ops().twin_wait(until, [], output_types=types, output_shapes=shapes, passes=False)[0]


def _output_of(compute: Compute, taken: Sequence[Any]) -> Any:
    """Returns the output of `compute` in a temporary graph, for its type and shape."""
    import tensorflow as tf

    with tf.Graph().as_default():
        return compute(*(tf.compat.v1.placeholder(one.dtype, one.shape) for one in taken))
