"""Optimizers whose semantics differ from TensorFlow's and Keras's, by name: row-wise, with other rows unchanged.

Those whose names end in Optimizer are `tf.compat.v1.train.Optimizer`s, the others Keras's. Names are imported on first
use, so that scripts with the former load no Keras.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallax.optimizers.of_keras import AdmittedFtrl, LazyAdam, RowWiseAdagrad
    from parallax.optimizers.of_train import AdmittedFtrlOptimizer, LazyAdamOptimizer, RowWiseAdagradOptimizer

__all__ = [
    "AdmittedFtrl",
    "AdmittedFtrlOptimizer",
    "LazyAdam",
    "LazyAdamOptimizer",
    "RowWiseAdagrad",
    "RowWiseAdagradOptimizer",
]


def __getattr__(name: str) -> Any:
    """Imports a public name from the module that has it (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "of_train" if name.endswith("Optimizer") else "of_keras"
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
