"""Programs as others write them, on two workers with uneven batches: history, weights and slots are plain Keras's."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from parallax.runtime.worker.session import resolved_run
from parallax.transform.passes.full_batches import redirect_to_full
from tests.keras.here import difference, fit_merged, fit_plainly, outcome
from tests.keras.two_here import fit_by_two, plain_fit_of, plan_of_fit

pytestmark = pytest.mark.rotates(days=3)

layers, ops = keras.layers, keras.ops
ROWS = 13  # batches of five, cut into two and three, and a last one of three
IDS = np.random.RandomState(0).randint(0, 12, (ROWS, 4)).astype("int32")
X = np.random.RandomState(1).rand(ROWS, 4).astype("float32")
Y = np.random.RandomState(2).randint(0, 2, (ROWS, 1)).astype("float32")
OPTIONS = {"batch_size": 5, "epochs": 2, "verbose": 0}


def check(make, plain=fit_plainly):
    here, expected = outcome(fit_by_two, make), outcome(plain, make)
    parts = {name: difference(here[name], expected[name]) for name in expected}
    assert max(parts.values()) <= 1e-6, (parts, here["found"], expected["found"])
    return here["found"]


def test_full_batches_are_fed_where_their_length_is_known_and_ids_may_count_from_the_end():
    def make(train):
        embedding = layers.Embedding(12, 3)
        model = keras.Sequential([keras.Input((4,), dtype="int32"), embedding, layers.Flatten(), layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        return model, train(model, IDS - 7, Y, validation_data=(IDS[:4] - 12, Y[:4]), **OPTIONS).history

    with mock.patch.object(resolved_run, "redirect_to_full", wraps=redirect_to_full) as led:
        check(make)
    full = [call for call in led.call_args_list if call.args[1]]
    lengths = [[len(value) for value in call.args[0].values() if np.ndim(value)] for call in full]
    # Worker 0 of two, and then the other: of two, two and one of five rows, and validation's four.
    assert lengths == 2 * [[2, 2], [3, 3], [2, 2], [3, 3], [1, 1], [2, 2], [2, 2], [2, 2]]
    is_full = [redirect_to_full(*call.args) is not None for call in full]
    assert is_full == 2 * [True, True, True, True, False, False, True, True]


def test_images_that_are_folded_and_pooled_may_have_a_shorter_last_batch():
    def make(train):
        images, kinds = np.random.RandomState(4).rand(ROWS, 8, 8, 1).astype("float32"), np.arange(ROWS) % 3
        folded = [layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
        model = keras.Sequential([keras.Input((8, 8, 1)), *folded, layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model, train(model, images, kinds, **OPTIONS).history

    check(make)


class Adversaries(keras.Model):
    """Has no `call`: two models and their optimizers in one step, the second loss after the first update."""

    def __init__(self):
        super().__init__()
        self.makes, self.judges = keras.Sequential([layers.Dense(4)]), keras.Sequential([layers.Dense(1)])
        self.losses_seen = [keras.metrics.Mean(name="made"), keras.metrics.Mean(name="judged")]
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return self.losses_seen

    def compile(self, makes, judges):
        super().compile()
        self.rules = {"makes": makes, "judges": judges}

    def train_step(self, data):
        real, noise = data
        with tf.GradientTape() as tape:
            found = [self.judges(real), self.judges(self.makes(noise))]
            judged = self.loss_of(ops.ones_like(found[0]), found[0]) + self.loss_of(ops.zeros_like(found[1]), found[1])
        self._update("judges", tape, judged)
        with tf.GradientTape() as tape:
            found = self.judges(self.makes(noise))
            made = self.loss_of(ops.ones_like(found), found)
        self._update("makes", tape, made)
        for metric, loss in zip(self.metrics, (made, judged), strict=True):
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}

    def _update(self, name, tape, loss):
        variables = getattr(self, name).trainable_variables
        self.rules[name].apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def test_two_optimizers_train_two_models_in_one_step():
    def make(train):
        model = Adversaries()
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.9))
        history = train(model, X, Y * X[:, :3], **OPTIONS).history
        return model, (history, [v.numpy() for one in model.rules.values() for v in one.variables])

    check(make)


class Logs(keras.Model):
    """Keras's own example of a step, with other logs besides."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=found)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, found)
        return {**{metric.name: metric.result() for metric in self.metrics}, **self.more(x, y, found)}

    def more(self, x, y, found):
        return {"each": tf.square(found - y)[:, 0], "steps": self.optimizer.iterations}


