"""A real notebook kernel, without a browser: cells that fit, the button that interrupts, and a fit after it."""

import ast
import time

import numpy as np
import pytest
import tensorflow as tf  # noqa: F401  # of the tier of graphs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
manager = pytest.importorskip("jupyter_client.manager", reason="needs ipykernel: pip install ipykernel")
pytest.importorskip("ipykernel", reason="needs ipykernel: pip install ipykernel")

LIMIT_S = 120.0
MODEL = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.RandomState(0).rand(66, 8).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
losses = []
"""


class Notebook:
    """A kernel, and cells that it runs."""

    def __init__(self, folder):
        self._kernel = manager.KernelManager(kernel_name="python3")
        self._kernel.start_kernel(cwd=str(folder))
        self._client = self._kernel.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=LIMIT_S)

    def run(self, cell, interrupt_at=None):
        """Runs a cell; presses the button once a text is shown. Gives what is shown."""
        asked, shown, deadline_s = self._client.execute(cell), "", time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            message = self._client.get_iopub_msg(timeout=LIMIT_S)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != asked:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                return shown
            shown += content.get("text", "") + content.get("ename", "")
            shown += str(content.get("data", {}).get("text/plain", ""))
            if interrupt_at is not None and interrupt_at in shown:
                self._kernel.interrupt_kernel()
                interrupt_at = None
        raise AssertionError(f"the cell did not end: {shown[-2000:]}")

    def end(self):
        self._client.stop_channels()
        self._kernel.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path):
    found = Notebook(tmp_path)
    yield found
    found.end()


def test_cells_fit_are_interrupted_and_fit_again_as_plain_keras(notebook):
    notebook.run("import parallax, parallax.keras; parallax.keras.use(None, parallax.Config(workers=2))")
    notebook.run(MODEL)
    plot = "plot = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs['loss']))"
    shown = notebook.run(f"{plot}\nhistory = model.fit(x, y, batch_size=8, epochs=2, callbacks=[plot])")
    assert "Plan for 2 workers" in shown and "Epoch 2/2" in shown and "9/9" in shown
    values = ast.literal_eval(
        notebook.run("[losses, history.history['loss'], model.predict(x[:2], verbose=0).tolist()]")
    )
    assert values[0] == values[1]

    mark = "mark = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print('epoch', epoch, flush=True))"
    shown = notebook.run(f"{mark}\nmodel.fit(x, y, epochs=100_000, verbose=0, callbacks=[mark])", "epoch 3")
    assert shown.endswith("KeyboardInterrupt")
    assert notebook.run("1 / 0").endswith("ZeroDivisionError")
    shown = notebook.run("again = model.fit(x, y, epochs=1, verbose=0)\nlen(again.history['loss'])")
    assert "plan and workers are reused" in shown and shown.endswith("1")

    notebook.run("parallax.keras.close()")
    notebook.run(MODEL)
    notebook.run(f"{plot}\nparallax.keras.front._use.is_wanted = False")
    notebook.run("model.fit(x, y, batch_size=8, epochs=2, callbacks=[plot])")
    expected = ast.literal_eval(notebook.run("[losses, losses, model.predict(x[:2], verbose=0).tolist()]"))
    np.testing.assert_allclose(np.ravel(values[0]), np.ravel(expected[0]), rtol=1e-5)
    np.testing.assert_allclose(values[2], expected[2], rtol=1e-4)
