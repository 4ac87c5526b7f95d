"""Keras models on several machines: `fit` as ever, its steps carried out by all workers.

    import parallax.keras

    parallax.keras.use("resource_file")  # or nothing, and `parallax run`
    ...
    history = model.fit(dataset, epochs=3)

From its import on, the `fit` of every model starts a job on the machines; the script then goes on, in the process that
launched, with the trained weights and the history. Workers run the script from its beginning to that `fit`.
"""

from parallax.keras.front import call, install, use

__all__ = ["call", "use"]

install()
