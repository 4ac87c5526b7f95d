"""Imports without Keras."""

import subprocess
import sys

_IMPORTS = """
import sys

from parallax.runtime.worker.without_keras import leaving_out_keras

with leaving_out_keras():
    import horovod.tensorflow
    import tensorflow as tf
assert horovod.tensorflow.allreduce and tf.__version__
assert not {"keras", "sklearn", "matplotlib"} & set(sys.modules)
import keras

assert keras.layers.Dense is tf.keras.layers.Dense
"""


def test_tensorflow_and_horovod_are_imported_without_keras_which_can_be_imported_later():
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
