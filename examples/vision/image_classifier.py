"""Image classifiers: ResNet-50, Inception-v3, a ResNet of 1,001 layers and a small one, written for one device.

They are the networks of "Deep Residual Learning for Image Recognition" (He et al. 2016), "Identity Mappings in Deep
Residual Networks" (He et al. 2016) and "Rethinking the Inception Architecture for Computer Vision" (Szegedy et al.
2016), trained as in "Accurate, Large Minibatch SGD" (Goyal et al. 2017). All variables are dense: every gradient is
all-reduced, and no servers are started.

    parallax run --workers 2 examples/vision/image_classifier.py
    python examples/vision/image_classifier.py --workers 2

With no path the small ResNet learns the 1,797 handwritten digits that come with scikit-learn, in a minute or so on two
cores. Real data are TFRecord files of JPEG images, `image/encoded`, and their classes from 1 on, `image/class/label`,
as ImageNet is usually kept; each worker reads its share of the files:

    python examples/vision/image_classifier.py -r cluster.yaml --model resnet50 --steps 75000 \
        --data 'imagenet/train-*-of-01024' --heldout 'imagenet/validation-*-of-00128'

That is the published training, 90 epochs, on 48 workers: 48 x 32 images a step. Files whose names end with `.bin` are
of CIFAR-10's binary layout: a byte for the class, then 32 x 32 pixels of red, green and blue. The ResNet of 1,001
layers is for those, in one piece or cut into stages:

    python examples/vision/image_classifier.py --model resnet1001 --data 'cifar-10-batches-bin/data_batch_*.bin' \
        --heldout cifar-10-batches-bin/test_batch.bin --classes 10
    parallax plan --workers 4 --stages 4 examples/vision/image_classifier.py --model resnet1001 --synthetic

To measure throughput, or to see the plan, no data are needed:

    python examples/vision/image_classifier.py -r cluster.yaml --model inception3 --synthetic --steps 100
    parallax plan -r cluster.yaml examples/vision/image_classifier.py --model resnet50 --synthetic

What N workers mean for batch norm (--norm batch): each normalizes by the mean and variance of its own images, as
published, so a step depends on how many images a worker has, and N workers are not one process with N times the
images. The moving averages, which evaluation takes, are those of all workers: in each step they go towards the mean
of the workers' statistics, and are equal everywhere. In the plan they are all-reduced like weights. With group norm
(--norm group; Wu and He 2018) no image depends on others, and N workers give what the one process gives.
`Config(layouts=False)` chooses a worker's own statistics; without it, those of the global batch are exact, and cost two
small all-reduces a normalization and direction.

The learning rate is proportional to the images of a step, all workers together; --learning-rate is that of 256.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tqdm import tqdm

import parallax

BASE_BATCH = 256  # images of the step that --learning-rate is for
DROPS = (30 / 90, 60 / 90, 80 / 90)  # after these parts of the steps the rate is a tenth of what it was
MOMENTUM, MOVING_MOMENTUM = 0.9, 0.9  # of the optimizer, and of batch norm's moving averages
EPSILON = 1e-5  # added to a variance
GROUP = 8  # channels that group norm takes together
CIFAR_SIZE, CIFAR_PADDING = 32, 4  # pixels each way; those around an image of which a part is cut
CIFAR_RECORD = 1 + 3 * CIFAR_SIZE**2  # bytes of an image and its class
COLOUR_MEAN, COLOUR_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, from 0 to 1
PADDING = -1  # the label of what fills a held-out batch up


def parse_flags(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-r", "--resource", metavar="FILE", help="the machines; without it, this one")
    add("--workers", type=int, help="workers on this machine, when there is no resource file")
    add("--model", choices=NETWORKS, default="resnet8")
    add("--data", metavar="PATTERN", help="TFRecord files, or .bin files of CIFAR-10's layout, to train on")
    add("--heldout", metavar="PATTERN", help="such files to evaluate on")
    add("--synthetic", action="store_true", help="train on one batch of noise, over and over")
    add("--classes", type=int, help="default: 1000, of the digits 10")
    add("--image-size", type=int, help="pixels each way; default: as published, of the digits 8")
    add("--norm", choices=("batch", "group"), help="default: batch, but group for resnet8")
    add("--batch", type=int, default=32, help="images per worker")
    add("--steps", type=int, default=600)
    add("--learning-rate", type=float, help=f"for {BASE_BATCH} images a step; default: 0.1, but 0.8 for resnet8")
    add("--warmup", type=int, help="steps in which the learning rate rises to its value; default: an 18th of all")
    add("--weight-decay", type=float, default=1e-4, help="of the weights, not of what normalization learns")
    add("--seed", type=int, default=1)
    flags = parser.parse_args(argv)
    network, on_digits = NETWORKS[flags.model], not (flags.data or flags.synthetic)
    if flags.data and flags.synthetic:
        parser.error("--data and --synthetic exclude each other")
    if flags.heldout and not flags.data:
        parser.error("--heldout belongs to --data PATTERN, which is missing")
    if on_digits and (flags.model, flags.classes, flags.image_size) != ("resnet8", None, None):
        parser.error("the digits are for --model resnet8 as it is; for other images give --data or --synthetic")
    defaults = {
        "classes": 10 if on_digits else 1000,
        "image_size": 8 if on_digits else network.image_size,
        "norm": network.norm,
        "learning_rate": network.learning_rate,
        "warmup": flags.steps // 18,  # published: 5 of 90 epochs
    }
    vars(flags).update({name: value for name, value in defaults.items() if getattr(flags, name) is None})
    if any(is_cifar(pattern) for pattern in (flags.data, flags.heldout) if pattern) and flags.image_size != CIFAR_SIZE:
        parser.error(f"--image-size must be {CIFAR_SIZE} for .bin files of CIFAR-10's layout; got {flags.image_size}")
    if min(flags.batch, flags.steps, flags.classes) < 1:
        parser.error("--batch, --steps and --classes must be 1 or more")
    if flags.image_size < network.least_size:
        parser.error(f"--image-size must be {network.least_size} or more for {flags.model}; got {flags.image_size}")
    return flags


def main() -> None:
    flags = parse_flags()
    sys.stdout.reconfigure(line_buffering=True)  # so that a log can be followed
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(flags.seed)
        model = build_graph(flags, open_images(flags))

    # In the first process this plans, starts the workers and never returns. In a worker it returns the session.
    layouts = None if flags.norm == "group" else False  # batch norm takes each worker's own statistics, as published
    config = parallax.Config(workers=flags.workers, layouts=layouts)
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, flags.resource, sync=True, parallax_config=config)
    with sess:
        train(sess, model, flags, worker_id, num_workers)
        accuracy = evaluate(sess, model) if model.heldout is not None else "no held-out images, no accuracy"
        if worker_id == 0:
            print(accuracy)


class Images(NamedTuple):
    """Batches of images [batch, size, size, colours], about 0, and labels [batch]: this worker's share."""

    train: tf.data.Dataset  # without end
    heldout: tf.data.Dataset | None  # each image once, then without end images of the label PADDING


