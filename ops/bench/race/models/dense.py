"""Residual blocks of convolutions, without tables: all systems exchange the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ops.bench.race.models import Built, Table
from ops.bench.race.models.draws import generator, glorot

LEARNING_RATE, MOMENTUM = 2e-5, 0.9
"""Low enough to keep rounding from growing: a change of initial values by 1e-7 changes the loss by 2e-4 after 120
steps; at a rate of 0.005, by more than itself. Updates still change the loss by some 2 % per step at first."""
COLOURS = 3


@dataclass(frozen=True, slots=True)
class Dense:
    """A small ResNet in the manner of He et al. 2016 for 32 x 32 images; each group halves the image.

    Batch norm uses the worker's own batch in every system. There are no moving averages, as nothing is evaluated.

    Attributes:
        size: height and width of an image.
        channels: channels of the first group of blocks; each group doubles them.
        groups: number of groups.
        blocks: blocks per group, of two convolutions each.
        classes: number of classes.
        batch_size: images per worker and step.
    """

    size: int = 32
    channels: int = 32
    groups: int = 4
    blocks: int = 1
    classes: int = 10
    batch_size: int = 20

    @property
    def unit(self) -> str:
        """The unit of throughput: images."""
        return "images"

    @property
    def units(self) -> int:
        """Images per worker and step."""
        return self.batch_size

    @property
    def tables(self) -> tuple[Table, ...]:
        """No tables."""
        return ()

    def build(self) -> Built:
        """Builds the mean cross entropy of the classes, minimized by momentum."""
        import tensorflow as tf

        v1 = tf.compat.v1
        images = v1.placeholder(tf.float32, [self.batch_size, self.size, self.size, COLOURS], name="images")
        labels = v1.placeholder(tf.int32, [self.batch_size], name="labels")
        scope = v1.get_variable_scope()
        with v1.variable_scope(scope, custom_getter=glorot(scope), auxiliary_name_scope=False):
            x = tf.nn.relu(_normed("first", images, self.channels, 2))
            for group in range(self.groups):
                for block in range(self.blocks):
                    stride = 2 if group and not block else 1
                    x = _block(f"block_{group}_{block}", x, self.channels * 2**group, stride)
            weights = v1.get_variable("weights", [int(x.shape[3]), self.classes])
            bias = v1.get_variable("bias", [self.classes], initializer=v1.zeros_initializer())
        logits = tf.linalg.matmul(tf.reduce_mean(x, axis=[1, 2]), weights) + bias
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        optimizer = v1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM)
        return Built(tf.reduce_mean(nats), optimizer, {"images": images, "labels": labels})

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Draws images of noise; the class of an image sets its colour."""
        draw = generator(worker, step)
        labels = draw.integers(self.classes, size=self.batch_size, dtype=np.int32)
        images = draw.standard_normal([self.batch_size, self.size, self.size, COLOURS], np.float32)
        colours = generator(self.classes).standard_normal([self.classes, 1, 1, COLOURS], np.float32)
        return {"images": images + colours[labels], "labels": labels}


def _block(name: str, x: Any, channels: int, stride: int) -> Any:
    """Two convolutions and a shortcut, with a third convolution where shapes differ."""
    import tensorflow as tf

    inner = tf.nn.relu(_normed(f"{name}_in", x, channels, stride))
    inner = _normed(f"{name}_out", inner, channels, 1)
    same = stride == 1 and int(x.shape[3]) == channels
    beside = x if same else _normed(f"{name}_beside", x, channels, stride, size=1)
    return tf.nn.relu(inner + beside)


def _normed(name: str, x: Any, channels: int, stride: int, size: int = 3) -> Any:
    """A convolution with batch norm by this batch's mean and variance, [batch, height, width, channels]."""
    import tensorflow as tf

    v1 = tf.compat.v1
    filters = v1.get_variable(f"{name}_filters", [size, size, int(x.shape[3]), channels])
    scale = v1.get_variable(f"{name}_scale", [channels], initializer=v1.ones_initializer())
    offset = v1.get_variable(f"{name}_offset", [channels], initializer=v1.zeros_initializer())
    x = tf.nn.conv2d(x, tf.convert_to_tensor(filters), stride, "SAME")
    return v1.nn.fused_batch_norm(x, tf.convert_to_tensor(scale), tf.convert_to_tensor(offset))[0]
