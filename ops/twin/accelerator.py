"""Layers on an accelerator that is not there: they take its time, forward and backward, and none of the cores'.

Tensors are on the accelerator (a layer's input from the layer before, and its output) or come from the host and go back
there (variables, rows of tables, their gradients, the loss). A layer is launched when all its inputs are there, and
does not wait for the layer before: the accelerator runs its layers one after the other, in the order of the launches.
What goes to the host is there when the layer is over.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from ops.twin.library import twin_ops

Compute = Callable[..., Any]
"""From a layer's inputs, as tensors, to its output."""


class Values(enum.Enum):
    """What the layers of a graph give, and what they take.

    Attributes:
        ZEROS: zeros of the right shapes, at the accelerator's pace.
        REAL: what is computed, at the accelerator's pace as long as the cores, which compute it, are not slower.
        CORES: what is computed, at the cores' pace. No accelerator.
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
    """A layer's output, in the default graph, with gradients.

    Args:
        values: what the output and the gradients shall be.
        compute: makes the output, one tensor, from `inputs` and then `from_host`. With ZEROS its shape alone is taken.
        inputs: tensors on the accelerator.
        from_host: tensors that come from the host, and whose gradients go there.
        forward_s: seconds of the accelerator, not less than 0.
        backward_s: the same, for the gradients of all inputs.
        to_host: the output is for the host, as a loss is.

    Raises:
        ValueError: a shape is not known before the graph runs.
    """
    import tensorflow as tf

    taken = [*inputs, *from_host]
    if values is Values.CORES:
        return compute(*taken)
    unknown = [one for one in taken if not one.shape.is_fully_defined()]
    if unknown:
        raise ValueError(f"A layer's shapes must be known, and {unknown[0].name} is {unknown[0].shape}.")
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
    """When the layer is over, and its outputs, of types and shapes as `like`."""
    until, outputs = twin_ops().twin_launch(
        inputs=list(inputs),
        output_types=[one.dtype for one in like],
        output_shapes=[one.shape for one in like],
        seconds=seconds,
        passes=passes,
    )
    return until, list(outputs)


def _wait(until: Any, value: Any) -> Any:
    """A tensor, or None, when a layer is over."""
    if value is None:
        return None
    types, shapes = [value.dtype], [value.shape]
    return twin_ops().twin_wait(until, [value], output_types=types, output_shapes=shapes, passes=True)[0]


def _wait_for_zeros(until: Any, like: Any) -> Any:
    """Zeros of a tensor's shape when a layer is over; None for what has no gradient."""
    if not like.dtype.is_floating:
        return None
    types, shapes = [like.dtype], [like.shape]
    return twin_ops().twin_wait(until, [], output_types=types, output_shapes=shapes, passes=False)[0]


def _output_of(compute: Compute, taken: Sequence[Any]) -> Any:
    """What `compute` would give, in a graph that is thrown away."""
    import tensorflow as tf

    with tf.Graph().as_default():
        return compute(*(tf.compat.v1.placeholder(one.dtype, one.shape) for one in taken))
