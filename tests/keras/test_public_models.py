"""Models of kinds that are published often, on two and three workers by layouts: what plain Keras comes to."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, plan_of_fit

layers = keras.layers
_random = np.random.RandomState(0)
ROWS = 22  # in batches of 8: the last has unequal shares
WORDS = _random.randint(1, 30, (ROWS, 6)).astype("int32")
WORDS[::3, 4:] = 0
TAGS = _random.randint(0, 4, (ROWS, 6)).astype("int32")
TAGS[WORDS == 0] = 0
IMAGES = _random.rand(ROWS, 8, 8, 3).astype("f")
CLASSES = _random.randint(0, 3, (ROWS,)).astype("int32")
RATINGS = _random.rand(ROWS, 1).astype("f")
PAIRS = np.stack([_random.randint(0, 12, ROWS), _random.randint(0, 9, ROWS)], 1).astype("int32")
MOST = 1e-5


class TokensAndPositions(layers.Layer):
    """Embeddings of tokens and of their places, of texts of any length."""

    def __init__(self, most, vocabulary, width):
        super().__init__()
        self.tokens, self.places = layers.Embedding(vocabulary, width), layers.Embedding(most, width)

    def call(self, ids):
        places = keras.ops.arange(0, keras.ops.shape(ids)[-1], 1)
        return self.tokens(ids) + self.places(places)


class Block(layers.Layer):
    """Attention and a wide layer, each with a residual and a normalization."""

    def __init__(self, width, heads, wide, is_causal=False):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width)
        self.wide = keras.Sequential([layers.Dense(wide, activation="relu"), layers.Dense(width)])
        self.first, self.second = layers.LayerNormalization(epsilon=1e-6), layers.LayerNormalization(epsilon=1e-6)
        self.is_causal = is_causal

    def call(self, x):
        x = self.first(x + self.attention(x, x, use_causal_mask=self.is_causal))
        return self.second(x + self.wide(x))


class MaskedLoss(keras.losses.Loss):
    """Cross entropy over the words that are no padding."""

    def __init__(self):
        super().__init__(reduction=None)

    def call(self, y, p):
        losses = keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
        mask = tf.cast(y > 0, losses.dtype)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


def tagger():
    words = keras.Input((None,), dtype="int32")
    tags = layers.Dense(4)(Block(8, 2, 16)(TokensAndPositions(10, 30, 8)(words)))
    model = keras.Model(words, tags)
    model.compile(keras.optimizers.Adam(0.01), MaskedLoss())
    return model, WORDS, TAGS


def tagger_without_adam():
    model, x, y = tagger()
    model.compile(keras.optimizers.SGD(0.1), MaskedLoss())
    return model, x, y


class Rater(keras.Model):
    """Users and items: a product over all pairs of the batch, as published, and biases."""

    def __init__(self):
        super().__init__()
        self.users, self.user_bias = layers.Embedding(12, 4), layers.Embedding(12, 1)
        self.items, self.item_bias = layers.Embedding(9, 4), layers.Embedding(9, 1)

    def call(self, x):
        users, items = x[:, 0], x[:, 1]
        dots = tf.tensordot(self.users(users), self.items(items), 2)
        return tf.nn.sigmoid(dots + self.user_bias(users) + self.item_bias(items))


def rater():
    model = Rater()
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return model, PAIRS, RATINGS


class Siamese(keras.Model):
    """Distances of an anchor to an alike and to another image, by one encoder."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [
                layers.Conv2D(4, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(6, activation="relu"),
                layers.BatchNormalization(),
                layers.Dense(4),
            ]
        )
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        anchor, alike, other = self.encoder(x), self.encoder(x[:, ::-1]), self.encoder(x[:, :, ::-1])
        near, far = (tf.reduce_sum(tf.square(anchor - one), -1) for one in (alike, other))
        return near, far

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            near, far = self(x, training=True)
            loss = tf.maximum(near - far + 0.5, 0.0)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def siamese():
    model = Siamese()
    model.compile(keras.optimizers.SGD(0.001))
    return model, IMAGES, CLASSES


