"""The network of examples/nlp/translation.py: LSTM encoder and decoder with attention, in the manner of GNMT.

It is that of "Google's Neural Machine Translation System" (Wu et al. 2016): the first layer of the encoder reads both
ways, layers above add to what is below them, and what the first layer of the decoder attends to goes into all layers.
Attention is that of Luong et al. 2015 (general). Source and target words have embedding tables with a row for every
word; a step touches few rows, unless a table is tied to the projection onto the target words.

A layer runs all its steps in one op. Only the decoder's first, which needs the context of the step before, is in a
loop. Tables are looked up outside of it. Initial values are those of the variable scope that a function is called in.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import tensorflow.compat.v1 as tf

TIES = ("none", "source", "output")
Drop = Callable[[tf.Tensor], tf.Tensor]


class Sizes(NamedTuple):
    """What the model is made of."""

    source_words: int
    target_words: int
    width: int  # of an embedding
    state: int  # cells of a layer; even, as half of them read each way in the encoder's first
    layers: int  # of the encoder, and of the decoder; two or more
    tie: str = "none"  # "source": one table of source and target words; "output": the target's is the projection too
    smoothing: float = 0.0  # of the labels: the probability given to all words alike


class Layer(NamedTuple):
    """An LSTM; the variables are read once, outside of loops."""

    kernel: tf.Tensor  # [inputs + state, 4 * state]
    bias: tf.Tensor  # [4 * state]


class Network(NamedTuple):
    """All variables; tables have a row for each word, and may be the same as `sizes.tie` says."""

    sizes: Sizes
    source: tf.Variable  # [source_words, width]
    target: tf.Variable  # [target_words, width]
    projection: tf.Tensor  # [target_words, state], or [target_words, width] when it is the target's table
    bridge: tf.Tensor | None  # [state, width], from the decoder's outputs to what is projected
    bias: tf.Tensor  # [target_words]
    attention: tf.Tensor  # [state, state]
    encoder: list[Layer]  # forwards and backwards, each of half the state, then the layers above
    decoder: list[Layer]


class Memory(NamedTuple):
    """What the decoder attends to."""

    values: tf.Tensor  # [sentences, time, state] outputs of the encoder
    keys: tf.Tensor  # [sentences, time, state]
    hidden: tf.Tensor  # [sentences, time] a large number where there is padding, else 0


def translation_nats(
    sizes: Sizes,
    source: tf.Tensor,
    source_weights: tf.Tensor,
    previous: tf.Tensor,
    target: tf.Tensor,
    target_weights: tf.Tensor,
) -> tf.Tensor:
    """Nats of each target word, [sentences, words], given the source and the words before it; 0 for padding.

    Ids are [sentences, words]. Weights are of the same shape: 1, or 0 for padding, which follows the words. `previous`
    is the target one word later, after the mark of a beginning.
    """
    network = make_network(sizes)
    outputs, _ = decode(network, encode(network, source, source_weights), previous)
    nats = cross_entropy(project(network, outputs), tf.reshape(target, [-1]), sizes.smoothing)
    return tf.reshape(nats, tf.shape(target)) * target_weights


def make_network(sizes: Sizes) -> Network:
    """The variables, tied as `sizes.tie` says."""
    if sizes.tie not in TIES:
        raise ValueError(f"tie must be one of {', '.join(TIES)}, got {sizes.tie!r}.")
    if sizes.tie == "source" and sizes.source_words != sizes.target_words:
        words = f"{sizes.source_words} source words and {sizes.target_words} target words"
        raise ValueError(f"One table needs one vocabulary, and there are {words}. Join them, or take another tie.")
    state, variable, bridge = sizes.state, tf.get_variable, None
    source = target = variable("source_embedding", [sizes.source_words, sizes.width])
    if sizes.tie != "source":
        target = variable("target_embedding", [sizes.target_words, sizes.width])
    if sizes.tie != "output":
        projection = variable("projection", [sizes.target_words, state])
    else:
        projection = target
        bridge = variable("bridge", [state, sizes.width]) if sizes.width != state else None
    bias = variable("projection_bias", [sizes.target_words], initializer=tf.zeros_initializer())
    encoder = [make_layer(f"encoder_{way}", sizes.width, state // 2) for way in ("forward", "backward")]
    encoder += [make_layer(f"encoder_{layer}", state, state) for layer in range(1, sizes.layers)]
    decoder = [make_layer("decoder_0", sizes.width + state, state)]
    decoder += [make_layer(f"decoder_{layer}", 2 * state, state) for layer in range(1, sizes.layers)]
    whole = [None if part is None else tf.convert_to_tensor(part) for part in (projection, bridge, bias)]
    return Network(sizes, source, target, *whole, variable("attention", [state, state]), encoder, decoder)


def make_layer(name: str, inputs: int, state: int) -> Layer:
    """An LSTM with its variables."""
    kernel = tf.get_variable(f"{name}_kernel", [inputs + state, 4 * state])
    bias = tf.get_variable(f"{name}_bias", [4 * state], initializer=tf.zeros_initializer())
    return Layer(tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias))


def run_layer(
    layer: Layer, inputs: tf.Tensor, state: list[tf.Tensor] | None = None
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The outputs [time, batch, state] for inputs [time, batch, ...], and the cells and output after the last."""
    size, (time, batch) = int(layer.bias.shape[0]) // 4, tf.unstack(tf.shape(inputs)[:2])
    cells, output = state or [tf.zeros([batch, size])] * 2
    unused = tf.zeros([size])  # peepholes
    _, cells, _, _, _, _, outputs = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.cast(time, tf.int64),
        x=inputs,
        cs_prev=cells,
        h_prev=output,
        w=layer.kernel,
        wci=unused,
        wcf=unused,
        wco=unused,
        b=layer.bias,
        forget_bias=1.0,
        cell_clip=-1.0,  # not clipped
    )
    return outputs, [cells[-1], outputs[-1]]


