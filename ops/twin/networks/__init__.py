"""Networks as what an accelerator and a cluster see of them: layers, each with its work, its variables and its rows.

Nothing here loads TensorFlow. Branches of a network stand one after the other, as an accelerator runs them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """A variable that a layer takes whole.

    Attributes:
        name: unique in the network.
        shape: in the network as it is published.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Ids:
    """Which rows a step looks up.

    Attributes:
        feed: under which name they are fed.
        of_example: how many an example has; 0 when the step draws them.
        drawn: how many distinct ones a step draws, as negatives; 0 when the examples have them.
    """

    feed: str
    of_example: int = 0
    drawn: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """A table, of which a layer takes the rows that a step looks up.

    Attributes:
        name: of the table; unique in the network.
        rows: of the table.
        width: elements of a row; 1 for a variable of one axis.
        ids: whose rows, one after the other.
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
        multiply_adds: for one example, forward.
        weights: that it takes.
        tables: whose rows it takes.
        activations: elements of its output for one example; 0 where a model in stages cannot be cut after it.
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
        unit: what its throughput is counted in.
        units_of_example: how many of them an example has.
        optimizer: `adagrad` or `momentum`.
        layers: in the order of the forward pass.
        is_computed: cores can compute it: each layer is a product of the one before, of `width`, with its weights.
    """

    unit: str
    units_of_example: int
    optimizer: str
    layers: tuple[LayerOf, ...]
    is_computed: bool = False

    @property
    def dense_elements(self) -> int:
        """Of the variables that layers take whole."""
        return sum(weights.elements for layer in self.layers for weights in layer.weights)

    @property
    def table_elements(self) -> int:
        """Of the tables."""
        return sum(table.rows * table.width for layer in self.layers for table in layer.tables)

    @property
    def multiply_adds(self) -> float:
        """For one example, forward."""
        return sum(layer.multiply_adds for layer in self.layers)


BACKWARD = 2.0
"""Times the forward pass: a layer's gradients are two products, by its inputs and by its weights, of the same size."""


def layer_seconds(network: Network, step_s: float) -> dict[str, tuple[float, float]]:
    """By layer, the forward and the backward share of a step, by multiply-adds.

    Simplified: what has none (norms, activations, pooling, the optimizer) counts with the layers it stands between, and
    the first layer counts as if its inputs had gradients.
    """
    share = step_s / (1 + BACKWARD) / network.multiply_adds
    return {one.name: (share * one.multiply_adds, share * BACKWARD * one.multiply_adds) for one in network.layers}


def stage_ends(network: Network, stages: int) -> tuple[LayerOf, ...]:
    """The layers with which all stages but the last end, for about equal multiply-adds of the stages.

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
    """A shape with 1/divisor of the elements, rounded up: of the inputs as far as these divide, then of the outputs.

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
    """The network called `name`.

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
