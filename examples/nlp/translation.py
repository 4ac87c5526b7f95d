"""A translation model: LSTM encoder and decoder with attention, in the manner of GNMT.

It is the network of "Google's Neural Machine Translation System" (Wu et al. 2016), smaller: the first layer of the
encoder reads both ways, layers above add to what is below them, and what the first layer of the decoder attends to goes
into all layers. Attention is that of Luong et al. 2015 (general). Source and target words have embedding tables with a
row for every word; a step touches few rows, unless a table is tied to the projection onto the target words.

So far this file has the model alone, from word ids to the nats of each target word. It cannot be run: reading of
parallel texts, training and decoding are still to be written. `python -m ops.bench race --model nmt` trains it on
drawn ids. Initial values are those of the variable scope that a function is called in.
"""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

TIES = ("none", "source", "output")
State = tuple[tf.Tensor, tf.Tensor]  # cells and output of an LSTM layer, each [batch, state]


class Sizes(NamedTuple):
    """What the model is made of."""

    source_words: int
    target_words: int
    width: int  # of an embedding
    state: int  # cells of a layer; even, as half of them read each way in the encoder's first
    layers: int  # of the encoder, and of the decoder; two or more
    tie: str = "none"  # "source": one table of source and target words; "output": the target's is the projection too
    smoothing: float = 0.0  # of the labels: the probability given to all words alike


class Tables(NamedTuple):
    """Variables with a row for each word; `source` and `target` may be the same, or `target` and `projection`."""

    source: tf.Variable  # [source_words, width]
    target: tf.Variable  # [target_words, width]
    projection: tf.Variable  # [target_words, state], or the target's table


class Cell(NamedTuple):
    """An LSTM layer; the variables are read once, not once a step."""

    kernel: tf.Tensor  # [inputs + state, 4 * state]
    bias: tf.Tensor  # [4 * state]


class Memory(NamedTuple):
    """What the decoder attends to."""

    values: tf.Tensor  # [batch, time, state] outputs of the encoder
    keys: tf.Tensor  # [batch, time, state]
    hidden: tf.Tensor  # [batch, time] a large number where there is padding, else 0


class Decoder(NamedTuple):
    """The layers of the decoder, over one memory."""

    cells: list[Cell]
    memory: Memory


class DecoderState(NamedTuple):
    """What goes from one step of the decoder to the next."""

    context: tf.Tensor  # [batch, state] of the memory, as attended to
    layers: list[State]


def translation_nats(
    sizes: Sizes,
    source: tf.Tensor,
    source_weights: tf.Tensor,
    previous: tf.Tensor,
    target: tf.Tensor,
    target_weights: tf.Tensor,
) -> tf.Tensor:
    """Nats of each target word, given the source and the words before it (teacher forcing).

    Ids are [batch, time], with static shapes. Weights are of the same shape: 1, or 0 for padding, which follows the
    words. `previous` is the target one word later, after the mark of a beginning. The nats are 0 for padding.
    """
    tables = make_tables(sizes)
    memory = encode(sizes, look_up(tables.source, source), source_weights)
    decoder = make_decoder(sizes, memory)
    state, outputs = first_state(sizes, decoder), []
    for words in tf.unstack(look_up(tables.target, previous), axis=1):
        output, state = decoder_step(decoder, words, state)
        outputs.append(output)
    logits = project(sizes, tables, tf.reshape(tf.stack(outputs, axis=1), [-1, sizes.state]))
    nats = cross_entropy(logits, tf.reshape(target, [-1]), sizes.smoothing)
    return tf.reshape(nats, tf.shape(target)) * target_weights


def make_tables(sizes: Sizes) -> Tables:
    """The embeddings and the projection, tied as `sizes.tie` says."""
    if sizes.tie not in TIES:
        raise ValueError(f"tie must be one of {', '.join(TIES)}, and {sizes.tie!r} was given.")
    if sizes.tie == "source" and sizes.source_words != sizes.target_words:
        words = f"{sizes.source_words} source words and {sizes.target_words} target words"
        raise ValueError(f"One table needs one vocabulary, and there are {words}. Join them, or take another tie.")
    source = tf.get_variable("source_embedding", [sizes.source_words, sizes.width])
    target = source
    if sizes.tie != "source":
        target = tf.get_variable("target_embedding", [sizes.target_words, sizes.width])
    projection = target
    if sizes.tie != "output":
        projection = tf.get_variable("projection", [sizes.target_words, sizes.state])
    return Tables(source, target, projection)