class Model(NamedTuple):
    """What a step feeds and fetches."""

    learning_rate: tf.Tensor  # a number, fed
    loss: tf.Tensor  # nats per image of this worker's batch, without weight decay
    grad_norm: tf.Tensor  # that of the global batch, so the same on all workers
    train_op: tf.Operation
    heldout: tf.Tensor | None  # [3] of the next held-out batch: images, those classified rightly, sum of their nats


def build_graph(flags: argparse.Namespace, images: Images) -> Model:
    """The training step and the evaluation, for one device."""
    learning_rate = tf.placeholder(tf.float32, [], name="learning_rate")
    batch, labels = tf.data.make_one_shot_iterator(images.train).get_next()
    norm = Norm(flags.norm, training=True)
    nats = classification_nats(flags, norm, batch, labels)[1]
    loss = tf.reduce_mean(nats)

    decayed = [v for v in tf.trainable_variables() if v.op.name.endswith("weights")]
    decay = flags.weight_decay * tf.add_n([tf.nn.l2_loss(v) for v in decayed])
    optimizer = tf.train.MomentumOptimizer(learning_rate, MOMENTUM)
    pairs = optimizer.compute_gradients(loss + decay)
    grad_norm = tf.global_norm([gradient for gradient, _ in pairs])
    train_op = tf.group(optimizer.apply_gradients(pairs), update_averages(norm))

    heldout = None
    if images.heldout is not None:
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            heldout = count_right(flags, *tf.data.make_one_shot_iterator(images.heldout).get_next())
    return Model(learning_rate, loss, grad_norm, train_op, heldout)


