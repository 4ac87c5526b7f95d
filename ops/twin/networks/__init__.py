"""Networks as an accelerator and a cluster see them: layers with their work, variables and rows.

Nothing here loads TensorFlow. Branches of a network follow each other, as an accelerator runs them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """A variable that a layer reads whole.

    Attributes:
        name: unique in the network.
        shape: its published shape.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of the rows that a step looks up.

    Attributes:
        feed: name under which they are fed.
        of_example: ids per example; 0 if the step draws them.
        drawn: distinct ids that a step draws as negatives; 0 if the examples have them.
    """

    feed: str
    of_example: int = 0
    drawn: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """A table whose rows a layer looks up.

    Attributes:
        name: name of the table, unique in the network.
        rows: rows of the table.
        width: elements of a row; 1 for a variable of one axis.
        ids: ids that are looked up, one after the other.
    """

    name: str
    rows: int
    width: int
    ids: tuple[Ids, ...]


@dataclass(frozen=True, slots=True)
class LayerOf:
    """A layer of a network.

    Attributes:
        name: unique in the network.
        multiply_adds: multiply-adds of the forward pass per example.
        weights: variables that it reads whole.
        tables: tables whose rows it looks up.
        activations: elements of its output per example; 0 if a model in stages cannot be cut after it.
    """

    name: str
    multiply_adds: float
    weights: tuple[Weights, ...] = ()
    tables: tuple[Rows, ...] = ()
    activations: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """A network.

    Attributes:
        unit: unit of its throughput.
        units_of_example: units per example.
        optimizer: `adagrad` or `momentum`.
        layers: in the order of the forward pass.
        is_computed: whether cores can compute it: each layer multiplies the output of the one before by its weights.
    """

    unit: str
    units_of_example: int
    optimizer: str
    layers: tuple[LayerOf, ...]
    is_computed: bool = False

    @property
    def dense_elements(self) -> int:
        """Elements of the variables that layers read whole."""
        return sum(weights.elements for layer in self.layers for weights in layer.weights)

    @property
    def table_elements(self) -> int:
        """Elements of the tables."""
        return sum(table.rows * table.width for layer in self.layers for table in layer.tables)

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of the forward pass per example."""
        return sum(layer.multiply_adds for layer in self.layers)


BACKWARD = 2.0
"""Backward over forward time: a layer's gradients are two products of that size, by its inputs and its weights."""


def layer_seconds(network: Network, step_s: float) -> dict[str, tuple[float, float]]:
    """Returns layer -> (forward, backward) seconds of a step, in proportion to multiply-adds.

    Simplifications: ops without multiply-adds (norms, activations, pooling, the optimizer) count with adjacent layers,
    and the first layer counts as if its inputs had gradients.
    """
    share = step_s / (1 + BACKWARD) / network.multiply_adds
    return {one.name: (share * one.multiply_adds, share * BACKWARD * one.multiply_adds) for one in network.layers}


def stage_ends(network: Network, stages: int) -> tuple[LayerOf, ...]:
    """Returns the layers that end the stages, except the last stage, for about equal multiply-adds per stage.

    Raises:
        ValueError: there are too few layers after which the network can be cut.
    """
    done, sums = 0.0, []
    for one in network.layers:
        done += one.multiply_adds
        sums.append(done)
    able = [number for number, one in enumerate(network.layers[:-1]) if one.activations]
    wanted = [done * stage / stages for stage in range(1, stages)]
    ends = [min((abs(sums[number] - end), number) for number in able)[1] for end in wanted] if able else []
    if len(set(ends)) < stages - 1:
        raise ValueError(f"The network can be cut after {len(able)} layers, not into {stages} stages.")
    return tuple(network.layers[number] for number in ends)


def divided(shape: tuple[int, ...], divisor: int) -> tuple[int, ...]:
    """Returns a shape with 1/divisor of the elements, rounded up: divides the inputs where possible, then the outputs.

    Inputs are the axis before the last, and outputs the last.
    """
    lengths, left = list(shape), divisor
    for axis in (-2, -1)[2 - min(2, len(shape)) :]:
        common = math.gcd(left, lengths[axis])
        lengths[axis] //= common
        left //= common
    lengths[-1] = math.ceil(lengths[-1] / left)
    return tuple(lengths)


def network_of(name: str) -> Network:
    """Returns the network called `name`.

    Raises:
        ValueError: there is no such network.
    """
    from ops.twin.networks.language import language_model, translation
    from ops.twin.networks.stack import stack, wide
    from ops.twin.networks.vision import inception_v3, resnet50

    known = {
        "lm": language_model,
        "nmt": translation,
        "resnet50": resnet50,
        "inception_v3": inception_v3,
        "stack": stack,
        "wide": wide,
    }
    if name not in known:
        raise ValueError(f"A network must be one of {', '.join(known)}, got {name!r}.")
    return known[name]()
