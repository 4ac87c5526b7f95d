"""Losses with an entry for each example: what autodiff takes of them is the gradient of their sum, which is made plain.

TensorFlow differentiates a tensor as the sum of its elements, weighted by `output_gradients` where these are given.
While a step is traced, a loss of open length that variables are trained by becomes that sum, a number, which the
analysis knows to be a sum over the global batch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import tensorflow as tf
from tensorflow.python.eager import backprop
from tensorflow.python.ops import gradients_util

from parallax.graph.batches import mark_vector_loss
from parallax.types import Argument, Nest, Tensor


@contextmanager
def losses_summed() -> Iterator[None]:
    """Within it, a vector that is differentiated by variables is added up first, by tapes and by `tf.gradients`."""
    of_tape, of_graph = backprop.GradientTape.gradient, gradients_util._GradientsHelper
    calls: list[str] = []
    backprop.GradientTape.gradient = _summing(of_tape, "target", "sources", "output_gradients", calls)
    gradients_util._GradientsHelper = _summing(of_graph, "ys", "xs", "grad_ys", calls)
    try:
        yield
    finally:
        backprop.GradientTape.gradient, gradients_util._GradientsHelper = of_tape, of_graph


def _summing(function: Callable[..., Nest], of: str, by: str, weights: str, calls: list[str]) -> Callable[..., Nest]:
    """Wraps a function that differentiates its argument `of` by its argument `by`.

    Args:
        function: a method of a tape, or a function.
        of: name of the argument that is differentiated.
        by: name of the argument with what it is differentiated by.
        weights: name of the argument with what the elements of `of` are weighted by.
        calls: the calls that are going on; TensorFlow makes those within others, of bodies of loops.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Argument, **kwargs: Argument) -> Nest:
        arguments = signature.bind(*args, **kwargs).arguments
        if not calls and any(_is_variable(one) for one in tf.nest.flatten(arguments[by])):
            _sum_losses(arguments, of, weights)
        calls.append(of)
        try:
            return function(**arguments)
        finally:
            calls.pop()

    return wrapped


def _sum_losses(arguments: dict[str, Argument], of: str, weights: str) -> None:
    """Puts sums in the place of the vectors that are differentiated, and takes their weights out."""
    tape = arguments.get("self")
    if tape is not None and tape._tape is None:  # it has been used, of which TensorFlow tells
        return
    losses, given = tf.nest.flatten(arguments[of]), arguments.get(weights)
    by_element = [None] * len(losses) if given is None else tf.nest.flatten(given)
    with nullcontext() if tape is None else tape._ensure_recording():
        pairs = [_summed(*pair) for pair in zip(losses, by_element, strict=True)]
    arguments[of] = tf.nest.pack_sequence_as(arguments[of], [loss for loss, _ in pairs])
    left = [weight for _, weight in pairs]
    arguments[weights] = None if all(one is None for one in left) else tf.nest.pack_sequence_as(arguments[of], left)


def _summed(loss: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The sum of a loss's elements, times their weights; as given where its length is known."""
    if not isinstance(loss, tf.Tensor) or loss.shape.is_fully_defined():
        return loss, weight
    if weight is not None:
        loss = loss * tf.stop_gradient(tf.cast(weight, loss.dtype))
    total = tf.reduce_sum(loss, name="summed_loss")
    mark_vector_loss(total)
    return total, None


def _is_variable(source: object) -> bool:
    """Whether something is a variable, or the handle of one."""
    return hasattr(source, "handle") or getattr(source, "dtype", None) == tf.resource
