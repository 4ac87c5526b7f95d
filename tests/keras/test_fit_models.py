"""Models of every kind, trained by `fit` here and in plain Keras: history, weights, slots and rate are the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.keras.fitting import read_fit
from tests.keras.here import check

pytestmark = pytest.mark.rotates(days=3)

layers = keras.layers
IDS = np.random.RandomState(0).randint(0, 12, (22, 3)).astype("int32")
X = np.random.RandomState(1).rand(22, 4).astype("float32")
Y = np.random.RandomState(2).randint(0, 2, (22, 1)).astype("float32")
ADAM = {"learning_rate": 0.05}


def functional():
    ids, x = keras.Input((3,), dtype="int32", name="ids"), keras.Input((4,), name="x")
    rows = layers.Flatten()(layers.Embedding(12, 2)(ids))
    out = layers.Dense(1, activation="sigmoid", name="out")(layers.Concatenate()([rows, x]))
    return keras.Model({"ids": ids, "x": x}, out)


def sequential():
    return keras.Sequential([layers.Dense(5, activation="tanh"), layers.Dropout(0.3), layers.Dense(1, "sigmoid")])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(3), layers.BatchNormalization()])
        self.out = layers.Dense(1, activation="sigmoid")

    def call(self, x, training=False):
        return self.out(self.inner(x, training=training))


def nested():
    def block(width):
        return keras.Sequential([layers.Dense(width, "relu"), layers.Dense(4)])

    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(1, "sigmoid")(block(3)(block(5)(x))))


def frozen():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(5), layers.Dense(1, "sigmoid")])
    model.layers[0].trainable = False
    return model


class Custom(keras.Model):
    """With trackers and metrics of its own, and logs that are no metrics."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1, activation="sigmoid")
        self.tracker = keras.metrics.Mean(name="my_loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="my_mae")

    @property
    def metrics(self):
        return [self.tracker, self.mae]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.1)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        self.mae.update_state(y, self(x))
        return {"my_loss": self.tracker.result(), "norm": norm, "mae": self.mae.result(), "steps": self.steps()}

    def steps(self):
        return tf.cast(self.optimizer.iterations, tf.float32) + 0.5

    def test_step(self, data):
        x, y = data
        self.mae.update_state(y, self(x))
        return {"mae": self.mae.result()}


MODELS = {"functional": functional, "sequential": sequential, "subclassed": Subclassed, "nested": nested}


@pytest.mark.rotates
@pytest.mark.parametrize("kind", [*MODELS, "frozen"])
def test_a_model_of_any_kind_is_trained_as_by_plain_keras(kind):
    def make(train):
        model = {**MODELS, "frozen": frozen}[kind]()
        model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy", "mae"])
        x = {"ids": IDS, "x": X} if kind == "functional" else X
        history = train(model, x, Y, batch_size=5, epochs=2, verbose=0, validation_data=(x, Y))
        return model, (history.history, history.epoch, model.predict(x, verbose=0))

    check(make)


def test_a_train_step_of_the_users_own_reports_its_own_metrics_and_other_numbers():
    def make(train):
        model = Custom()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
        history = train(model, X, Y, batch_size=4, epochs=3, verbose=0, validation_data=(X, Y))
        return model, (history.history, [m.result().numpy() for m in model.metrics])

    found = check(make)["found"][0]
    assert list(found) == ["mae", "my_loss", "norm", "steps", "val_mae"] or set(found) >= {"norm", "val_mae"}


def test_outputs_have_losses_weights_and_metrics_each():
    def make(train):
        x = keras.Input((4,), name="x")
        hidden = layers.Dense(3, "tanh")(x)
        outputs = {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(1, "sigmoid", name="b")(hidden)}
        model = keras.Model(x, outputs)
        model.compile(
            keras.optimizers.RMSprop(0.01),
            loss={"a": "mse", "b": "binary_crossentropy"},
            loss_weights={"a": 0.3, "b": 2.0},
            metrics={"a": ["mae"], "b": ["accuracy", keras.metrics.AUC(num_thresholds=7, name="auc")]},
            weighted_metrics={"b": ["accuracy"]},
        )
        y = {"a": X[:, :1], "b": Y}
        weights = {"a": X[:, 1], "b": X[:, 2]}
        history = train(model, X, y, sample_weight=weights, batch_size=8, epochs=2, verbose=0, validation_split=0.3)
        return model, history.history

    check(make)


@pytest.mark.rotates
def test_metrics_with_states_of_any_shape_are_of_the_whole_batch():
    def make(train):
        model = keras.Sequential([layers.Dense(3, "softmax")])
        m = keras.metrics
        y = np.eye(3, dtype="float32")[np.random.RandomState(5).randint(0, 3, 22)]
        metrics = [m.AUC(num_thresholds=9, name="auc"), m.Precision(), m.Recall(), m.F1Score(name="f1")]
        metrics += [m.OneHotMeanIoU(3, name="iou"), m.TopKCategoricalAccuracy(2), m.FalsePositives(name="fp")]
        metrics += [m.R2Score(name="r2"), m.MeanSquaredError(), m.CosineSimilarity()]
        metrics += [m.PrecisionAtRecall(0.5, num_thresholds=5, name="pr")]
        model.compile(keras.optimizers.Adagrad(0.1), "categorical_crossentropy", metrics=metrics)
        history = train(model, X, y, batch_size=6, epochs=2, verbose=0, validation_data=(X, y))
        return model, history.history

    check(make)


def _schedule():
    return keras.optimizers.schedules.CosineDecay(0.1, 8)


@pytest.mark.rotates
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(_schedule()),
        lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=2),
        lambda: keras.optimizers.SGD(
            0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3, weight_decay=0.01
        ),
        lambda: keras.optimizers.AdamW(0.05, global_clipnorm=0.1),
    ],
    ids=["schedule", "accumulation", "averages", "clipped"],
)
def test_what_an_optimizer_keeps_beside_its_slots_is_as_in_plain_keras(optimizer):
    def make(train):
        model = functional()
        model.compile(optimizer(), "binary_crossentropy")
        history = train(model, {"ids": IDS, "x": X}, Y, batch_size=6, epochs=2, verbose=0)
        return model, history.history

    check(make)


class Remembering(keras.Model):
    """Adds up gradients in variables without names."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.sums = [tf.Variable(tf.zeros([number + 1]), trainable=False) for number in range(9)]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        for number, one in enumerate(self.sums):
            if number % 2:
                one.assign_add(tf.ones([number + 1]))
            else:
                one.scatter_add(tf.IndexedSlices(tf.ones([1]), tf.constant([0])))
        return super().train_step(data)


def test_variables_without_names_are_numbered_in_the_order_in_which_a_step_takes_them():
    model = Remembering()
    model.compile("sgd", "mse")
    taken = read_fit(model, {"x": X, "y": Y, "batch_size": 5}).graph.variables
    found = {one.name: one.variable.shape.as_list() for one in taken if one.name.startswith("Variable")}
    assert found == {f"Variable_{number}".removesuffix("_0"): [number + 1] for number in range(9)}