def look_up(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Rows of a table, [batch, time, width]; a partitioned one is cut into runs of rows ("div")."""
    return tf.nn.embedding_lookup(table, ids, partition_strategy="div")


def make_cell(name: str, inputs: int, state: int) -> Cell:
    """An LSTM layer with its variables."""
    kernel = tf.get_variable(f"{name}_kernel", [inputs + state, 4 * state])
    bias = tf.get_variable(f"{name}_bias", [4 * state], initializer=tf.zeros_initializer())
    return Cell(tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias))


def zero_state(batch: int, state: int) -> State:
    """Before the first word."""
    return tf.zeros([batch, state]), tf.zeros([batch, state])


def cell_step(cell: Cell, inputs: tf.Tensor, state: State) -> State:
    """One step of an LSTM layer: inputs [batch, ...] to cells and output."""
    cells, output = state
    gates = tf.matmul(tf.concat([inputs, output], axis=1), cell.kernel) + cell.bias
    write, new, keep, show = tf.split(gates, 4, axis=1)
    cells = tf.sigmoid(keep + 1.0) * cells + tf.sigmoid(write) * tf.tanh(new)
    return cells, tf.sigmoid(show) * tf.tanh(cells)


def run_cell(cell: Cell, steps: list[tf.Tensor], weights: list[tf.Tensor]) -> list[tf.Tensor]:
    """The outputs for all steps; those of weight 0 leave the state as it was, so that padding may come first."""
    size = int(cell.bias.shape[0]) // 4
    state, outputs = zero_state(int(steps[0].shape[0]), size), []
    for inputs, weight in zip(steps, weights, strict=True):
        after = cell_step(cell, inputs, state)
        state = tuple(old + weight * (new - old) for old, new in zip(state, after, strict=True))
        outputs.append(state[1])
    return outputs


def encode(sizes: Sizes, words: tf.Tensor, weights: tf.Tensor) -> Memory:
    """Source words [batch, time, width] to what the decoder attends to."""
    steps, alive = tf.unstack(words, axis=1), tf.split(weights, int(weights.shape[1]), axis=1)
    half = sizes.state // 2
    forward = run_cell(make_cell("encoder_forward", sizes.width, half), steps, alive)
    backward = run_cell(make_cell("encoder_backward", sizes.width, half), steps[::-1], alive[::-1])[::-1]
    outputs = [tf.concat(both, axis=1) for both in zip(forward, backward, strict=True)]
    for layer in range(1, sizes.layers):
        above = run_cell(make_cell(f"encoder_{layer}", sizes.state, sizes.state), outputs, alive)
        outputs = [below + output for below, output in zip(outputs, above, strict=True)]
    values = tf.stack(outputs, axis=1)
    attention = tf.get_variable("attention", [sizes.state, sizes.state])
    keys = tf.matmul(tf.reshape(values, [-1, sizes.state]), attention)
    return Memory(values, tf.reshape(keys, tf.shape(values)), (1.0 - weights) * 1e9)


def attend(memory: Memory, query: tf.Tensor) -> tf.Tensor:
    """The mean of the memory's values, weighted by how well their keys match the query; all [batch, state]."""
    scores = tf.squeeze(tf.matmul(memory.keys, tf.expand_dims(query, 2)), axis=2) - memory.hidden
    shares = tf.expand_dims(tf.nn.softmax(scores), 1)
    return tf.squeeze(tf.matmul(shares, memory.values), axis=1)


def make_decoder(sizes: Sizes, memory: Memory) -> Decoder:
    """The decoder's layers; each takes the context beside what is below it."""
    cells = [make_cell("decoder_0", sizes.width + sizes.state, sizes.state)]
    cells += [make_cell(f"decoder_{layer}", 2 * sizes.state, sizes.state) for layer in range(1, sizes.layers)]
    return Decoder(cells, memory)


def first_state(sizes: Sizes, decoder: Decoder) -> DecoderState:
    """Zeros, and no context."""
    batch = int(decoder.memory.values.shape[0])
    return DecoderState(tf.zeros([batch, sizes.state]), [zero_state(batch, sizes.state) for _ in decoder.cells])


def decoder_step(decoder: Decoder, words: tf.Tensor, state: DecoderState) -> tuple[tf.Tensor, DecoderState]:
    """From the previous words, [batch, width], to the output of the top layer, [batch, state]."""
    layers = [cell_step(decoder.cells[0], tf.concat([words, state.context], axis=1), state.layers[0])]
    output = layers[0][1]
    context = attend(decoder.memory, output)
    for cell, before in zip(decoder.cells[1:], state.layers[1:], strict=True):
        layers.append(cell_step(cell, tf.concat([output, context], axis=1), before))
        output += layers[-1][1]
    return output, DecoderState(context, layers)


def project(sizes: Sizes, tables: Tables, outputs: tf.Tensor) -> tf.Tensor:
    """Scores of all target words, [words, target_words], for outputs of the decoder, [words, state]."""
    if sizes.tie == "output" and sizes.width != sizes.state:
        outputs = tf.matmul(outputs, tf.get_variable("bridge", [sizes.state, sizes.width]))
    bias = tf.get_variable("projection_bias", [sizes.target_words], initializer=tf.zeros_initializer())
    return tf.matmul(outputs, tf.convert_to_tensor(tables.projection), transpose_b=True) + bias


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Nats of each target, [words]; the label is 1 - smoothing, and smoothing is shared by all words."""
    if not smoothing:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    words = int(logits.shape[1])
    share = smoothing / words
    labels = tf.one_hot(targets, words, on_value=1.0 - smoothing + share, off_value=share)
    return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
