"""Trains in its middle by calls that give weights back. Argument: `script` or `function`."""

import atexit
import io
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import tensorflow as tf

from parallax import call
from parallax.settings.config import Config

v1 = tf.compat.v1
PAD = bytes(range(256)) * 8192  # 2 MiB, on every way
before = []  # what the calls so far gave

float(tf.reduce_sum(tf.ones([200, 200]) @ tf.ones([200, 200])))  # from here on TensorFlow has threads


def built():
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        w = v1.get_variable("w", [4, 1], initializer=v1.zeros_initializer(), use_resource=True)
        loss = tf.reduce_mean(tf.square(x @ w - 1.0))
        v1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        v1.identity(w, name="now")
    return graph


def packed(**arrays):
    stream = io.BytesIO()
    np.savez(stream, pad=np.frombuffer(PAD, np.uint8), **arrays)
    return stream.getbuffer()


def unpacked(data):
    found = np.load(io.BytesIO(data))
    assert found["pad"].tobytes() == PAD
    return found


def fit(steps, fails=False):
    """The sum of the weights after so many steps, and of all before."""
    number = call.next_call()
    if call.is_worker() and call.is_replayed(number):
        return float(unpacked(call.attachment())["before"][number - 1])
    graph, config = built(), Config(seed=1, workers=2)
    if call.is_worker():
        session, size, rank, given = call.worker_call(graph, config)
        shift = float(np.sum(unpacked(given)["before"]))
        if fails and rank == 1:
            raise ValueError(f"no data after {shift:.6f}")
        for _ in range(steps):
            session.run("train", {"x:0": np.full([2, 4], 0.1 * (rank + 1), np.float32)})
        call.end_call(packed(total=np.sum(session.run("now:0")) + shift, workers=size))
    found = unpacked(call.run_call(number, graph, packed(before=np.array(before)), config))
    assert found["workers"] == 2
    before.append(float(found["total"]))
    return before[-1]


def goes_on():
    """Only the launching process may come to its end, also after a call that fails."""
    stop, interrupted = threading.Event(), signal.getsignal(signal.SIGINT)
    threading.Thread(target=stop.wait).start()
    try:
        first = fit(3)
        print(f"first {first:.6f}", flush=True)
        fit(2, fails=True)
    except call.JobFailed as failed:
        print("failed", failed.status, failed, flush=True)
    finally:
        print("finally", flush=True)
        if not call.is_worker():
            stop.set()
    atexit.register(print, "at exit")
    assert signal.getsignal(signal.SIGINT) is interrupted  # Ctrl-C is Python's again
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("parallax")]
    files = [name for fd in Path("/proc/self/fd").iterdir() if "memfd" in (name := str(fd.resolve()))]
    print("goes on with", threads, files)


if __name__ == "__main__" and sys.argv[1] == "function":
    factor = 2.0

    def doubled():
        return factor * fit(3)

    print(f"function gave {call.run_function(doubled):.6f}, call {call.next_call()}")
elif __name__ == "__main__":
    goes_on()
