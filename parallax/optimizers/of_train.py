"""`tf.compat.v1.train` optimizers: they minimize in a graph that a session runs."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from parallax.base.types import DType, Gradient, LearningRate, Operation, Tensor, TensorShape, Variable
from parallax.optimizers.row_rules import (
    AdmittedFtrlRule,
    LazyAdamRule,
    RowRule,
    RowSlot,
    RowWiseAdagradRule,
    initial_slot,
)

v1 = tf.compat.v1


class _TrainsByRow(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Trains by a rule; equal rows of a gradient are summed first, as the base class does for rules of this kind."""

    def __init__(self, rule: RowRule, learning_rate: LearningRate, use_locking: bool, name: str) -> None:
        super().__init__(use_locking, name)
        self._rule, self._rate = rule, learning_rate

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for variable in var_list:
            for slot in self._rule.slots:
                shape, dtype = slot.shape(variable.shape.as_list()), variable.dtype.base_dtype
                self._get_or_make_slot_with_initializer(
                    variable, _InitialSlot(slot), tf.TensorShape(shape), dtype, slot.name, self._name
                )
        first = min(var_list, key=lambda v: v.name)
        for number, decay in enumerate(self._rule.decays, 1):
            self._create_non_slot_variable(decay, f"beta{number}_power", first)

    def _prepare(self) -> None:
        rate = self._rate() if callable(self._rate) else self._rate
        self._rate_tensor = tf.convert_to_tensor(rate, name="learning_rate")

    def _powers(self) -> list[Variable]:
        graph = v1.get_default_graph()
        count = len(self._rule.decays)
        return [self._get_non_slot_variable(f"beta{number}_power", graph=graph) for number in range(1, count + 1)]

    def _apply_rule(
        self, gradient: Tensor, value: Tensor | None, slots: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        dtype = gradient.dtype
        powers = [tf.cast(power, dtype) for power in self._powers()]
        return self._rule.update(gradient, value, slots, tf.cast(self._rate_tensor, dtype), powers)

    def _list_slots(self, variable: Variable) -> list[Variable]:
        return [self.get_slot(variable, slot.name) for slot in self._rule.slots]

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        stored, write = self._list_slots(var), v1.assign if self._rule.replaces else v1.assign_sub
        value = tf.convert_to_tensor(var) if self._rule.replaces else None
        change, slots = self._apply_rule(grad, value, [tf.convert_to_tensor(one) for one in stored])
        with v1.control_dependencies([change, *slots]):  # a read of a reference variable is no copy
            written = [
                v1.assign(one, new, use_locking=self._use_locking) for one, new in zip(stored, slots, strict=True)
            ]
            return tf.group(write(var, change, use_locking=self._use_locking), *written)

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        return self._apply_dense(grad, handle)

    def _apply_sparse(self, grad: Gradient, var: Variable) -> Operation:
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        """Updates the rows of `indices`, which are distinct; written values are computed from values read before."""
        stored, write = self._list_slots(handle), v1.scatter_update if self._rule.replaces else v1.scatter_sub
        value = tf.gather(handle, indices) if self._rule.replaces else None
        change, slots = self._apply_rule(grad, value, [tf.gather(one, indices) for one in stored])
        pairs = zip(stored, slots, strict=True)
        written = [v1.scatter_update(one, indices, new, use_locking=self._use_locking) for one, new in pairs]
        return tf.group(write(handle, indices, change, use_locking=self._use_locking), *written)

    def _finish(self, update_ops: Sequence[Operation], name_scope: str) -> Operation:
        powers = self._powers()
        with v1.control_dependencies(update_ops):
            pairs = zip(powers, self._rule.decays, strict=True)
            counted = [v1.assign(power, power * decay, use_locking=self._use_locking) for power, decay in pairs]
        return tf.group(*update_ops, *counted, name=name_scope)


class _InitialSlot:
    """A slot's initial value as an initializer of variables."""

    def __init__(self, slot: RowSlot) -> None:
        self._slot = slot

    def __call__(self, shape: TensorShape, dtype: DType = tf.float32, partition_info: object = None) -> Tensor:
        return initial_slot(self._slot, tf.TensorShape(shape).as_list(), dtype)


class RowWiseAdagradOptimizer(_TrainsByRow):
    """Adagrad with one accumulator a row, `[rows]`; see `RowWiseAdagradRule`.

    Args:
        learning_rate: a number, a tensor, or a callable that returns one.
        initial_accumulator_value: of every row.
        epsilon: added to the root.
        use_locking: as of TensorFlow's optimizers.
        name: likewise.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "RowWiseAdagrad",
    ) -> None:
        super().__init__(RowWiseAdagradRule(initial_accumulator_value, epsilon), learning_rate, use_locking, name)


class LazyAdamOptimizer(_TrainsByRow):
    """Adam that leaves rows without a gradient unchanged; see `LazyAdamRule`.

    Args:
        learning_rate: a number, a tensor, or a callable that returns one.
        beta1: decay of the first moments.
        beta2: decay of the second moments.
        epsilon: added to the root.
        use_locking: as of TensorFlow's optimizers.
        name: likewise.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "LazyAdam",
    ) -> None:
        super().__init__(LazyAdamRule(beta1, beta2, epsilon), learning_rate, use_locking, name)


class AdmittedFtrlOptimizer(_TrainsByRow):
    """FTRL-Proximal for rows that occurred often enough; see `AdmittedFtrlRule`.

    Args:
        learning_rate: alpha: a number, a tensor, or a callable that returns one.
        beta: added to the root.
        l1: sets small coordinates to 0.
        l2: shrinks all coordinates.
        admit_after: a row is trained from the step of its occurrence number `admit_after` on; 1 for at once.
        admit_probability: alternatively, each step in which it occurs admits it with this probability.
        use_locking: as of TensorFlow's optimizers.
        name: likewise.

    Raises:
        ConfigError: a number is out of range, or both kinds of admission are set.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.1,
        beta: float = 1.0,
        l1: float = 0.0,
        l2: float = 0.0,
        admit_after: int = 1,
        admit_probability: float = 1.0,
        use_locking: bool = False,
        name: str = "AdmittedFtrl",
    ) -> None:
        rule = AdmittedFtrlRule(beta, l1, l2, admit_after, admit_probability)
        super().__init__(rule, learning_rate, use_locking, name)
