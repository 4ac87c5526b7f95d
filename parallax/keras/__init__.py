"""Trains Keras models on several hosts: `fit` is called as usual, and all workers execute its steps.

    import parallax.keras

    parallax.keras.use("resource_file")  # or nothing, and `parallax run`
    ...
    history = model.fit(dataset, epochs=3)

Once this package is imported, workers on the hosts execute the `fit` of every model; they receive the graph of its
steps and never run the script. They are started once, wait for the next `fit`, and end with the script or by `close`.
"""

import keras

from parallax.keras.versions import check_keras

check_keras(keras.__version__, keras.config.backend())

from parallax.entry.background_job import JobFailed  # noqa: E402
from parallax.functions.tracing.traced_values import rows  # noqa: E402  # these need what older ones do not have
from parallax.keras.checkpoints import load_checkpoint, save_checkpoint  # noqa: E402
from parallax.keras.intercept_fit import call, close, install, use  # noqa: E402

__all__ = ["JobFailed", "call", "close", "load_checkpoint", "rows", "save_checkpoint", "use"]

install()