class Counts(Logs):
    def more(self, x, y, found):
        return {"right": tf.math.count_nonzero(found > 0.5)}


class LogsTogether(Logs):
    def more(self, x, y, found):
        error, rows = found - y, tf.cast(tf.shape(x)[0], tf.float32)
        found = {"largest": tf.reduce_max(error), "range": tf.reduce_max(error) - tf.reduce_min(error)}
        found |= {
            "norm": tf.norm(error),
            "rows": rows,
            "log": tf.math.log(rows),
        }
        is_any = tf.reduce_any(error > 0.4)
        return {**found, "any": tf.where(is_any, tf.reduce_mean(error), 1.0), "rows": rows, "sum": tf.reduce_sum(error)}


def compiled(model, **options):
    model.compile(**{"optimizer": keras.optimizers.Adagrad(0.1), "loss": "mse", **options})
    return model


def test_logs_may_be_dictionaries_of_metrics_and_have_a_row_for_each_example():
    def make(train):
        model = compiled(Logs(), metrics=["mae"])
        return model, train(model, X, Y, **OPTIONS).history

    assert [np.shape(each) for each in check(make)["each"]] == [(3,), (3,)]


def test_a_whole_number_that_is_logged_is_of_the_global_batch():
    def make(train):
        return (model := compiled(Counts())), train(model, X, Y, **OPTIONS).history

    check(make)


def test_a_log_is_put_together_of_the_whole_batch():
    def make(train):
        return (model := compiled(LogsTogether())), train(model, X, Y, **OPTIONS).history

    check(make)


class Bag(keras.Model):
    """Of ids of any number: those that are padded are masked."""

    def __init__(self):
        super().__init__()
        self.rows, self.mean = layers.Embedding(12, 3, mask_zero=True), layers.GlobalAveragePooling1D()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(self.mean(self.rows(x.to_tensor() if isinstance(x, tf.RaggedTensor) else x)))


def ragged():
    return tf.RaggedTensor.from_row_lengths(1 + np.arange(2 * ROWS + 1) % 11, [1, 3, 2, 1, 3, 2, 1, 3, 2, 1, 3, 2, 3])


def test_a_ragged_batch_counts_by_its_examples_and_not_by_its_values():
    def make(train):
        model, data = compiled(Bag()), tf.data.Dataset.from_tensor_slices((ragged(), Y)).batch(5)
        return model, train(model, data, epochs=2, verbose=0).history

    check(make)


class SeesExamples(layers.Layer):
    """Counts examples in a weight."""

    def __init__(self, aggregation):
        super().__init__(name="sees")
        self.how = aggregation

    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, aggregation=self.how)

    def call(self, x):
        self.seen.assign_add(ops.cast(ops.shape(x)[0], "float32"))
        return x


def counting(aggregation):
    return compiled(keras.Sequential([keras.Input((4,)), SeesExamples(aggregation), layers.Dense(1)]))


class Follows(Logs):
    """Says of each word of a text what comes next, of all words alike."""

    def __init__(self, words_of):
        super().__init__()
        self.words_of, self.rows, self.dense = words_of, layers.Embedding(12, 3), layers.Dense(12)

    def call(self, x):
        return self.dense(self.rows(x))

    def train_step(self, data):
        words, text = self.words_of(data[0]), data[0]
        with tf.GradientTape() as tape:
            found = self(words)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(words, found)
            loss = tf.reduce_mean(each) + 0.1 * tf.reduce_mean(tf.cast(tf.reduce_sum(text, 1), tf.float32) / 12)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            metric.update_state(loss)
        return {**{metric.name: metric.result() for metric in self.metrics}, "each": loss, "root": tf.sqrt(loss)}