class Adversaries(keras.Model):
    """A generator and a discriminator with an optimizer each; noise is made of the images."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [
                layers.Dense(4 * 4 * 4, use_bias=False),
                layers.BatchNormalization(),
                layers.LeakyReLU(),
                layers.Reshape((4, 4, 4)),
                layers.Conv2DTranspose(3, 4, strides=2, padding="same", activation="sigmoid"),
            ]
        )
        self.discriminator = keras.Sequential(
            [layers.Conv2D(4, 4, strides=2, padding="same"), layers.LeakyReLU(), layers.Flatten(), layers.Dense(1)]
        )
        self.d_mean, self.g_mean = keras.metrics.Mean(name="d"), keras.metrics.Mean(name="g")
        self.d_optimizer, self.g_optimizer = keras.optimizers.Adam(0.001), keras.optimizers.Adam(0.001)

    def call(self, x):
        return self.discriminator(self.generator(x[:, 0, :, 0]))

    def train_step(self, data):
        real = data[0] if isinstance(data, tuple) else data
        rows = tf.shape(real)[0]
        noise = real[:, 0, :, 0] - 0.5
        loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        joined = tf.concat([self.generator(noise), real], 0)
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], 0)
        with tf.GradientTape() as tape:
            d_loss = loss_of(labels, self.discriminator(joined))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = loss_of(tf.zeros((rows, 1)), self.discriminator(self.generator(noise, training=True)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_mean.update_state(d_loss)
        self.g_mean.update_state(g_loss)
        return {"d": self.d_mean.result(), "g": self.g_mean.result()}

    @property
    def metrics(self):
        return [self.d_mean, self.g_mean]


def adversaries():
    model = Adversaries()
    model.compile()
    return model, IMAGES, None


class Patches(layers.Layer):
    """Squares of an image, each a vector, with a learned place."""

    def __init__(self):
        super().__init__()
        self.project, self.places = layers.Dense(8), layers.Embedding(4, 8)

    def call(self, images):
        rows, height, width, channels = keras.ops.shape(images)
        patches = tf.reshape(images, [rows, height // 4, 4, width // 4, 4, channels])
        patches = tf.reshape(tf.transpose(patches, [0, 1, 3, 2, 4, 5]), [rows, 4, 16 * channels])
        return self.project(patches) + self.places(tf.range(4)[None])


def vision_transformer():
    images = keras.Input((8, 8, 3))
    found = Block(8, 2, 16)(Patches()(images))
    model = keras.Model(images, layers.Dense(3)(layers.Flatten()(layers.LayerNormalization()(found))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), loss, metrics=["accuracy"])
    return model, IMAGES, CLASSES


def vision_transformer_of_extracted_patches():
    images = keras.Input((8, 8, 3))
    patches = keras.ops.image.extract_patches(images, 4)
    found = Block(8, 2, 16)(layers.Dense(8)(layers.Reshape((4, 48))(patches)))
    model = keras.Model(images, layers.Dense(3)(layers.GlobalAveragePooling1D()(found)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model, IMAGES, CLASSES


class AutoEncoder(keras.Model):
    """Means and variances, and a divergence that is summed over places and averaged over examples."""

    def __init__(self):
        super().__init__()
        self.hidden, self.mean, self.deviation = layers.Dense(8, activation="relu"), layers.Dense(2), layers.Dense(2)
        self.decoder = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(192, activation="sigmoid")])
        self.total = keras.metrics.Mean(name="loss")

    def call(self, x):
        hidden = self.hidden(tf.reshape(x, [-1, 192]))
        return self.mean(hidden), self.deviation(hidden)

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean, log_variance = self(x)
            z = mean + tf.exp(0.5 * log_variance) * (x[:, 0, :2, 0] - 0.5)
            made = tf.reshape(self.decoder(z), [-1, 8, 8, 3])
            rebuilt = tf.reduce_mean(tf.reduce_sum(keras.losses.binary_crossentropy(x, made), axis=(1, 2)))
            divergence = -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))
            loss = rebuilt + tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result()}

    @property
    def metrics(self):
        return [self.total]


def auto_encoder():
    model = AutoEncoder()
    model.compile(keras.optimizers.Adam(0.01))
    return model, IMAGES, None


def translator():
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embedded = layers.Embedding(30, 6, mask_zero=True)
    _, *states = layers.LSTM(5, return_state=True)(embedded(source))
    found = layers.LSTM(5, return_sequences=True)(embedded(target), initial_state=states)
    model = keras.Model([source, target], layers.Dense(4)(found))
    model.compile(keras.optimizers.RMSprop(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, [WORDS, WORDS[:, ::-1].copy()], TAGS


class GraphConvolution(layers.Layer):
    """Sums over the neighbours of each node, of a graph whose nodes are the batch."""

    def __init__(self, width, links):
        super().__init__()
        self.dense, self.links = layers.Dense(width), links

    def call(self, x):
        return tf.matmul(tf.constant(self.links), self.dense(x))


NODES = 12
LINKS = (_random.rand(NODES, NODES) < 0.3).astype("f") + np.eye(NODES, dtype="f")
LINKS /= LINKS.sum(1, keepdims=True)
FEATURES, LABELS = _random.rand(NODES, 5).astype("f"), _random.randint(0, 3, NODES).astype("int32")
KNOWN = (_random.rand(NODES) < 0.6).astype("f")


def graph_convolutions():
    inputs = keras.Input((5,))
    hidden = layers.ReLU()(GraphConvolution(4, LINKS)(inputs))
    model = keras.Model(inputs, GraphConvolution(3, LINKS)(hidden))
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    return model, FEATURES, LABELS, KNOWN


class GraphAttention(keras.Model):
    """Weights of edges by a softmax over each node's neighbours; a batch is of node numbers."""

    def __init__(self):
        super().__init__()
        self.kernel, self.scores, self.out = layers.Dense(4), layers.Dense(1), layers.Dense(3)
        edges = np.argwhere(LINKS > 0)
        self.edges = tf.constant(edges, tf.int32)
        self.states = tf.constant(FEATURES)

    def call(self, chosen):
        states = self.kernel(self.states)
        ends = tf.gather(states, self.edges)
        scores = tf.nn.leaky_relu(self.scores(tf.reshape(ends, [tf.shape(self.edges)[0], -1])))[:, 0]
        scores = tf.exp(tf.clip_by_value(scores, -2, 2))
        sums = tf.math.unsorted_segment_sum(scores, self.edges[:, 0], NODES)
        scores = scores / tf.gather(sums, self.edges[:, 0])
        gathered = tf.gather(states, self.edges[:, 1]) * scores[:, None]
        found = self.out(tf.math.unsorted_segment_sum(gathered, self.edges[:, 0], NODES))
        return tf.gather(found, chosen)