def classification_nats(
    flags: argparse.Namespace, norm: "Norm", images: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Scores of the classes, [batch, classes], and minus the log probability of each label, [batch]."""
    features = NETWORKS[flags.model].build(norm, images)
    width = int(features.shape[1])
    weights = tf.get_variable("weights", [width, flags.classes], initializer=tf.random_normal_initializer(stddev=0.01))
    bias = tf.get_variable("bias", [flags.classes], initializer=tf.zeros_initializer())
    scores = tf.matmul(features, weights) + bias
    return scores, tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)


def count_right(flags: argparse.Namespace, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """[3] numbers of a held-out batch: images, those classified rightly, sum of their nats."""
    scores, nats = classification_nats(flags, Norm(flags.norm, training=False), images, tf.maximum(labels, 0))
    weights = tf.cast(tf.not_equal(labels, PADDING), tf.float32)
    right = tf.cast(tf.equal(tf.argmax(scores, axis=1, output_type=tf.int32), labels), tf.float32)
    return tf.stack([tf.reduce_sum(weights), tf.reduce_sum(right), tf.reduce_sum(nats * weights)])


class Norm:
    """How a tower normalizes, and what its batch had where normalization keeps moving averages."""

    def __init__(self, kind: str, training: bool) -> None:
        self.kind, self.training = kind, training
        self.averages: list[tuple[tf.Variable, tf.Tensor]] = []  # a moving average, and what it is of


def normalize(norm: Norm, x: tf.Tensor, scale: float) -> tf.Tensor:
    """Batch or group norm of [batch, height, width, channels], then a learned scale and offset of each channel."""
    channels, zeros, ones = [int(x.shape[3])], tf.zeros_initializer(), tf.ones_initializer()
    scales = tf.get_variable("scale", channels, initializer=tf.constant_initializer(scale))
    offsets = tf.get_variable("offset", channels, initializer=zeros)
    if norm.kind == "group":
        return group_norm(x) * scales + offsets
    mean = tf.get_variable("moving_mean", channels, initializer=zeros, trainable=False)
    variance = tf.get_variable("moving_variance", channels, initializer=ones, trainable=False)
    if not norm.training:
        return tf.nn.batch_normalization(x, mean, variance, offsets, scales, EPSILON)
    x, batch_mean, batch_variance = tf.nn.fused_batch_norm(x, scales, offsets, epsilon=EPSILON)
    norm.averages += [(mean, batch_mean), (variance, batch_variance)]
    return x


def group_norm(x: tf.Tensor) -> tf.Tensor:
    """Mean 0 and variance 1 of every GROUP channels of each image."""
    _, height, width, channels = x.shape
    groups = tf.reshape(x, [-1, height, width, channels // GROUP, GROUP])
    mean, variance = tf.nn.moments(groups, [1, 2, 4], keepdims=True)
    return tf.reshape((groups - mean) * tf.rsqrt(variance + EPSILON), [-1, height, width, channels])


def update_averages(norm: Norm) -> tf.Operation:
    """One step of all moving averages, by gradient descent on half the squared distance from what they are of.

    The gradient is average - value, so a step of 1 - m gives m * average + (1 - m) * value, as an assignment would. But
    as a gradient it becomes that of the global batch: the workers' values are averaged, and all have the same result.
    """
    if not norm.averages:
        return tf.no_op()
    distance = tf.add_n([tf.nn.l2_loss(average - tf.stop_gradient(value)) for average, value in norm.averages])
    descent = tf.train.GradientDescentOptimizer(1.0 - MOVING_MOMENTUM)
    return descent.minimize(distance, var_list=[average for average, _ in norm.averages])


def conv(
    norm: Norm,
    name: str,
    x: tf.Tensor,
    channels: int,
    size: int | tuple[int, int],
    stride: int = 1,
    padding: str = "SAME",
    relu: bool = True,
    scale: float = 1.0,
) -> tf.Tensor:
    """A convolution without bias, normalized; `scale` is the first value of the learned one."""
    height, width = size if isinstance(size, tuple) else (size, size)
    with tf.variable_scope(name):
        shape = [height, width, int(x.shape[3]), channels]
        weights = tf.get_variable("weights", shape, initializer=tf.variance_scaling_initializer(2.0, "fan_out"))
        x = normalize(norm, tf.nn.conv2d(x, weights, stride, padding), scale)
    return tf.nn.relu(x) if relu else x


def residual(norm: Norm, name: str, x: tf.Tensor, layers: list[tuple[int, int]], stride: int) -> tf.Tensor:
    """Convolutions (channels, size), the first 3 x 3 with the stride; beside them x, brought to the same shape.

    The last scale begins with 0, so that the block begins as the identity (Goyal et al. 2017, 5.1).
    """
    inner, last, strided = x, len(layers) - 1, [size for _, size in layers].index(3)
    with tf.variable_scope(name):
        for i, (channels, size) in enumerate(layers):
            by = stride if i == strided else 1
            inner = conv(norm, f"conv{i}", inner, channels, size, by, relu=i != last, scale=float(i != last))
        if inner.shape[1:] != x.shape[1:]:
            x = conv(norm, "beside", x, layers[-1][0], 1, stride, relu=False)
    return tf.nn.relu(inner + x)


def resnet50(norm: Norm, x: tf.Tensor) -> tf.Tensor:
    """Images to features [batch, 2048]."""
    x = conv(norm, "stem", x, 64, 7, stride=2)
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = residual(norm, f"stage{stage}_block{block}", x, [(width, 1), (width, 3), (4 * width, 1)], stride)
    return tf.reduce_mean(x, axis=[1, 2])


def resnet1001(norm: Norm, x: tf.Tensor) -> tf.Tensor:
    """Images to features [batch, 256]: 3 x 111 blocks of 3 convolutions (He et al. 2016, "Identity Mappings")."""
    with tf.variable_scope("stem"):
        x = plain_conv(x, 16, 3)
    for stage, width in enumerate([16, 32, 64]):
        for block in range(111):
            stride = 2 if stage and not block else 1
            x = preactivated(norm, f"stage{stage}_block{block}", x, [(width, 1), (width, 3), (4 * width, 1)], stride)
    with tf.variable_scope("last"):
        return tf.reduce_mean(tf.nn.relu(normalize(norm, x, scale=1.0)), axis=[1, 2])


def preactivated(norm: Norm, name: str, x: tf.Tensor, layers: list[tuple[int, int]], stride: int) -> tf.Tensor:
    """Normalizations, each before its convolution (channels, size); the first of a stage brings x to the same shape."""
    inner = x
    with tf.variable_scope(name):
        for i, (channels, size) in enumerate(layers):
            with tf.variable_scope(f"conv{i}"):
                inner = tf.nn.relu(normalize(norm, inner, scale=1.0))
                if not i and int(x.shape[3]) != layers[-1][0]:
                    with tf.variable_scope("beside"):
                        x = plain_conv(inner, layers[-1][0], 1, stride)
                inner = plain_conv(inner, channels, size, stride if size == 3 else 1)
    return x + inner


def plain_conv(x: tf.Tensor, channels: int, size: int, stride: int = 1) -> tf.Tensor:
    """A convolution without bias or normalization, with weights of the scope's name."""
    shape = [size, size, int(x.shape[3]), channels]
    weights = tf.get_variable("weights", shape, initializer=tf.variance_scaling_initializer(2.0, "fan_out"))
    return tf.nn.conv2d(x, weights, stride, "SAME")


def resnet8(norm: Norm, x: tf.Tensor) -> tf.Tensor:
    """Images to features [batch, 64]: the smallest of the networks for small images (He et al. 2016, 4.2)."""
    x = conv(norm, "stem", x, 16, 3)
    for stage, width in enumerate([16, 32, 64]):
        x = residual(norm, f"stage{stage}_block0", x, [(width, 3), (width, 3)], stride=2 if stage else 1)
    return tf.reduce_mean(x, axis=[1, 2])


def inception3(norm: Norm, x: tf.Tensor) -> tf.Tensor:
    """Images to features [batch, 2048]; without the auxiliary classifier."""
    layer = partial(conv, norm)
    x = layer("stem0", x, 32, 3, stride=2, padding="VALID")
    x = layer("stem1", x, 32, 3, padding="VALID")
    x = layer("stem2", x, 64, 3)
    x = tf.nn.max_pool2d(x, 3, 2, "VALID")
    x = layer("stem3", x, 80, 1)
    x = layer("stem4", x, 192, 3, padding="VALID")
    x = tf.nn.max_pool2d(x, 3, 2, "VALID")
    for i, pooled in enumerate([32, 64, 64]):
        x = branches(norm, f"small{i}", x, [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]], pooled)
    x = halve(norm, "smaller", x, [[(384, 3)], [(64, 1), (96, 3), (96, 3)]])
    for i, width in enumerate([128, 160, 160, 192]):
        once = [(width, 1), (width, (1, 7)), (192, (7, 1))]
        twice = [(width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))]
        x = branches(norm, f"long{i}", x, [[(192, 1)], once, twice], 192)
    x = halve(norm, "smallest", x, [[(192, 1), (320, 3)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)]])
    for i in range(2):
        fork = [(384, (1, 3)), (384, (3, 1))]  # side by side
        x = branches(norm, f"wide{i}", x, [[(320, 1)], [(384, 1), fork], [(448, 1), (384, 3), fork]], 192)
    x = tf.reduce_mean(x, axis=[1, 2])
    return tf.nn.dropout(x, rate=0.2) if norm.training else x


