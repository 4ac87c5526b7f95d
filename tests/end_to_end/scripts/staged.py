"""Trains a model, in stages or not, and leaves losses and variables in a file; worker 0 trains in one process besides.

staged.py MODEL OPTIMIZER STAGES MICRO_BATCHES BATCHES FILE: STAGES 0 for none; BATCHES, of how many workers of a job in
stages a worker of this one has the batches. With LATE in the environment each worker waits at times before a run, and
before layers of `delayed` and their gradients, so that messages between stages are late. With SAVED, a folder, it
writes checkpoints there and has a hook.
"""

import ctypes
import os
import random
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.transform.building.all_to_all import library

UPDATES, ROWS, WIDTH, CLASSES = 20, 8, 32, 10
OPTIMIZERS = {
    "adagrad": lambda rate: tf.train.AdagradOptimizer(rate),
    "adam": lambda rate: tf.train.AdamOptimizer(rate, epsilon=1e-4),
}


def dense(values, width, name, is_last=False):
    kernel = tf.get_variable(f"{name}/kernel", [int(values.shape[-1]), width])
    made = values @ kernel + tf.get_variable(f"{name}/bias", [width], initializer=tf.zeros_initializer())
    return made if is_last else tf.nn.relu(made)


def delay(values):
    """The values, after a while with LATE; so are their gradients."""
    draw = random.Random(os.environ.get("OMPI_COMM_WORLD_RANK"))

    def wait(array):
        time.sleep(draw.choice((0.0, 0.0, 0.0, 0.001, 0.01)) if "LATE" in os.environ else 0.0)
        return array

    def late(tensor):
        waited = tf.numpy_function(wait, [tensor], tf.float32)
        waited.set_shape(tensor.shape)
        return waited

    return tf.custom_gradient(lambda tensor: (late(tensor), late))(values)


def mlp(values, between=tf.identity):
    """Blocks with a residual each, skips over three of them, and one from the first to the last."""
    values = dense(values, WIDTH, "first")
    before = [values]
    for number in range(6):
        values = values + 0.5 * dense(dense(values, WIDTH, f"in{number}"), WIDTH, f"out{number}", is_last=True)
        values = between(values)
        before.append(values)
        if number == 3:
            values = values + before[0]
    return values + before[0]


def delayed(values):
    """The same, of which layers and their gradients may be late."""
    return mlp(values, delay)


def dropped(values):
    """Dropout between layers, each drawn by its stage."""
    for number in range(4):
        values = tf.nn.dropout(dense(values, WIDTH, f"layer{number}"), rate=0.3)
    return values


def embedded(values):
    """A table that is looked up twice, in the first stage and for the last."""
    table = tf.get_variable("table", [40, WIDTH])
    ids = tf.cast(tf.abs(values[:, 0]) * 10, tf.int32) % 40
    values = values + tf.nn.embedding_lookup(table, ids)
    for number in range(4):
        values = values + dense(values, WIDTH, f"layer{number}")
    return values + tf.nn.embedding_lookup(table, (ids + 1) % 40)


def spread(values):
    """The same table, of which the workers of its stage own rows."""
    return embedded(values)


def penalized(values):
    """Penalties on all weights, made after the layers, and on what each layer gives."""
    for number in range(4):
        values = values + dense(values, WIDTH, f"layer{number}")
        tf.add_to_collection("penalties", 0.01 * tf.reduce_mean(tf.square(values)))
    return values


def tied(values):
    """One kernel in the first layer and in the last."""
    kernel = tf.get_variable("kernel", [WIDTH, WIDTH])
    values = tf.tanh(values @ kernel)
    for number in range(3):
        values = dense(values, WIDTH, f"layer{number}")
    return values @ tf.transpose(kernel)


