"""A model of 51 GB, its slots as much again; says how much memory this process has taken when it ends."""

import atexit
import resource
import sys

import keras
import numpy as np

import parallax.keras

ids = keras.Input((8,), dtype="int32")
tables = [keras.layers.Embedding(50_000_000, 32, name=f"table_{number}") for number in range(8)]
rows = keras.layers.Concatenate()([table(ids) for table in tables])
model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
model.compile(sys.argv[1], "mse")
parallax.keras.use()
atexit.register(lambda: print(f"PEAK {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} kB"))
model.fit(np.zeros([64, 8], np.int32), np.zeros([64, 1], np.float32), batch_size=32)
