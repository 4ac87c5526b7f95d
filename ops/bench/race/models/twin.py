"""A network of the twin: exchanges are real, and layers take an accelerator's time (ops/twin)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ops.bench.race.models import Built, Table
from ops.bench.race.models.draws import Uniform, generator, log_uniform, zipf
from ops.twin.networks import Ids, LayerOf, Network, Rows, divided, layer_seconds, network_of, stage_ends

if TYPE_CHECKING:
    from ops.twin.accelerator import Compute

SKEW = 1.0
"""Exponent of the words' Zipf distribution: Zipf's law."""
INITIAL, SPREAD = 0.1, 0.1
"""The bound of initial values; the standard deviation from 1 of the signals to which variables move."""
LEARNING_RATE = {"adagrad": 0.1, "momentum": 0.01}
MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Twin:
    """A network whose layers take the time that they would take on an accelerator, times the dilation.

    Variables have the published shapes divided by `divisor`: a step has as many gradients, tensors and rows as the
    published network, with 1/divisor of the elements each. Ids, and tables of one column, are not divided.

    If values are computed but the network itself is too large to compute, a layer moves its variables and rows to the
    step's signal, a number that is fed to each worker: its gradients reveal a wrong exchange.

    Attributes:
        network: lm, nmt, resnet50, inception_v3, wide, or stack, which cores can compute.
        step_s: seconds of a step on the accelerator, before dilation.
        batch_size: examples per worker and step.
        dilation: factor by which the accelerator is slowed. Links must be slowed by `dilation` times `divisor`.
        divisor: divisor of the variables' elements.
        values: zeros, real (computed, at the accelerator's pace), or cores (computed, without an accelerator).
        stages: number of stages into which `parallax-stages` cuts the network; a replica has as many workers' examples.
        micro_batches: number of micro-batches into which a replica's examples are cut; each is a run.
        is_cut: whether this is the cut model, of a micro-batch and with activations between stages.
    """

    network: str = "lm"
    step_s: float = 0.1
    batch_size: int = 128
    dilation: float = 64.0
    divisor: int = 16
    values: str = "zeros"
    stages: int = 2
    micro_batches: int = 8
    is_cut: bool = False

    def __post_init__(self) -> None:
        """Rejects invalid sizes."""
        if self.dilation <= 0 or self.step_s < 0 or self.divisor < 1 or self.batch_size < 1:
            raise ValueError(
                "dilation, divisor and batch_size must be above 0, and step_s at least 0, got "
                f"{self.dilation}, {self.divisor}, {self.batch_size} and {self.step_s}."
            )
        if self.values not in ("zeros", "real", "cores"):
            raise ValueError(f"values must be zeros, real or cores, got {self.values!r}.")
        network = network_of(self.network)
        if network.is_computed and self.divisor > 1:
            raise ValueError(f"{self.network} is computed, so its divisor must be 1, got {self.divisor}.")
        for table in _tables(network):
            if table.width > 1 and table.width % self.divisor:
                raise ValueError(f"divisor must divide the {table.width} columns of {table.name}.")

    def cut(self) -> Twin:
        """Returns the model of a micro-batch, whose layers at the ends of stages output their activations.

        Raises:
            ValueError: its layers compute values, or there are too few of them.
        """
        if self.values != "zeros":
            raise ValueError(f"A model in stages outputs zeros, so values must be zeros, got {self.values!r}.")
        stage_ends(network_of(self.network), self.stages)
        return replace(self, is_cut=True)

    @property
    def ends(self) -> tuple[str, ...]:
        """The ops that end its stages; empty if the model is not cut."""
        return tuple(f"{one.name}_output" for one in self._ends())

    def _ends(self) -> tuple[LayerOf, ...]:
        return stage_ends(network_of(self.network), self.stages) if self.is_cut else ()

    @property
    def examples(self) -> int:
        """Examples of a run."""
        return self.batch_size * self.stages // self.micro_batches if self.is_cut else self.batch_size

    @property
    def unit(self) -> str:
        """The network's unit of throughput."""
        return network_of(self.network).unit

    @property
    def units(self) -> int:
        """Units per worker and step."""
        return self.batch_size * network_of(self.network).units_of_example

    @property
    def tables(self) -> tuple[Table, ...]:
        """The network's tables, with divided rows."""
        return tuple(
            Table(table.name, table.rows, self._width(table), tuple(ids.feed for ids in table.ids))
            for table in _tables(network_of(self.network))
        )

    @property
    def device_s(self) -> float:
        """Seconds of a run on the accelerator, dilated; 0 without one."""
        return 0.0 if self.values == "cores" else self.step_s * self.dilation * self.examples / self.batch_size

    def build(self) -> Built:
        """Builds the layers in order; the last output is the loss."""
        import tensorflow as tf

        from ops.twin.accelerator import Values, layer

        v1, network = tf.compat.v1, network_of(self.network)
        signal = v1.placeholder(tf.float32, [], name="signal")
        feeds = {ids.feed: v1.placeholder(tf.int32, [self._count(ids)], name=ids.feed) for ids in _ids(network)}
        seconds = layer_seconds(network, self.device_s)
        x, ends, is_received = None, self._ends(), False
        for one in network.layers:
            is_last, is_end = one is network.layers[-1], one in ends
            before: list[Any] = [] if x is None else [x]
            x = layer(
                Values(self.values),
                self._activations(one) if is_end else _computing(network, x is not None, is_last),
                [] if is_received else before,
                [*(before if is_received else []), signal, *self._rows(one, feeds), *self._weights(one)],
                *seconds[one.name],
                to_host=is_last or is_end,
            )
            is_received = is_end
            x = tf.identity(x, name=f"{one.name}_output") if is_end else x
        return Built(x, _optimizer(network.optimizer), {**feeds, "signal": signal})

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Draws Zipf words, negatives as TensorFlow draws them, and the worker's signal of the step."""
        draw, network = generator(worker, step), network_of(self.network)
        feeds: dict[str, np.ndarray] = {}
        for table in _tables(network):
            for ids in table.ids:
                if ids.feed not in feeds:
                    feeds[ids.feed] = self._drawn(draw, ids, table.rows)
        return {**feeds, "signal": np.float32(1 + SPREAD * draw.standard_normal())}

    def _drawn(self, draw: np.random.Generator, ids: Ids, rows: int) -> np.ndarray:
        if ids.drawn:
            return log_uniform(draw, rows, ids.drawn)[0]
        return zipf(draw, SKEW, rows, [self._count(ids)])

    def _count(self, ids: Ids) -> int:
        """Returns the number of ids of a run."""
        return ids.drawn or self.examples * ids.of_example

    def _activations(self, one: LayerOf) -> Compute:
        """Returns a function for the output of a layer that ends a stage, divided as variables are."""
        import tensorflow as tf

        return lambda *taken: tf.zeros(divided((self.examples, one.activations), self.divisor))

    def _width(self, table: Rows) -> int:
        return table.width if table.width == 1 else table.width // self.divisor

    def _rows(self, one: LayerOf, feeds: dict[str, Any]) -> list[Any]:
        """Looks up the layer's rows: [ids, width] per table, or [ids] for a table of one column."""
        import tensorflow as tf

        rows = []
        for table in one.tables:
            shape = [table.rows] if table.width == 1 else [table.rows, self._width(table)]
            variable = tf.compat.v1.get_variable(table.name, shape, initializer=Uniform(table.name, INITIAL))
            ids = [feeds[ids.feed] for ids in table.ids]
            rows.append(tf.nn.embedding_lookup(variable, ids[0] if len(ids) == 1 else tf.concat(ids, 0)))
        return rows

    def _weights(self, one: LayerOf) -> list[Any]:
        """Returns the layer's variables as tensors."""
        import tensorflow as tf

        variables = []
        for weights in one.weights:
            shape = list(divided(weights.shape, self.divisor))
            initial = Uniform(weights.name, INITIAL)
            variables.append(tf.convert_to_tensor(tf.compat.v1.get_variable(weights.name, shape, initializer=initial)))
        return variables


def _tables(network: Network) -> tuple[Rows, ...]:
    return tuple(table for one in network.layers for table in one.tables)


def _ids(network: Network) -> tuple[Ids, ...]:
    """Returns each feed of ids once, even if several tables use it."""
    return tuple(dict.fromkeys(ids for table in _tables(network) for ids in table.ids))


def _computing(network: Network, has_input: bool, is_last: bool) -> Compute:
    if network.is_computed:
        return partial(_product, has_input, is_last)
    return partial(_attract_to_signal, has_input)


def _product(has_input: bool, is_last: bool, *taken: Any) -> Any:
    """A layer of the stack: [batch, width] by weights [width, width]; the last returns the distance to the signal."""
    import tensorflow as tf

    x, signal, weights = taken if has_input else (taken[1], taken[0], taken[2])
    x = tf.nn.tanh(tf.linalg.matmul(x, weights))
    return tf.reduce_mean(tf.square(x - tf.nn.tanh(signal))) if is_last else x


def _attract_to_signal(has_input: bool, *taken: Any) -> Any:
    """Returns the previous sum plus half the squared distance of each element to the signal."""
    import tensorflow as tf

    before, (signal, *values) = (taken[:1], taken[1:]) if has_input else ((), taken)
    return tf.add_n([*map(tf.reduce_sum, before), *(tf.reduce_sum(tf.square(value - signal)) / 2 for value in values)])


def _optimizer(name: str) -> Any:
    import tensorflow as tf

    v1 = tf.compat.v1
    if name == "adagrad":
        return v1.train.AdagradOptimizer(LEARNING_RATE[name])
    return v1.train.MomentumOptimizer(LEARNING_RATE[name], MOMENTUM)