def lstm(values):
    """Two loops, one after the other."""
    values = tf.reshape(dense(values, WIDTH, "first"), [-1, 4, WIDTH // 4])
    for number in range(2):
        values = unrolled(values, 8, f"lstm{number}")
    return dense(tf.reshape(values, [-1, 32]), WIDTH, "after")


def unrolled(values, units, name):
    kernel = tf.get_variable(f"{name}/kernel", [int(values.shape[-1]) + units, 4 * units])
    bias = tf.get_variable(f"{name}/bias", [4 * units], initializer=tf.zeros_initializer())
    steps, by_step = int(values.shape[1]), tf.transpose(values, [1, 0, 2])
    nothing = tf.zeros([tf.shape(values)[0], units])

    def turn(number, cell, hidden, made):
        gates = tf.concat([by_step[number], hidden], 1) @ kernel + bias
        taken, kept, given, new = tf.split(gates, 4, 1)
        cell = tf.sigmoid(kept + 1.0) * cell + tf.sigmoid(taken) * tf.tanh(new)
        hidden = tf.sigmoid(given) * tf.tanh(cell)
        return number + 1, cell, hidden, made.write(number, hidden)

    made = tf.TensorArray(tf.float32, steps, element_shape=[None, units])
    made = tf.while_loop(lambda number, *_: number < steps, turn, [0, nothing, nothing, made])[3].stack()
    made.set_shape([steps, None, units])
    return tf.transpose(made, [1, 0, 2])


def branched(values):
    """Conditionals whose branches use a variable that a layer uses too."""
    for number in range(4):
        values = values + dense(values, WIDTH, f"layer{number}")
        kernel = tf.get_variable(f"branch{number}", [WIDTH, WIDTH])
        taken, other = (lambda v=values, k=kernel: v @ k), (lambda v=values, k=kernel: 0.5 * v + tf.reduce_sum(k))
        values = values + 0.1 * tf.cond(tf.reduce_mean(values) > 0.4, taken, other)
    return values


MODELS = {one.__name__: one for one in (mlp, delayed, dropped, penalized, embedded, spread, tied, lstm, branched)}


def build(model, optimizer):
    graph = tf.Graph()
    with graph.as_default(), tf.variable_scope("", use_resource=True):
        tf.set_random_seed(7)
        values = tf.placeholder(tf.float32, [None, WIDTH], name="values")
        labels = tf.placeholder(tf.int32, [None], name="labels")
        logits = dense(MODELS[model](values), CLASSES, "logits", is_last=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")
        if model == "penalized":
            weights = [tf.reduce_sum(tf.square(variable)) for variable in tf.trainable_variables()]
            loss = tf.add(loss, tf.add_n([*tf.get_collection("penalties"), *(0.001 * one for one in weights)]))
            loss = tf.identity(loss, name="penalized_loss")
        step = tf.train.get_or_create_global_step()
        made = OPTIMIZERS[optimizer](tf.train.exponential_decay(0.05, step, 5, 0.9))
        gradients, variables = zip(*made.compute_gradients(loss), strict=True)
        clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
        tf.identity(norm, name="norm")
        made.apply_gradients(zip(clipped, variables, strict=True), step, name="train")
    return graph


def batch(number, workers):
    """The batch of all workers."""
    draw = np.random.default_rng(number)
    values = draw.standard_normal([ROWS * workers, WIDTH]).astype(np.float32)
    return {"values:0": values, "labels:0": draw.integers(0, CLASSES, ROWS * workers).astype(np.int32)}


def feeds(step, worker, workers):
    """The batch of a worker, for a verification."""
    rows = slice(worker * ROWS, (worker + 1) * ROWS)
    return {name: values[rows] for name, values in batch(step, workers).items()}


def exact():
    """Options that have TensorFlow compute each op as it stands, so that a part of a graph rounds as the whole."""
    options = tf.ConfigProto()
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    return options


def train_alone(graph, micro_batches, workers):
    """(losses, values of variables) of plain TensorFlow on the global batch."""
    losses = []
    with tf.Session(graph=graph, config=exact()) as session, graph.as_default():
        session.run(tf.global_variables_initializer())
        for update in range(UPDATES):
            parts = [batch(update * micro_batches + number, workers) for number in range(micro_batches)]
            fed = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            losses.append(session.run(["loss:0", "train"], fed)[0])
        return losses, session.run({v.op.name: v.read_value() for v in tf.global_variables()})


class Counting(tf.train.SessionRunHook):
    """Sees every run, and fetches the loss around every fifth that trains."""

    runs = 0

    def before_run(self, run_context):
        self.fetches = self.runs % 5 == 0 and bool(run_context.original_args.feed_dict)
        return tf.train.SessionRunArgs("loss:0") if self.fetches else None

    def after_run(self, run_context, run_values):
        assert (run_values.results is not None) == self.fetches
        self.runs += 1


def main():
    model, optimizer, stages, micro_batches, batches, file = sys.argv[1:]
    micro_batches, batches = int(micro_batches), int(batches)
    graph, alone = build(model, optimizer), build(model, optimizer)
    with graph.as_default():
        names = [variable.op.name for variable in tf.global_variables()]
    hooks = {}
    if "SAVED" in os.environ:
        checkpoints = parallax.CheckPointConfig(os.environ["SAVED"], save_ckpt_steps=3)
        hooks = {"ckpt_config": checkpoints, "hooks": [Counting()]}
    config = parallax.Config(
        **hooks,
        seed=3,
        sess_config=exact(),
        stages=int(stages) or None if stages.isdecimal() else stages,
        micro_batches=micro_batches,
        routes={"table": "alltoall"} if model == "spread" else {},
    )
    session, workers, worker, _ = parallax.parallel_run(graph, parallax_config=config)
    everyone = workers * batches
    late = random.Random(os.environ["OMPI_COMM_WORLD_RANK"]) if "LATE" in os.environ else None
    losses, norms = [], []
    with session:
        for number in range(UPDATES * micro_batches):
            whole, rows = batch(number, everyone), slice(worker * ROWS * batches, (worker + 1) * ROWS * batches)
            fed = {name: [values[rows]] for name, values in whole.items()}
            if late is not None:
                time.sleep(late.choice((0.0, 0.0, 0.002, 0.03)))
            if late is not None and number % 5:  # what is fetched makes the first stage wait for the last
                session.run("train", fed)
                continue
            (loss,), (norm,), _ = session.run(["loss:0", "norm:0", "train"], fed)
            losses.append(loss)
            norms += [] if norm is None else [norm]
            assert (norm is None) == ((number + 1) % micro_batches > 0)
        found = dict(zip(names, (one for (one,) in session.run([f"{name}:0" for name in names])), strict=True))
    if stages != "0":
        overlapping = session._direct._overlapping
        assert overlapping is not None and overlapping._last > UPDATES * micro_batches * 0.7, overlapping._last
        print("sent", ctypes.CDLL(str(library())).parallax_stages_sent())
    print(f"workers {workers} worker {worker} losses {[float(one).hex() for one in losses]}")
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        wanted, values = train_alone(alone, micro_batches, everyone)
        np.savez(
            file,
            losses=losses,
            norms=norms,
            wanted_losses=wanted,
            **{f"found {name}": value for name, value in found.items()},
            **{f"wanted {name}": value for name, value in values.items()},
        )


if __name__ == "__main__":
    main()
