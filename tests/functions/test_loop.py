"""Which steps a script's loop opens a session on, and when; workers are stand-ins of this process."""

import gc
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import parallax
import parallax.keras
from parallax.base.errors import GraphError, SessionError
from parallax.functions import loop as loops
from parallax.functions.mirrors import Mirrors
from parallax.functions.tracing.open_reads import record_open_reads
from parallax.keras import intercept_fit
from parallax.keras.intercept_fit import install
from parallax.runtime.launcher.restarts.waiting_job import end_waiting_job
from tests.functions.scripts.micro_loop import read_summaries
from tests.keras.here import OneWorkerSession, StepsHere


class Workers:
    """Opens sessions in this process, and notes the steps of each."""

    opened = []

    @contextmanager
    def session(self, graph, steps, config):
        session = OneWorkerSession(graph)
        self.opened.append(sorted(steps))
        yield StepsHere(graph, session, 1, 0)
        session.close()


@contextmanager
def reserved_workers(*_):
    end_waiting_job()
    yield Workers()


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(loops, "reserved_workers", reserved_workers)
    monkeypatch.setattr(loops, "_loops", {})
    Workers.opened = []
    yield Workers.opened
    end_waiting_job()


class Trainer:
    """An object with a step."""

    def __init__(self, name="w"):
        self.kernel = tf.Variable([2.0], name=name)

    @parallax.function
    def step(self, x, scale=1.0):
        loss = tf.reduce_mean(scale * x) * self.kernel[0]
        self.kernel.assign_sub([1.0])
        return loss


X = np.ones([4], np.float32)


def test_a_session_is_opened_anew_with_each_step_that_is_called_and_again_after_another_call(opened):
    one, other = Trainer(), Trainer()
    assert [float(one.step(X)) for _ in range(3)] == [2.0, 1.0, 0.0]
    assert float(other.step(2 * X)) == 4.0 and float(one.step(X)) == -1.0
    assert float(one.step(X, scale=3.0)) == -6.0
    assert opened == [["step"], ["step", "step_1"], ["step", "step_1", "step_2"]]
    end_waiting_job()  # as another call does
    assert one.kernel.numpy() == [-3.0]
    assert float(one.step(X)) == -3.0 and one.kernel.numpy() == [-4.0]
    assert opened[3:] == [["step", "step_1", "step_2"]]


def test_a_step_may_have_any_name(opened):
    kernel = tf.Variable([2.0])

    class Module(tf.Module):
        @parallax.function
        def __call__(self, x):
            kernel.assign_add([1.0])
            return tf.reduce_mean(x)

        @parallax.function
        def _train(self, x):
            kernel.assign_add([1.0])
            return tf.reduce_mean(x)

    one = Module()
    assert float(one(X)) == float(one._train(X)) == 1.0 and kernel.numpy() == [4.0]
    assert float(parallax.function(lambda x: tf.reduce_mean(kernel.assign_add([1.0])), name="écart")(X)) == 5.0
    assert opened[-1] == ["call", "step", "train"]


def test_a_step_whose_gradient_needs_the_length_of_the_batch_is_traced_for_it(opened):
    kernel = tf.Variable([[2.0]])

    @parallax.function
    def step(x):
        with tf.GradientTape() as tape:
            length = -tf.linalg.qr(x @ kernel)[1][0, 0]  # TensorFlow knows its gradient for lengths that are numbers
        kernel.assign_sub(tape.gradient(length, kernel))
        return length

    assert float(step(X[:, None])) == pytest.approx(4.0)
    np.testing.assert_allclose(kernel.numpy(), [[0.0]], atol=1e-6)


def test_steps_that_nobody_can_call_are_left_out(opened):
    one = Trainer()
    one.step(X)
    for _ in range(20):  # folds of a validation, each with an object of its own
        fold = Trainer()
        assert float(fold.step(X)) == 2.0
        del fold
        gc.collect()
    assert max(map(len, opened)) == 2
    assert float(one.step(X)) == 1.0


def test_a_cell_that_is_run_again_replaces_its_step(opened):
    kernel = tf.Variable([2.0])
    for _ in range(3):

        @parallax.function
        def step(x):
            kernel.assign_add([1.0])
            return tf.reduce_mean(x) * kernel[0]

        step(X)
        step(X)
    assert kernel.numpy() == [8.0] and opened == [["step"]] * 3