def look_up(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Rows of a table, [time, batch, width] for ids [batch, time]; a partitioned one is cut into runs of rows."""
    return tf.transpose(tf.nn.embedding_lookup(table, ids, partition_strategy="div"), [1, 0, 2])


def encode(network: Network, words: tf.Tensor, weights: tf.Tensor, drop: Drop = tf.identity) -> Memory:
    """What the decoder attends to, of source words [batch, time]. What a layer gives for padding is hidden from it."""
    lengths = tf.cast(tf.reduce_sum(weights, axis=1), tf.int32)
    backwards = partial(tf.reverse_sequence, seq_lengths=lengths, seq_axis=0, batch_axis=1)
    inputs = drop(look_up(network.source, words))
    forward, _ = run_layer(network.encoder[0], inputs)
    backward, _ = run_layer(network.encoder[1], backwards(inputs))
    outputs = tf.concat([forward, backwards(backward)], axis=2)
    for layer in network.encoder[2:]:
        outputs += run_layer(layer, drop(outputs))[0]
    values = tf.transpose(outputs, [1, 0, 2])
    keys = tf.matmul(tf.reshape(values, [-1, network.sizes.state]), network.attention)
    return Memory(values, tf.reshape(keys, tf.shape(values)), (1.0 - weights) * 1e9)


def attend(memory: Memory, query: tf.Tensor) -> tf.Tensor:
    """The mean of the memory's values, weighted by how well their keys match the query, [batch, state].

    There may be several queries to a sentence, one after the other.
    """
    queries = tf.reshape(query, [tf.shape(memory.keys)[0], -1, query.shape[1]])
    scores = tf.matmul(queries, memory.keys, transpose_b=True) - memory.hidden[:, None]
    return tf.reshape(tf.matmul(tf.nn.softmax(scores), memory.values), tf.shape(query))


def decode(
    network: Network,
    memory: Memory,
    words: tf.Tensor,
    drop: Drop = tf.identity,
    state: list[tf.Tensor] | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Outputs [batch, time, state] of the top layer for the previous words [batch, time], and the state after them.

    A state is a list of [batch, state]: the context, which is what was attended to, and for every layer its cells and
    output. Only the first layer needs the context of the step before, so that only it is run step by step.
    """
    inputs = drop(look_up(network.target, words))
    size, layers = network.sizes.state, network.decoder
    state = state or [tf.zeros([tf.shape(inputs)[1], size])] * (1 + 2 * len(layers))

    def step(before: list[tf.Tensor], word: tf.Tensor) -> list[tf.Tensor]:
        context, *first = before
        _, first = run_layer(layers[0], tf.concat([word, context], axis=1)[None], first)
        return [attend(memory, first[1]), *first]

    contexts, cells, outputs = tf.scan(step, inputs, state[:3])
    next_state = [contexts[-1], cells[-1], outputs[-1]]
    for i, layer in enumerate(layers[1:], 1):
        above, after = run_layer(layer, drop(tf.concat([outputs, contexts], axis=2)), state[1 + 2 * i : 3 + 2 * i])
        outputs, next_state = outputs + above, next_state + after
    return tf.transpose(drop(outputs), [1, 0, 2]), next_state


def project(network: Network, outputs: tf.Tensor) -> tf.Tensor:
    """Scores of all target words, [batch * time, target_words], for outputs of the decoder, [batch, time, state]."""
    outputs = tf.reshape(outputs, [-1, network.sizes.state])
    if network.bridge is not None:
        outputs = tf.matmul(outputs, network.bridge)
    return tf.matmul(outputs, network.projection, transpose_b=True) + network.bias


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Nats of each target, [words]; the label is 1 - smoothing, and smoothing is shared by all words."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    words = int(logits.shape[1])
    share = smoothing / words
    labels = tf.one_hot(targets, words, on_value=1.0 - smoothing + share, off_value=share)
    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits)