def branches(norm: Norm, name: str, x: tf.Tensor, chains: list[list[Any]], pooled: int) -> tf.Tensor:
    """Chains of convolutions (channels, size) side by side, and one after a mean over 3 x 3."""
    with tf.variable_scope(name):
        found = [chain(norm, f"branch{i}", x, layers) for i, layers in enumerate(chains)]
        return tf.concat([*found, conv(norm, "pooled", tf.nn.avg_pool2d(x, 3, 1, "SAME"), pooled, 1)], axis=3)


def halve(norm: Norm, name: str, x: tf.Tensor, chains: list[list[Any]]) -> tf.Tensor:
    """Chains of convolutions, the last of each with stride 2, and beside them the maximum."""
    with tf.variable_scope(name):
        found = [chain(norm, f"branch{i}", x, layers, stride=2) for i, layers in enumerate(chains)]
        return tf.concat([*found, tf.nn.max_pool2d(x, 3, 2, "VALID")], axis=3)


def chain(norm: Norm, name: str, x: tf.Tensor, layers: list[Any], stride: int = 1) -> tf.Tensor:
    """Convolutions one after the other; where there is a list in place of one, those side by side."""
    with tf.variable_scope(name):
        for i, layer in enumerate(layers):
            by = stride if i == len(layers) - 1 else 1
            padding = "SAME" if by == 1 else "VALID"
            forks = layer if isinstance(layer, list) else [layer]
            found = [conv(norm, f"conv{i}_{j}", x, *fork, by, padding) for j, fork in enumerate(forks)]
            x = tf.concat(found, axis=3) if len(found) > 1 else found[0]
    return x