@pytest.mark.parametrize(
    "words_of",
    [lambda text: text.values, lambda text: text.to_tensor(), lambda text: (text + 0).to_tensor(3)[:, :9]],
    ids=["values", "padded", "padded and cut"],
)
def test_a_mean_over_the_words_of_ragged_texts_counts_words(words_of):
    text = tf.cast(ragged(), "int32")

    def make(train):
        model = compiled(Follows(words_of), optimizer=keras.optimizers.SGD(0.5))
        data = tf.data.Dataset.from_tensor_slices((text, text)).batch(5)
        return model, train(model, data, epochs=2, verbose=0).history

    check(make)


@pytest.mark.parametrize("aggregation", ["sum", "none"])
def test_a_weight_of_a_layer_counts_the_global_batch(aggregation):
    def make(train):
        model = counting(aggregation)
        train(model, X, Y, **OPTIONS)
        return model, float(model.layers[0].seen.numpy())

    assert check(make) == 2 * ROWS


@pytest.mark.parametrize("rule", [pytest.param("Adagrad", marks=pytest.mark.slow), "Adam"])
def test_equal_rows_stay_apart_as_in_keras_and_are_merged_on_request(rule):
    def make(train):
        table = layers.Embedding(12, 3)
        model = keras.Sequential([keras.Input((4,), dtype="int32"), table, layers.Flatten(), layers.Dense(1)])
        compiled(model, optimizer=getattr(keras.optimizers, rule)(0.1))
        return model, train(model, IDS, Y, **OPTIONS).history

    def merging(model, *args, **kwargs):
        return fit_by_two(model, *args, merge_rows=True, **kwargs)

    here, plain = (outcome(train, make)["weights"] for train in (fit_by_two, fit_plainly))
    merged, dense = (outcome(train, make)["weights"] for train in (merging, fit_merged))
    assert max(difference(here, plain), difference(merged, dense)) <= 1e-6 < 1e-3 < difference(merged, plain)


class Unmeasured(tf_keras.Model):
    """Has no metric, and logs a loss for each example."""

    def __init__(self):
        super().__init__()
        self.dense = tf_keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            each = tf_keras.losses.mse(y, self(x, training=True))
            loss = self.of_batch(each)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss, "each": each}

    def of_batch(self, each):
        return tf.reduce_sum(each)


class NotReduced(Unmeasured):
    def of_batch(self, each):
        return each


@pytest.mark.parametrize("kind", [Unmeasured, NotReduced], ids=["a sum", "a vector"])
def test_a_model_of_tf_keras_without_metrics_logs_what_its_step_returns_of_endless_data(kind):
    def outcome_of(fit):
        tf_keras.backend.clear_session()
        tf_keras.utils.set_random_seed(3)
        model = kind()
        model.compile(tf_keras.optimizers.SGD(0.02, momentum=0.9))
        endless = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5).repeat()
        history = fit(model, endless, epochs=2, steps_per_epoch=4, verbose=0).history
        return history, model.get_weights()

    assert difference(outcome_of(fit_by_two), outcome_of(lambda m, *a, **k: plain_fit_of(m)(m, *a, **k))) <= 1e-6


class Adds(keras.metrics.Metric):
    """Adds up something for each batch."""

    def __init__(self, of, **options):
        super().__init__(**options)
        self.of, self.total = of, self.add_weight(name="total", initializer="zeros")

    def update_state(self, y, found, sample_weight=None):
        self.total.assign_add(self.of(ops.abs(y - found)))

    def result(self):
        return self.total + 0.0


def root(y, found):
    return ops.sqrt(ops.mean(ops.square(y - found)))


