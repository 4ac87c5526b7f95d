"""Selects the Keras of a model: Keras 3, or tf_keras, which is loaded only if the script has loaded it."""

from __future__ import annotations

import importlib
from types import ModuleType

from parallax.base.types import KerasModel
from parallax.keras import keras3


def library_of(model: KerasModel) -> ModuleType:
    """The module with the specifics of a model's Keras: keras3.py, or tf_keras.py."""
    if any(kind.__module__.split(".")[0] == "tf_keras" for kind in type(model).__mro__):
        return tf_keras()
    return keras3


def tf_keras() -> ModuleType:
    """The specifics of tf_keras; loads tf_keras."""
    return importlib.import_module(f"{__package__}.tf_keras")
