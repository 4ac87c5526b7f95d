"""Checks the version of Keras: the internals that this front end uses exist from 3.12 on, with TensorFlow."""

from __future__ import annotations

import re

from parallax.base.errors import ConfigError

_OLDEST = (3, 12)


def check_keras(version: str, backend: str) -> None:
    """Refuses an unsupported Keras.

    Args:
        version: as `keras.__version__`.
        backend: as `keras.config.backend()`.

    Raises:
        ConfigError: Keras is too old, or has another backend than TensorFlow.
    """
    numbers = tuple(int(one) for one in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        raise ConfigError(
            f"parallax.keras needs Keras {_OLDEST[0]}.{_OLDEST[1]} or newer, but {version} is installed. Install it: "
            f"pip install 'keras>={_OLDEST[0]}.{_OLDEST[1]}'."
        )
    if backend != "tensorflow":
        raise ConfigError(
            f"parallax.keras needs the Keras backend tensorflow, got {backend!r}. Set KERAS_BACKEND=tensorflow before "
            "Keras is imported."
        )