def test_what_metrics_add_once_a_batch_is_added_once():
    def make(train):
        own = {
            "batches": lambda e: 1.0,
            "means": ops.mean,
            "halves": lambda e: 0.5 * ops.mean(e) + 1.0,
            "sums": lambda e: ops.sum(e) + 1.0,
        }
        own["extremes"] = ops.max
        own["roots"], own["of all"] = (
            lambda e: ops.sqrt(ops.mean(e)),
            lambda e: ops.mean(e) * ops.cast(ops.shape(e)[0], "float32"),
        )
        metrics = [*(Adds(of, name=name) for name, of in own.items()), root]
        model = compiled(keras.Sequential([layers.Dense(1)]), metrics=metrics)
        history = train(model, X, Y, validation_data=(X[:7], Y[:7]), **OPTIONS).history
        return model, (history, [v.numpy() for metric in model.metrics for v in metric.variables])

    check(make)


def test_the_root_of_a_loss_is_evaluated_of_the_whole_batch():
    def make(train):
        model = compiled(keras.Sequential([layers.Dense(1)]), loss=root)
        return model, train(model, X, Y, validation_data=(X[:7], Y[:7]), **OPTIONS).history

    check(make)


def all_metrics():
    kinds = keras.metrics
    by_label = [kinds.AUC(), kinds.AUC(curve="PR"), kinds.Precision(), kinds.Recall(), kinds.F1Score(threshold=0.5)]
    by_label += [kinds.PrecisionAtRecall(0.5), kinds.BinaryIoU(), kinds.BinaryAccuracy(), kinds.FalsePositives()]
    by_value = [kinds.R2Score(), kinds.RootMeanSquaredError(), kinds.CosineSimilarity(), kinds.LogCoshError()]
    return by_label + by_value + [kinds.BinaryCrossentropy(), kinds.KLDivergence(), kinds.MeanAbsoluteError()]


@pytest.mark.rotates
def test_metrics_of_keras_are_those_of_one_process_and_nothing_is_told_of_them():
    weights = np.random.RandomState(4).rand(ROWS).astype("float32")

    def make(train):
        model = compiled(keras.Sequential([layers.Dense(1, activation="sigmoid")]))
        model.compile("sgd", "mse", metrics=all_metrics(), weighted_metrics=all_metrics())
        options = {**OPTIONS, "sample_weight": weights, "validation_data": (X[:7], Y[:7])}
        if train is None:
            return plan_of_fit(model, X, Y, **options).notes
        return model, train(model, X, Y, **options).history

    check(make)
    assert make(None) == ()


class Retrieves(keras.Sequential):
    """Is evaluated by how examples rank among those of their batch."""

    def test_step(self, data):
        x, _ = data
        scores = tf.matmul(self(x), x, transpose_b=True)
        ranked = tf.math.in_top_k(tf.range(tf.shape(x)[0]), scores, 2)
        self.metrics[0].update_state(tf.cast(ranked, tf.float32))
        return {"loss": self.metrics[0].result()}


def test_a_result_is_made_of_the_examples_of_the_global_batch():
    def make(train):
        model = compiled(Retrieves([layers.Dense(4)]))
        return model, train(model, X, X, validation_data=(X, X), **OPTIONS).history

    check(make)


class Reports(Logs):
    """Trains by a quotient or a sum, and logs what these are made of too."""

    def __init__(self, loss_and_logs):
        super().__init__()
        self.loss_and_logs, self.steps = loss_and_logs, keras.metrics.Sum(name="steps", dtype="int32")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss, logs = self.loss_and_logs(tf.reduce_sum(tf.square(found - y), 1), y[:, 0] > 0.5)
        gradients = tape.gradient(loss, self.trainable_variables)
        scale = logs.pop("scale", 1.0)
        self.optimizer.apply([scale * one for one in gradients], self.trainable_variables)
        self.steps.update_state(tf.cast(10.0 * loss, tf.int32))
        return {"trained": loss, "steps": self.steps.result(), **logs}


def rows(values):
    return tf.cast(tf.shape(values)[0], tf.float32)