def test_values_that_change_from_call_to_call_are_refused_in_the_end(opened):
    one = Trainer()
    for number in range(16):
        one.step(X, scale=float(number))
    with pytest.raises(GraphError, match="step was traced for 16 different calls.*16.0. Pass what changes .* a tensor"):
        one.step(X, scale=16.0)
    assert float(Trainer().step(X, scale=16.0)) == 32.0


def test_a_model_that_is_compiled_again_has_one_step(opened, monkeypatch):
    install()
    monkeypatch.setattr(intercept_fit._use, "is_wanted", True)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[2.0]], np.float32)])
    ones = np.ones([4, 1], np.float32)
    model.compile(keras.optimizers.SGD(0.25), "mse")
    assert float(model.train_on_batch(ones, ones)) == 1.0
    model.compile(keras.optimizers.SGD(0.5), "mse", metrics=["mae"])
    assert [float(one) for one in model.train_on_batch(ones, ones)] == [0.25, 0.5]
    np.testing.assert_allclose(model.get_weights()[0], [[1.0]])
    assert opened == [["train"], ["train"]]


def test_batches_of_other_kinds_are_steps_of_their_own(opened, monkeypatch):
    install()
    monkeypatch.setattr(intercept_fit._use, "is_wanted", True)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[2.0]], np.float32)])
    model.compile(keras.optimizers.SGD(0.25), "mse")
    ones = np.ones([4, 1], np.float32)
    weights = np.array([1.0, 0.0, 1.0, 0.0], np.float32)
    losses = [float(model.train_on_batch(ones, ones, **more)) for more in ({}, {"sample_weight": weights}, {})]
    plain = keras.models.clone_model(model)
    plain.set_weights([np.array([[2.0]], np.float32)])
    plain.compile(keras.optimizers.SGD(0.25), "mse")
    monkeypatch.setattr(intercept_fit._use, "is_wanted", False)
    expected = [float(plain.train_on_batch(ones, ones, **more)) for more in ({}, {"sample_weight": weights}, {})]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert opened == [["train"], ["train", "train_1"]]


def test_a_step_that_computes_with_the_length_of_its_batch_is_traced_for_each(opened):
    kernel = tf.Variable([2.0])

    @parallax.function
    def step(x):
        total = tf.reduce_sum(x * kernel) / x.shape[0] + tf.reduce_sum(tf.unstack(x)[1])
        kernel.assign_add([1.0])
        return total

    assert [float(step(np.ones([rows, 1], np.float32))) for rows in (4, 4, 6, 4)] == [3.0, 4.0, 5.0, 6.0]
    assert opened == [["step"], ["step", "step_1"]]


READS = [
    lambda x: x.shape[0] == 4,
    lambda x: (x.shape[0] or 1) == 4,
    lambda x: [length for length in x.shape][0] == 4,
    lambda x: x.shape.as_list()[0] == 4,
    lambda x: x.get_shape().num_elements() == 4,
    lambda x: x.shape.is_fully_defined(),
    lambda x: x.shape.dims[0] == 4,
    lambda x: tf.get_static_value(tf.shape(x)) is not None,
    lambda x: tf_keras.backend.int_shape(x)[0] == 4,
]


@pytest.mark.parametrize("reads", READS)
def test_a_step_that_reads_an_open_length_without_an_error_is_traced_with_the_length(opened, reads):
    kernel = tf.Variable([2.0])

    @parallax.function
    def step(x):
        total = tf.reduce_mean(x * kernel) * (1.0 if reads(x) else 0.0)
        kernel.assign_add([1.0])
        return total

    assert [float(step(X[:, None])) for _ in range(2)] == [2.0 * X.mean(), 3.0 * X.mean()]


def test_a_script_beside_a_package_is_no_part_of_it(monkeypatch):
    monkeypatch.setitem(globals(), "__file__", f"{Path(parallax.__file__).parent}_scripts/train.py")
    with record_open_reads() as reads:
        assert tf.TensorShape([None])[0] is None
    assert len(reads) == 1