def graph_attention():
    model = GraphAttention()
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model, np.arange(NODES).astype("int32"), LABELS


class Sequences(keras.Model):
    """What a user takes next: scores of items that followed, and of others, at places that are no padding."""

    def __init__(self):
        super().__init__()
        self.embedded, self.block = TokensAndPositions(10, 30, 8), Block(8, 1, 8, is_causal=True)
        self.mean = keras.metrics.Mean(name="loss")

    def call(self, words):
        mask = tf.cast(words > 0, tf.float32)[..., None]
        return self.block(self.embedded(words) * mask) * mask

    def train_step(self, data):
        words, _ = data
        with tf.GradientTape() as tape:
            found = self(words[:, :-1])
            followed, others = words[:, 1:], (words[:, 1:] * 7 + 3) % 29 + 1
            right = tf.reduce_sum(found * self.embedded.tokens(followed), -1)
            wrong = tf.reduce_sum(found * self.embedded.tokens(others), -1)
            mask = tf.cast(followed > 0, tf.float32)
            losses = -tf.math.log(tf.sigmoid(right) + 1e-24) - tf.math.log(1 - tf.sigmoid(wrong) + 1e-24)
            loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    @property
    def metrics(self):
        return [self.mean]


def sequences():
    model = Sequences()
    model.compile(keras.optimizers.Adam(0.01, beta_2=0.98))
    return model, WORDS, TAGS


MODELS = {
    one.__name__: one
    for one in (
        tagger,
        tagger_without_adam,
        rater,
        siamese,
        adversaries,
        vision_transformer,
        vision_transformer_of_extracted_patches,
        auto_encoder,
        translator,
        graph_convolutions,
        graph_attention,
        sequences,
    )
}


def options_of(data):
    whole = isinstance(data[0], np.ndarray) and len(data[0]) == NODES
    return dict(batch_size=NODES if whole else 8, epochs=2, shuffle=False, verbose=0)


def script(name):
    def make(train):
        model, x, y, *weights = MODELS[name]()
        return model, train(
            model, x, y, **options_of((x,)), **dict(zip(["sample_weight"], weights, strict=False))
        ).history

    return make


@pytest.mark.rotates
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_comes_to_what_plain_keras_comes_to(name, size):
    plain = outcome(fit_plainly, script(name))
    found = outcome(functools.partial(fit_by, size, layouts=True), script(name))
    parts = {part: difference(found[part], plain[part]) for part in plain}
    assert max(parts.values()) <= MOST, (parts, found["found"], plain["found"])


@pytest.mark.rotates
@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_gathers_nothing(name):
    model, x, y, *_ = MODELS[name]()
    notes = plan_of_fit(model, x, y, batch_size=options_of((x,))["batch_size"], layouts=True).notes
    assert not [note for note in notes if "gathered" in note], notes