OF_PARTS = {
    "a sum and its mean": lambda e, k: ((s := tf.reduce_sum(e)) / rows(e), {"sum": s, "half": 0.5 * s}),
    "a sum and another mean": lambda e, k: (
        tf.math.divide_no_nan(s := tf.reduce_sum(e), rows(e)),
        {"root": tf.sqrt(s)},
    ),
    "a trained sum": lambda e, k: (0.1 * (s := tf.reduce_sum(e)), {"sum": s, "root": tf.sqrt(s), "twice": s * s}),
    "a mean over a mask": lambda e, k: (m := tf.reduce_mean(tf.boolean_mask(e, k)), {"exp": tf.exp(-m), "same": m}),
    "a sum that scales gradients": lambda e, k: (
        tf.reduce_mean(e),
        {"scale": (s := tf.reduce_sum(tf.cast(k, tf.float32))) / 10.0, "sum": s, "square": s * s},
    ),
    "quotients of sums": lambda e, k: (
        tf.reduce_mean(e),
        {"rate": tf.reduce_sum(tf.where(k, e, 0.0)) / (1.0 + tf.reduce_sum(e)), "count": rows(tf.boolean_mask(e, k))},
    ),
}


@pytest.mark.rotates
@pytest.mark.parametrize("case", OF_PARTS)
def test_what_is_logged_beside_a_loss_leaves_its_gradient_alone(case):
    def make(train):
        model = compiled(Reports(OF_PARTS[case]))
        return model, train(model, X, Y, **OPTIONS).history

    check(make)


def test_a_loss_that_is_reported_is_not_put_together_on_its_way():
    def make(train):
        seen = lambda e, k: 0.1 * tf.reduce_sum(e) + tf.reduce_max(tf.cast(k, tf.float32))  # noqa: E731
        model = compiled(Reports(lambda e, k: (seen(e, k), {})), optimizer=keras.optimizers.SGD(0.1))
        return model, train(model, X, Y, **OPTIONS).history

    here, expected = outcome(fit_by_two, make), outcome(fit_plainly, make)
    assert difference(here["weights"], expected["weights"]) <= 1e-6  # the sum's gradient counts in full


def test_other_things_of_ragged_rows_are_as_long_as_what_is_filled_up():
    def loss(text, found):
        kept = tf.sequence_mask(text.row_lengths(), dtype=tf.float32)
        places = tf.cast(tf.range(text.bounding_shape()[1]), tf.float32)
        return tf.reduce_mean(found * kept * (1.0 + places))

    class Weighs(Follows):
        def train_step(self, data):
            words, text = data[0].to_tensor(), data[0]
            with tf.GradientTape() as tape:
                error = loss(text, tf.nn.sparse_softmax_cross_entropy_with_logits(words, self(words)))
            self.optimizer.apply(tape.gradient(error, self.trainable_variables), self.trainable_variables)
            return {"error": error}

    def make(train):
        text = tf.cast(ragged(), "int32")
        model = compiled(Weighs(None), optimizer=keras.optimizers.SGD(0.5))
        data = tf.data.Dataset.from_tensor_slices((text, text)).batch(5)
        return model, train(model, data, epochs=2, verbose=0).history

    check(make)


class Branches(Reports):
    """Updates a metric once more, in some batches."""

    def __init__(self, when):
        super().__init__(lambda e, k: (tf.reduce_mean(e), {}))
        self.when = when

    def train_step(self, data):
        logs = super().train_step(data)
        tf.cond(self.when(self, *data), lambda: self.steps.update_state(1), lambda: None)
        return {**logs, "steps": self.steps.result()}


def test_a_metric_that_is_updated_in_some_batches_is_updated_once_there():
    def make(train):
        model = compiled(Branches(lambda model, x, y: model.optimizer.iterations % 2 == 0))
        return model, train(model, X, Y, **OPTIONS).history

    check(make)


