"""A model of 51 GB, its slots as much again; says how much memory this process has taken when it ends."""

import atexit
import sys

import keras
import numpy as np

import parallax.keras
from parallax.runtime.measure.memory import peak_bytes

ids = keras.Input((8,), dtype="int32")
tables = [keras.layers.Embedding(50_000_000, 32, name=f"table_{number}") for number in range(8)]
rows = keras.layers.Concatenate()([table(ids) for table in tables])
model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
model.compile(sys.argv[1], "mse")
parallax.keras.use()
# What getrusage says is at least what the process that started this one took.
atexit.register(lambda: print(f"PEAK {peak_bytes() // 1024} kB"))
model.fit(np.zeros([64, 8], np.int32), np.zeros([64, 1], np.float32), batch_size=32)