def test_a_step_whose_packages_alone_read_open_lengths_is_traced_once(opened):
    kernel = tf.Variable([2.0])

    @parallax.function
    def step(x):
        kernel.assign_add([1.0])
        return tf.reduce_mean(keras.ops.reshape(x, [keras.ops.shape(x)[0], x.shape[1], -1]))

    assert [float(step(np.ones([rows, 2], np.float32))) for rows in (4, 6)] == [1.0, 1.0]
    assert opened == [["step"]]


class DividesByLength(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.dense(data[0])) / data[0].shape[0]
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


def test_batches_of_other_lengths_are_steps_of_their_own_where_a_step_computes_with_the_length(opened, monkeypatch):
    install()
    monkeypatch.setattr(intercept_fit._use, "is_wanted", True)
    model = DividesByLength()
    model.compile(keras.optimizers.SGD(0.25))
    batches = [np.ones([rows, 1], np.float32) for rows in (4, 4, 6)]
    assert [float(model.train_on_batch(batch, return_dict=True)["loss"]) for batch in batches] == [1.0, 0.75, 0.5]
    assert opened == [["train"], ["train", "train_1"]]


def test_a_step_writes_summaries_by_the_writers_of_the_script(opened, tmp_path):
    one, other = (tf.summary.create_file_writer(str(tmp_path / name)) for name in ("one", "other"))

    @parallax.function
    def step(x, number):
        with one.as_default():
            tf.summary.scalar("sum", tf.reduce_sum(x), number)
            with other.as_default(number), tf.summary.record_if(number > 1):
                tf.summary.image("image", tf.reshape(x, [1, 2, 2, 1]))
        return tf.reduce_mean(x)

    for number in range(4):
        assert step(X * number, tf.constant(number, tf.int64)) == number
    assert [one.item() for one in read_summaries(tmp_path / "one").values()] == [0.0, 4.0, 8.0, 12.0]
    assert list(read_summaries(tmp_path / "other")) == ["image 2", "image 3"]


@pytest.mark.parametrize("is_called", [True, False])
def test_a_summary_in_a_body_of_a_step_is_refused(opened, tmp_path, is_called):
    writer = tf.summary.create_file_writer(str(tmp_path))

    def write(x):
        with writer.as_default(1):
            tf.summary.scalar("big", tf.reduce_sum(x))

    @parallax.function
    def step(x):
        if is_called:
            tf.function(write)(x)
        elif tf.reduce_sum(x) > 1:
            write(x)
        return tf.reduce_mean(x)

    with pytest.raises(GraphError, match=r"writes the summary '(cond/)?big' in a conditional, .* tf.summary.record_if"):
        step(X)


def test_a_summary_of_a_function_that_the_script_has_called_before_is_refused(opened, tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def write(x):
        with writer.as_default(1):
            tf.summary.scalar("big", tf.reduce_sum(x))
        return x

    write(tf.constant(X))

    @parallax.function
    def step(x):
        return tf.reduce_mean(write(x))

    with pytest.raises(GraphError, match=r"uses a summary writer of a tf.function .* write its summary in the step"):
        step(X)


def test_a_step_that_fails_to_open_is_not_one_of_the_loop(opened, monkeypatch):
    one = Trainer()
    one.step(X)
    with monkeypatch.context() as broken:
        broken.setattr(Workers, "session", lambda *_: 1 / 0)
        other = Trainer()
        with pytest.raises(ZeroDivisionError) as caught:
            other.step(X)
    assert float(one.step(X)) == 1.0 and opened == [["step"], ["step"]]
    assert caught is not None  # whose traceback holds the step


def test_rows_of_a_variable_that_a_step_has_changed_are_the_trained_ones(opened):
    one = Trainer()
    one.step(X)
    np.testing.assert_array_equal(parallax.keras.rows(one.kernel, 0, 1), [1.0])


def test_a_variable_that_a_fit_trains_is_not_trained_by_a_step_that_its_callback_calls(opened):
    one, mirrors = Trainer(), None
    try:
        mirrors = Mirrors([("w", one.kernel)], lambda name: np.zeros([1], np.float32))
        with pytest.raises(
            SessionError,
            match="w is being trained by a `fit` that has not ended, and only one call at a time may train a variable",
        ):
            one.step(X)
    finally:
        mirrors.release()
    assert float(one.step(X)) == 2.0