class Network(NamedTuple):
    """A network, and what it is trained with unless flags say otherwise."""

    build: Callable[[Norm, tf.Tensor], tf.Tensor]
    image_size: int
    least_size: int
    norm: str
    learning_rate: float


NETWORKS = {
    "resnet8": Network(resnet8, 32, 4, "group", 0.8),
    "resnet1001": Network(resnet1001, CIFAR_SIZE, 8, "batch", 0.2),
    "resnet50": Network(resnet50, 224, 32, "batch", 0.1),
    "inception3": Network(inception3, 299, 75, "batch", 0.1),
}


def learning_rate(flags: argparse.Namespace, step: int, num_workers: int) -> float:
    """The rate of a step, from 1 on: linear scaling with gradual warm-up (Goyal et al. 2017, 2.1 and 2.2).

    It begins with the rate of 256 images, unless its own is lower. TensorFlow's momentum has the rate outside of what
    it adds up, so the rate may change without more ado (remark 2 there).
    """
    full = flags.learning_rate * num_workers * flags.batch / BASE_BATCH
    begin = min(flags.learning_rate, full)
    if step <= flags.warmup:
        return begin + (full - begin) * step / flags.warmup
    return full * 0.1 ** sum(step > drop * flags.steps for drop in DROPS)


def train(sess: Any, model: Model, flags: argparse.Namespace, worker_id: int, num_workers: int) -> None:
    """Runs `--steps` steps."""
    images_per_step, mean_loss, line_s = num_workers * flags.batch, None, time.perf_counter()
    steps_per_line = max(1, flags.steps // 10)
    bar = tqdm(total=flags.steps * images_per_step, unit="image", mininterval=1, disable=worker_id != 0)
    for step in range(1, flags.steps + 1):
        feeds = {model.learning_rate: [learning_rate(flags, step, num_workers)]}
        _, [loss], [grad_norm] = sess.run([model.train_op, model.loss, model.grad_norm], feeds)
        # None in a run that makes no update; else the same on all workers: all stop here, and none waits for another.
        if grad_norm is not None and not math.isfinite(grad_norm):
            bar.close()
            problem = f"step {step}: the loss is {loss}, the norm of its gradient {grad_norm}; lower --learning-rate"
            sys.exit(problem if worker_id == 0 else 1)
        mean_loss = loss if mean_loss is None else 0.98 * mean_loss + 0.02 * loss
        bar.set_postfix(loss=f"{mean_loss:.3f}", refresh=False)
        bar.update(images_per_step)
        if worker_id == 0 and step % steps_per_line == 0:
            seconds, line_s = time.perf_counter() - line_s, time.perf_counter()
            images_per_s = steps_per_line * images_per_step / seconds
            tqdm.write(f"step {step} of {flags.steps}: loss {mean_loss:.3f}, {images_per_s:,.1f} images/s")
    bar.close()


def evaluate(sess: Any, model: Model) -> str:
    """Held-out accuracy; each worker classifies its share, and the counts are joined."""
    counts = np.zeros(3)
    while True:
        [found] = sess.run(model.heldout)
        if not found[0]:  # padding alone: this share has ended
            break
        counts += found
    images, right, nats = sess.workers.allreduce(counts)
    return f"held-out accuracy {right / images:.2%}, {nats / images:.7f} nats per image ({images:,.0f} images)"


def open_images(flags: argparse.Namespace) -> Images:
    """The files named, noise, or the digits."""
    if flags.synthetic:
        return Images(noise(flags), None)
    if not flags.data:
        return digits(flags)
    heldout = padded(flags, read_files(flags, flags.heldout, training=False), colours=3) if flags.heldout else None
    train_images = read_files(flags, flags.data, training=True).batch(flags.batch, drop_remainder=True)
    return Images(parallax.shard.shard(train_images).prefetch(tf.data.AUTOTUNE), heldout)


def padded(flags: argparse.Namespace, images: tf.data.Dataset, colours: int) -> tf.data.Dataset:
    """Batches of this worker's share of the images, which are followed by padding without end."""
    nothing = tf.zeros([flags.image_size, flags.image_size, colours]), tf.constant(PADDING)
    padding = tf.data.Dataset.from_tensors(nothing).repeat()
    shared = parallax.shard.shard(images).concatenate(padding)
    return shared.batch(flags.batch, drop_remainder=True).prefetch(1)


def noise(flags: argparse.Namespace) -> tf.data.Dataset:
    """One batch, drawn once."""
    shape = [flags.batch, flags.image_size, flags.image_size, 3]
    labels = tf.constant(np.arange(flags.batch, dtype=np.int32) % flags.classes)
    return tf.data.Dataset.from_tensors((tf.random.stateless_normal(shape, [flags.seed, 0]), labels)).repeat()


def digits(flags: argparse.Namespace) -> Images:
    """Handwritten digits of 8 x 8 pixels; every fifth is held out.

    The order is the same on all workers, and each takes every W-th image: so the global batch does not depend on W, the
    number of workers.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        sys.exit(
            f"the digits come with scikit-learn, which cannot be imported ({error}): install scikit-learn, name images "
            "with --data, or give --synthetic"
        )
    loaded = load_digits()
    images = np.float32(loaded.images[..., None] / 8.0 - 1.0)  # grey values were 0 to 16
    labels = np.int32(loaded.target)
    is_heldout = np.arange(len(labels)) % 5 == 4
    num_shards, shard_id = parallax.shard.create_num_shards_and_shard_id()
    train_images = tf.data.Dataset.from_tensor_slices((images[~is_heldout], labels[~is_heldout]))
    shuffled = train_images.shuffle(len(labels), seed=flags.seed).repeat().shard(num_shards, shard_id)
    heldout = tf.data.Dataset.from_tensor_slices((images[is_heldout], labels[is_heldout]))
    batches = shuffled.batch(flags.batch, drop_remainder=True).prefetch(1)
    return Images(batches, padded(flags, heldout, colours=1))


def read_files(flags: argparse.Namespace, pattern: str, training: bool) -> tf.data.Dataset:
    """Images and labels of TFRecord files; for training shuffled, cropped at random, and without end."""
    path = Path(pattern).expanduser()
    files = sorted(str(file) for file in Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    if not files:
        sys.exit(f"no files match {pattern}")
    names = tf.data.Dataset.from_tensor_slices(files)
    if training:
        names = names.shuffle(len(files))
    of_cifar = is_cifar(pattern)
    open_file = (
        partial(tf.data.FixedLengthRecordDataset, record_bytes=CIFAR_RECORD) if of_cifar else tf.data.TFRecordDataset
    )
    records = names.interleave(open_file, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)
    if training:
        records = records.shuffle(8192).repeat()
    read = partial(read_cifar if of_cifar else read_record, flags, training)
    return records.map(read, num_parallel_calls=tf.data.AUTOTUNE)


def read_record(flags: argparse.Namespace, training: bool, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The image [size, size, 3] and the label, from 0 on, of one record."""
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = tf.io.parse_single_example(record, features)
    label = tf.cast(found["image/class/label"], tf.int32)
    rule = f"image/class/label must be from 1 to {flags.classes}, the classes"
    checks = [
        tf.debugging.assert_greater_equal(label, 1, message=rule),
        tf.debugging.assert_less_equal(label, flags.classes, message=rule),
    ]
    with tf.control_dependencies(checks):
        label -= 1
    encoded, size = found["image/encoded"], flags.image_size
    image = random_crop(encoded, size, flags.seed) if training else central_crop(encoded, size)
    return (image / 255.0 - COLOUR_MEAN) / COLOUR_DEVIATION, label


def is_cifar(pattern: str) -> bool:
    """Whether files are of CIFAR-10's binary layout."""
    return pattern.endswith(".bin")


def read_cifar(flags: argparse.Namespace, training: bool, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The image [32, 32, 3] and the label of one record; for training a part of the padded image, perhaps mirrored."""
    values = tf.io.decode_raw(record, tf.uint8)
    label = tf.cast(values[0], tf.int32)
    check = tf.debugging.assert_less(label, flags.classes, message=f"a class must be below --classes {flags.classes}")
    with tf.control_dependencies([check]):
        image = tf.transpose(tf.reshape(values[1:], [3, CIFAR_SIZE, CIFAR_SIZE]), [1, 2, 0])
    if training:
        around = [[CIFAR_PADDING, CIFAR_PADDING], [CIFAR_PADDING, CIFAR_PADDING], [0, 0]]
        image = tf.image.random_crop(tf.pad(image, around), [CIFAR_SIZE, CIFAR_SIZE, 3], flags.seed)
        image = tf.image.random_flip_left_right(image, flags.seed)
    return (tf.cast(image, tf.float32) / 255.0 - COLOUR_MEAN) / COLOUR_DEVIATION, label


def random_crop(encoded: tf.Tensor, size: int, seed: int) -> tf.Tensor:
    """A part of 8 to 100 % of a JPEG image, stretched to [size, size, 3] and perhaps mirrored (Szegedy et al. 2015)."""
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(encoded),
        tf.zeros([1, 0, 4]),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
        seed=seed,
    )
    window = tf.concat([begin[:2], extent[:2]], axis=0)
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
    return tf.image.random_flip_left_right(tf.image.resize(image, [size, size]), seed)


def central_crop(encoded: tf.Tensor, size: int) -> tf.Tensor:
    """The middle of a JPEG image, 7/8 of its shorter side each way, as [size, size, 3]."""
    shape = tf.image.extract_jpeg_shape(encoded)
    side = tf.cast(tf.round(tf.cast(tf.minimum(shape[0], shape[1]), tf.float32) * 7 / 8), tf.int32)
    window = tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
    return tf.image.resize(tf.image.decode_and_crop_jpeg(encoded, window, channels=3), [size, size])


if __name__ == "__main__":
    main()
