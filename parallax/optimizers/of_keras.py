"""Keras optimizers, for models of the TensorFlow backend.

They update sparse gradients row-wise (`update_rows`), in plain Keras too, where equal rows are summed first.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from parallax.base.errors import ConfigError
from parallax.base.types import Argument, DType, Gradient, KerasVariable, LearningRate, Tensor, TensorShape, Variable
from parallax.optimizers.row_rules import (
    AdmittedFtrlRule,
    LazyAdamRule,
    RowRule,
    RowSlot,
    RowWiseAdagradRule,
    initial_slot,
)

_PACKAGE = "parallax"


class _ByRow(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Trains by a rule. `settings` are the rule's scalars by the names of the class's arguments."""

    def __init__(
        self, rule: RowRule, learning_rate: LearningRate, settings: dict[str, float], more: dict[str, Argument]
    ) -> None:
        if more.get("gradient_accumulation_steps"):
            raise ConfigError(
                f"{type(self).__name__} updates only the rows of a gradient, but gradient_accumulation_steps makes "
                "Keras accumulate gradients of whole tables. Remove it and set parallax.Config(accumulate_steps=...), "
                "which accumulates rows."
            )
        super().__init__(learning_rate, **more)
        self._rule, self._settings = rule, settings

    def build(self, variables: Sequence[KerasVariable]) -> None:
        """Creates the slots."""
        if self.built:
            return
        super().build(variables)
        self._slots = [[self._slot(variable, slot) for slot in self._rule.slots] for variable in variables]

    def _slot(self, variable: KerasVariable, slot: RowSlot) -> KerasVariable:
        return self.add_variable(
            tuple(slot.shape(variable.shape)),
            _Initial(slot),
            variable.dtype,
            name=f"{variable.path}_{slot.name}".replace("/", "_"),
        )

    def update_step(self, gradient: Gradient, variable: Variable, learning_rate: LearningRate) -> None:
        """Updates the rows of a sparse gradient, or all of a dense one."""
        if isinstance(gradient, tf.IndexedSlices):
            rows, places = tf.unique(gradient.indices)
            values = tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(rows)[0])
            self.update_rows(values, rows, variable, learning_rate)
            return
        value, slots = self._list_variables(variable)
        change, new = self._apply_rule(gradient, value, slots, learning_rate)
        if self._rule.replaces:
            value.assign(change)
        else:
            value.assign_sub(change)
        for one, whole in zip(slots, new, strict=True):
            one.assign(whole)

    def update_rows(self, values: Tensor, rows: Tensor, variable: Variable, learning_rate: LearningRate) -> None:
        """Updates some rows and leaves all others unchanged; Parallax calls it instead of `update_step`.

        Args:
            values: the gradient of these rows, `[n, ...]`.
            rows: their numbers, `[n]`, distinct.
            variable: the tf.Variable.
            learning_rate: a scalar.
        """
        value, slots = self._list_variables(variable)
        read = tf.gather(value, rows) if self._rule.replaces else None
        change, new = self._apply_rule(values, read, [tf.gather(one, rows) for one in slots], learning_rate)
        write = value.scatter_update if self._rule.replaces else value.scatter_sub
        write(tf.IndexedSlices(change, rows))
        for one, of_rows in zip(slots, new, strict=True):
            one.scatter_update(tf.IndexedSlices(of_rows, rows))

    def _list_variables(self, variable: Variable) -> tuple[Variable, list[Variable]]:
        """A variable and its slots, as tf.Variables."""
        slots = self._slots[self._get_variable_index(variable)]
        return getattr(variable, "_value", variable), [one._value for one in slots]

    def _apply_rule(
        self,
        gradient: Tensor,
        value: Tensor | Variable | None,
        slots: Sequence[Tensor | Variable],
        learning_rate: LearningRate,
    ) -> tuple[Tensor, list[Tensor]]:
        """The results of the rule, for full variables or for rows."""
        slot_values = [tf.convert_to_tensor(one) for one in slots]
        dtype = slot_values[0].dtype
        step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, dtype)
        powers = [tf.pow(tf.cast(decay, dtype), step) for decay in self._rule.decays]
        old = tf.convert_to_tensor(value) if self._rule.replaces else None
        return self._rule.update(tf.cast(gradient, dtype), old, slot_values, tf.cast(learning_rate, dtype), powers)

    def get_config(self) -> dict[str, object]:
        """The configuration that recreates an equal optimizer."""
        return {**super().get_config(), **self._settings}


class _Initial(keras.initializers.Initializer):  # type: ignore[misc]
    """A slot's initial value as an initializer of variables."""

    def __init__(self, slot: RowSlot) -> None:
        self._slot = slot

    def __call__(self, shape: TensorShape, dtype: DType = None) -> Tensor:
        return initial_slot(self._slot, list(shape), tf.as_dtype(dtype or keras.config.floatx()))


@keras.saving.register_keras_serializable(_PACKAGE)
class RowWiseAdagrad(_ByRow):
    """Adagrad with one accumulator a row, `[rows]`; see `RowWiseAdagradRule`.

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: of every row.
        epsilon: added to the root.
        more: as of Keras's optimizers, but for `gradient_accumulation_steps`.

    Raises:
        ConfigError: a number is out of range, or gradients are to be accumulated by Keras.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-8,
        **more: Argument,
    ) -> None:
        settings = {"initial_accumulator_value": initial_accumulator_value, "epsilon": epsilon}
        super().__init__(RowWiseAdagradRule(initial_accumulator_value, epsilon), learning_rate, settings, more)


@keras.saving.register_keras_serializable(_PACKAGE)
class LazyAdam(_ByRow):
    """Adam that leaves rows without a gradient unchanged; see `LazyAdamRule`.

    Args:
        learning_rate: a number or a schedule.
        beta_1: decay of the first moments.
        beta_2: decay of the second moments.
        epsilon: added to the root.
        more: as of Keras's optimizers, but for `gradient_accumulation_steps`.

    Raises:
        ConfigError: a number is out of range, or gradients are to be accumulated by Keras.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **more: Argument,
    ) -> None:
        settings = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
        super().__init__(LazyAdamRule(beta_1, beta_2, epsilon), learning_rate, settings, more)


@keras.saving.register_keras_serializable(_PACKAGE)
class AdmittedFtrl(_ByRow):
    """FTRL-Proximal for rows that occurred often enough; see `AdmittedFtrlRule`.

    Args:
        learning_rate: alpha: a number or a schedule.
        beta: added to the root.
        l1: sets small coordinates to 0.
        l2: shrinks all coordinates.
        admit_after: a row is trained from the step of its occurrence number `admit_after` on; 1 for at once.
        admit_probability: alternatively, each step in which it occurs admits it with this probability.
        more: as of Keras's optimizers, but for `gradient_accumulation_steps`.

    Raises:
        ConfigError: a number is out of range, both kinds of admission are set, or gradients are to be accumulated by
            Keras.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.1,
        beta: float = 1.0,
        l1: float = 0.0,
        l2: float = 0.0,
        admit_after: int = 1,
        admit_probability: float = 1.0,
        **more: Argument,
    ) -> None:
        rule = AdmittedFtrlRule(beta, l1, l2, admit_after, admit_probability)
        admission = {"admit_after": admit_after, "admit_probability": admit_probability}
        super().__init__(rule, learning_rate, {"beta": beta, "l1": l1, "l2": l2, **admission}, more)