def in_a_loop(model, x, y):
    tf.while_loop(lambda i: i < 3, lambda i: (model.steps.update_state(1), i + 1)[1:], [0])
    return tf.constant(False)


def asks_any(model, x, y):
    return tf.reduce_any(x > 0.97)


def asks_all(model, x, y):
    return tf.reduce_all(x[:, 0] < 0.9)


@pytest.mark.parametrize("when", [asks_any, asks_all])
def test_a_metric_that_is_updated_where_any_or_all_examples_say_so_is_updated_by_the_whole_batch(when):
    answers = [bool(when(None, X[first : first + 5], None)) for first in range(0, ROWS, 5)]
    assert len(set(answers)) == 2  # and no worker has the whole answer

    def make(train):
        model = compiled(Branches(when))
        return model, train(model, X, Y, **OPTIONS).history

    check(make)
    assert not [note for note in plan_of_fit(compiled(Branches(when)), X, Y).notes if "adds to" in note]


LABELS = np.array([1, 0, -1, 1, 1, 1, 0, 1, 0, 1, -1, 0, 1], np.float32)[:, None]


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_labels_of_a_whole_batch_say_what_a_hinge_loss_takes_them_for(loss):
    def make(train):
        model = compiled(keras.Sequential([layers.Dense(1)]), loss=loss, metrics=[loss])
        return model, train(model, X, LABELS, **OPTIONS).history

    check(make)
    assert plan_of_fit(compiled(keras.Sequential([layers.Dense(1)]), loss=loss), X, LABELS).notes == ()


def capped(error, x):
    most = tf.reduce_max(error) * 2.0  # what is chosen by, and the loss
    return tf.where(most > 0.6, 0.5 * most, most)


def twice_where(is_so, error):
    return tf.where(is_so, 2.0, 1.0) * tf.reduce_mean(error)


CHOICES = {
    "any": lambda e, x: twice_where(tf.reduce_any(x > 0.97), e),
    "all in a column": lambda e, x: tf.reduce_mean(x * e * tf.cast(tf.reduce_all(x < 0.9, 0), tf.float32)),
    "a branch": lambda e, x: tf.cond(
        tf.reduce_any(x > 0.97), lambda: tf.reduce_mean(e), lambda: tf.reduce_mean(tf.sqrt(e + 0.1))
    ),
    "the loss": lambda e, x: twice_where(tf.reduce_mean(e) > 0.3, e),
    "what is trained": capped,
    "a maximum": lambda e, x: twice_where(tf.reduce_max(x) > 0.97, e),
    "a deviation": lambda e, x: twice_where(tf.math.reduce_std(x) > 0.28, e),
    "the length": lambda e, x: twice_where(tf.shape(x)[0] > 3, e),
    "a count": lambda e, x: twice_where(tf.reduce_sum(tf.cast(x > 0.9, tf.int32)) > 3, e),
    "two things": lambda e, x: twice_where((tf.reduce_max(x) > 0.97) & (tf.reduce_mean(x) > 0.45), e),
    "a maximum that is trained too": lambda e, x: (
        twice_where(tf.reduce_max(e) * 2.0 > 1.0, e) + 0.0 * tf.reduce_max(e) * 2.0
    ),
}


class Chooses(keras.Model):
    def __init__(self, choice):
        super().__init__()
        self.dense, self.choice = layers.Dense(1), choice

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.choice(tf.square(self(x) - y), x)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.rotates
@pytest.mark.parametrize("case", CHOICES)
def test_a_loss_may_be_another_one_by_what_the_whole_batch_is_like(case):
    def make(train):
        model = compiled(Chooses(CHOICES[case]))
        return model, train(model, X, Y, **OPTIONS).history

    check(make)
    assert case == "a branch" or plan_of_fit(compiled(Chooses(CHOICES[case])), X, Y).notes == ()


def test_a_metric_that_a_loop_updates_has_what_one_process_adds_to_it():
    def make(train):
        model = compiled(Branches(in_a_loop))
        return model, train(model, X, Y, **OPTIONS).history

    check(make)
