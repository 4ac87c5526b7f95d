"""Trains a model in islands, and leaves all variables in a file; worker 0 trains each island in one process besides.

islands.py OPTIMIZER ISLANDS UPDATES FILE [FOLDER EVERY]: ISLANDS are settings of `parallax.Islands`. With FOLDER the
job saves there every EVERY steps, and goes on from there; worker 0 then trains nothing. Workers have unequal batches,
but with EVEN in the environment, where worker 0 trains one process on all of them. With LOST the last worker is killed
at that update of a job that begins at 0, and with SHORT it makes one update less than the others. With ALONE no process
trains beside it.
"""

import os
import signal
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "adam": lambda: tf.train.AdamOptimizer(0.01, epsilon=1e-4),
}
TABLE_ROWS, WIDTH = 30, 6
IS_EVEN, LOST = "EVEN" in os.environ, int(os.environ.get("LOST", -1))


def build(optimizer):
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [None, WIDTH], name="x")
        y = tf.placeholder(tf.float32, [None, 1], name="y")
        ids = tf.placeholder(tf.int64, [None], name="ids")
        h = x + tf.nn.embedding_lookup(tf.get_variable("table", [TABLE_ROWS, WIDTH]), ids)
        h = tf.tanh(
            h @ tf.get_variable("w", [WIDTH, 8]) + tf.get_variable("b", [8], initializer=tf.zeros_initializer())
        )
        loss = tf.reduce_mean(tf.square(h @ tf.get_variable("v", [8, 1]) - y), name="loss")
        moving = tf.get_variable("moving", [8], trainable=False, initializer=tf.zeros_initializer())
        moved = moving.assign(0.9 * moving + 0.1 * tf.reduce_mean(h, 0))
        step = tf.train.get_or_create_global_step()
        with tf.control_dependencies([moved]):
            OPTIMIZERS[optimizer]().minimize(loss, step, name="train")
        names = [variable.name for variable in tf.global_variables()]
    return graph, names


def batch_of(update, worker):
    draw = np.random.default_rng([update, worker])
    rows = 4 if IS_EVEN else 2 + int(draw.integers(0, 4))
    x = draw.standard_normal([rows, WIDTH]).astype(np.float32)
    y = draw.standard_normal([rows, 1]).astype(np.float32)
    return {"x:0": x, "y:0": y, "ids:0": draw.integers(0, TABLE_ROWS, [rows])}


def feeds(step, worker, size):
    return batch_of(step, worker)


def joined(update, workers):
    batches = [batch_of(update, worker) for worker in workers]
    return {name: np.concatenate([one[name] for one in batches]) for name in batches[0]}


def variables_of(session):
    with session.graph.as_default():
        return {variable.name: variable for variable in tf.global_variables()}


class Processes:
    """One process for each island, all in this one; they meet as the documentation says."""

    def __init__(self, optimizer, terms, count, initial):
        self.terms, self.count = terms, count
        self.sessions = []
        for _ in range(count):
            graph, self.names = build(optimizer)
            session = tf.Session(graph=graph)
            self.sessions.append(session)
            self.write(session, initial)
        self.centre = {name: initial[name].astype(float) for name in ("w:0", "b:0", "v:0")}
        self.momentum = dict.fromkeys(self.centre, 0.0)

    def write(self, session, values):
        variables = variables_of(session)
        for name, value in values.items():
            variables[name].load(value, session)

    def read(self, session, names):
        variables = variables_of(session)
        return session.run({name: variables[name] for name in names})

    def train(self, update, workers):
        for island, session in enumerate(self.sessions):
            size = workers // self.count
            session.run("train", joined(update, range(island * size, (island + 1) * size)))

    def meet(self):
        values = [self.read(session, (*self.centre, "table:0", "moving:0")) for session in self.sessions]
        moved = [{name: np.mean([own[name] for own in values], 0) for name in ("table:0", "moving:0")} for _ in values]
        terms = self.terms
        for name, centre in self.centre.items():
            own = [one[name].astype(float) for one in values]
            if terms.simultaneous:
                steps = [terms.pull * (one - centre) for one in own]
                self.centre[name] = centre + sum(steps)
                found = [one - step for one, step in zip(own, steps, strict=True)]
            else:
                away = centre - np.mean(own, 0)
                self.momentum[name] = terms.outer_momentum * self.momentum[name] + away
                centre = centre - terms.outer_rate * (away + terms.outer_momentum * self.momentum[name])
                self.centre[name] = centre
                found = [one - terms.pull * (one - centre) for one in own]
            for one, value in zip(moved, found, strict=True):
                one[name] = value.astype(np.float32)
        for session, one in zip(self.sessions, moved, strict=True):
            self.write(session, one)

    def found(self):
        return [self.read(session, self.names) for session in self.sessions]


def main():
    optimizer, text, updates, file, *saved = sys.argv[1:]
    graph, names = build(optimizer)
    config = parallax.Config(seed=1, islands=text or None)
    if saved:
        config.ckpt_config = parallax.CheckPointConfig(ckpt_dir=saved[0], save_ckpt_steps=int(saved[1]))
    session, size, worker, _ = parallax.parallel_run(graph, parallax_config=config)
    terms, processes = config.islands, None
    with session:
        first = int(session.run("global_step:0")[0])
        print(f"began at {first}", flush=True)
        initial = {name: value[0] for name, value in session.run({name: name for name in names}).items()}
        if terms is not None and worker == 0 and not saved and "ALONE" not in os.environ:
            processes = Processes(optimizer, terms, 1 if IS_EVEN else terms.count, initial)
        for update in range(first, int(updates) - ("SHORT" in os.environ and worker == size - 1)):
            if (first, update, worker) == (0, LOST, size - 1):
                os.kill(os.getpid(), signal.SIGKILL)
            session.run("train", {name: [value] for name, value in batch_of(update, worker).items()})
            if processes is not None:
                processes.train(update, size)
                if (update + 1) % terms.every == 0 and not IS_EVEN:
                    processes.meet()
        if "SHORT" in os.environ:
            session.meet()
        found = {name: value[0] for name, value in session.run({name: name for name in names}).items()}
    np.savez(f"{file}.{worker}", **found)
    if processes is not None:
        for island, values in enumerate(processes.found()):
            np.savez(f"{file}.wanted.{island}", **values)


if __name__ == "__main__":
    main()
