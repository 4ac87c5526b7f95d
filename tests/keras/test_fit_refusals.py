"""What `fit` cannot train on several workers is refused before anything is traced or started, with what to do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse
from parallax.base.errors import ConfigError, GraphError
from parallax.keras.fitting import read_fit
from parallax.keras.versions import check_keras

layers = keras.layers
X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


def model(*extra, **options):
    made = keras.Sequential([keras.Input((4,)), *extra, layers.Dense(1)])
    made.compile("sgd", "mse", **options)
    return made


class CallsPython(keras.Model):
    def __init__(self, stateful=True):
        super().__init__()
        self.dense, self.stateful = layers.Dense(1), stateful

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        shape = x.shape
        x = tf.numpy_function(lambda a: 2 * a, [x], tf.float32, stateful=self.stateful)
        return super().train_step((tf.ensure_shape(x, shape), y))


class StepsByItself(keras.Sequential):
    def make_train_function(self, force=False):
        return super().make_train_function(force)


class Grows(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.queue = tf.Variable(np.zeros([0, 4], "float32"), shape=[None, 4], trainable=False)

    def call(self, x):
        self.queue.assign(tf.concat([x, self.queue], 0)[:40])
        return x - tf.reduce_mean(self.queue, 0)


def _in_a_strategy():
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        return model()


def _of_class(kind):
    made = kind() if kind is CallsPython else kind([layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


REFUSED = {
    "run_eagerly=True is set": lambda: model(run_eagerly=True),
    "in the scope of MirroredStrategy": _in_a_strategy,
    "calls Python code by PyFunc": lambda: _of_class(CallsPython),
    r"has the open shape \(None, 4\)": lambda: model(Grows()),
    "overrides make_train_function": lambda: _of_class(StepsByItself),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_model_that_is_no_graph_is_refused(text):
    with pytest.raises(GraphError, match=text):
        read_fit(REFUSED[text](), {"x": X, "y": Y})


def _unbatched():
    return tf.data.Dataset.from_tensor_slices((X, np.ones(8, "float32")))


def _sparse():
    return tf.data.Dataset.from_tensors((tf.sparse.from_dense(X), Y))


@pytest.mark.parametrize(("text", "make"), [("Batch the dataset", _unbatched), ("Make it dense", _sparse)])
def test_batches_without_rows_to_share_are_refused(text, make):
    with pytest.raises(GraphError, match=text):
        read_fit(model(), {"x": make()})


class MakesLayers(keras.Model):
    def __init__(self, keeps):
        super().__init__()
        self.dense, self.kept, self.scale = layers.Dense(1), [] if keeps else None, tf.Variable(1.0)

    def call(self, x):
        return self.scale * self.dense(x)

    def train_step(self, data):
        x, y = data
        made = self.kept[0] if self.kept else layers.Dense(4, name="made")
        if self.kept is not None:
            self.kept[:] = [made]
        return super().train_step((made(x), y))


def test_a_layer_that_train_step_makes_anew_is_refused_and_one_that_it_keeps_is_not():
    for keeps in (True, False):
        made = MakesLayers(keeps)
        made.compile("sgd", "mse")
        if keeps:
            names = [one.name for one in read_fit(made, {"x": X, "y": Y}).graph.list_variables()]
            assert sum(name.endswith("made/kernel") for name in names) == 1
        else:
            with pytest.raises(GraphError, match="creates made/kernel, made/bias each time"):
                read_fit(made, {"x": X, "y": Y})


def test_eager_functions_everywhere_are_refused():
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(GraphError, match="run_functions_eagerly"):
            read_fit(model(), {"x": X, "y": Y})
    finally:
        tf.config.run_functions_eagerly(False)


def test_a_model_that_is_not_compiled_gets_keras_own_error():
    with pytest.raises(ValueError, match=r"call `compile\(\)`"):
        read_fit(keras.Sequential([layers.Dense(1)]), {"x": X, "y": Y})


def test_parallel_run_names_the_doors_for_what_is_no_graph_of_a_session():
    step = tf.function(lambda x: 2 * x).get_concrete_function(tf.TensorSpec([], tf.float32))
    for given, text in ((step.graph, "FuncGraph"), (tf.Graph(), "is empty"), (model(), "must be a tf.Graph")):
        with pytest.raises(GraphError, match=text) as refused:
            analyse(given)
        assert "import parallax.keras" in str(refused.value) and "parallax.function" in str(refused.value)


@pytest.mark.parametrize("version", ["3.12.0", "3.15.1", "3.16.0.dev20260101", "4.0"])
def test_keras_from_3_12_on_is_taken(version):
    check_keras(version, "tensorflow")


def test_an_older_keras_and_another_backend_are_refused():
    with pytest.raises(ConfigError, match=r"3\.12 or newer, but 3\.9\.2"):
        check_keras("3.9.2", "tensorflow")
    with pytest.raises(ConfigError, match="needs the Keras backend tensorflow, got .jax."):
        check_keras("3.12.0", "jax")


class Centers(keras.layers.Layer):
    """Moves the centers of classes towards the features of a batch, as a center loss does."""

    def __init__(self, aggregation):
        super().__init__()
        options = {"initializer": "zeros", "trainable": False, "name": "centers", "aggregation": aggregation}
        self.centers = self.add_weight(shape=(4, 3), **options)

    def call(self, x, labels, training=False):
        near = tf.gather(tf.convert_to_tensor(self.centers), labels)
        self.add_loss(tf.reduce_mean(tf.square(x - tf.stop_gradient(near))))
        if training:
            self.centers.value.scatter_sub(tf.IndexedSlices(0.5 * (near - x), labels))
        return x


def test_state_that_the_loss_reads_and_each_worker_adds_up_by_rows_is_refused():
    inputs, labels = keras.Input((6,)), keras.Input((), dtype="int32")
    outputs = keras.layers.Dense(4)(Centers("sum")(keras.layers.Dense(3)(inputs), labels))
    model = keras.Model([inputs, labels], outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones([8, 6], np.float32), np.arange(8) % 4
    with pytest.raises(GraphError, match="aggregation='sum'"):
        analyse(read_fit(model, {"x": [x, y.astype(np.int32)], "y": y, "batch_size": 4}).graph.graph)
