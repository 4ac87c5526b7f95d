"""ResNet-50 (He et al. 2016) and Inception-v3 (Szegedy et al. 2016), for 1000 classes."""

from __future__ import annotations

from collections.abc import Sequence

from ops.twin.networks import LayerOf, Network, Weights

CLASSES = 1000


def resnet50() -> Network:
    """Returns ResNet-50 for images of 224 x 224; a group's first convolution halves the image, as in the paper."""
    layers = [_convolution("first", 7, 7, 3, 64, 112, has_scale=True)]
    channels, size = 64, 56
    for group, (inner, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        size = size if group == 0 else size // 2
        for block in range(blocks):
            name = f"group{group}_block{block}"
            shapes = [("in", 1, channels, inner), ("middle", 3, inner, inner), ("out", 1, inner, 4 * inner)]
            if block == 0:
                shapes.append(("beside", 1, channels, 4 * inner))
            layers += [_convolution(f"{name}_{at}", k, k, a, b, size, has_scale=True) for at, k, a, b in shapes]
            channels = 4 * inner
    return Network("images", 1, "momentum", (*layers, _classes(channels)))


def inception_v3() -> Network:
    """Returns Inception-v3 for images of 299 x 299, without the auxiliary classifier; norms have offsets, no scales."""
    layers = _convolutions(
        "stem", 3, (3, 3, 32, 149), (3, 3, 32, 147), (3, 3, 64, 147), (1, 1, 80, 73), (3, 3, 192, 71)
    )
    channels = 192
    for block, pooled in enumerate((32, 64, 64)):
        name = f"mixed5_{block}"
        layers += _convolutions(f"{name}_a", channels, (1, 1, 64, 35))
        layers += _convolutions(f"{name}_b", channels, (1, 1, 48, 35), (5, 5, 64, 35))
        layers += _convolutions(f"{name}_c", channels, (1, 1, 64, 35), (3, 3, 96, 35), (3, 3, 96, 35))
        layers += _convolutions(f"{name}_d", channels, (1, 1, pooled, 35))
        channels = 64 + 64 + 96 + pooled
    layers += _convolutions("mixed6_a", channels, (3, 3, 384, 17))
    layers += _convolutions("mixed6_b", channels, (1, 1, 64, 35), (3, 3, 96, 35), (3, 3, 96, 17))
    channels += 384 + 96
    for block, k in enumerate((128, 160, 160, 192)):
        name = f"mixed6_{block}"
        layers += _convolutions(f"{name}_a", channels, (1, 1, 192, 17))
        layers += _convolutions(f"{name}_b", channels, (1, 1, k, 17), (1, 7, k, 17), (7, 1, 192, 17))
        path = ((1, 1, k, 17), (7, 1, k, 17), (1, 7, k, 17), (7, 1, k, 17), (1, 7, 192, 17))
        layers += _convolutions(f"{name}_c", channels, *path)
        layers += _convolutions(f"{name}_d", channels, (1, 1, 192, 17))
    layers += _convolutions("mixed7_a", channels, (1, 1, 192, 17), (3, 3, 320, 8))
    layers += _convolutions("mixed7_b", channels, (1, 1, 192, 17), (1, 7, 192, 17), (7, 1, 192, 17), (3, 3, 192, 8))
    channels += 320 + 192
    for block in range(2):
        name = f"mixed7_{block}"
        layers += _convolutions(f"{name}_a", channels, (1, 1, 320, 8))
        layers += _convolutions(f"{name}_b", channels, (1, 1, 384, 8))
        layers += _convolutions(f"{name}_b_wide", 384, (1, 3, 384, 8))
        layers += _convolutions(f"{name}_b_high", 384, (3, 1, 384, 8))
        layers += _convolutions(f"{name}_c", channels, (1, 1, 448, 8), (3, 3, 384, 8))
        layers += _convolutions(f"{name}_c_wide", 384, (1, 3, 384, 8))
        layers += _convolutions(f"{name}_c_high", 384, (3, 1, 384, 8))
        layers += _convolutions(f"{name}_d", channels, (1, 1, 192, 8))
        channels = 320 + 2 * 384 + 2 * 384 + 192
    return Network("images", 1, "momentum", (*layers, _classes(channels)))


def _convolutions(name: str, channels: int, *each: Sequence[int]) -> list[LayerOf]:
    """Returns convolutions in sequence, each of (height, width, outputs, size of the output image)."""
    layers = []
    for n, (height, width, outputs, size) in enumerate(each):
        layers.append(_convolution(f"{name}{n}", height, width, channels, outputs, size, has_scale=False))
        channels = outputs
    return layers


def _convolution(
    name: str, height: int, width: int, inputs: int, outputs: int, size: int, *, has_scale: bool
) -> LayerOf:
    """Returns a convolution with its batch norm, which outputs images of size x size."""
    filters = Weights(f"{name}_filters", (height, width, inputs, outputs))
    norm = [Weights(f"{name}_offset", (outputs,))]
    if has_scale:
        norm.append(Weights(f"{name}_scale", (outputs,)))
    return LayerOf(name, size * size * filters.elements, (filters, *norm))


def _classes(channels: int) -> LayerOf:
    weights = Weights("classes_weights", (channels, CLASSES))
    return LayerOf("classes", weights.elements, (weights, Weights("classes_bias", (CLASSES,))))
