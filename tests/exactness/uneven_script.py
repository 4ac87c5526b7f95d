"""A script's graph of lookups and a dense layer, trained by two workers in memory, by layouts.

The batches of an update, and workers' shares of each, are of unequal length, and some shares are empty.
"""

import numpy as np
import tensorflow as tf

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession
from ops.exactness.transport import combine_workers
from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.analysis.reading.capture import initialization_phases
from parallax.analysis.reading.construction import record
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform

record.install()
v1 = tf.compat.v1
CUTS = [[(3, 1), (0, 5)], [(2, 2), (4, 0)], [(1, 6), (2, 2)]]
"""For each update, for each of its batches, how many examples each worker has."""
_random = np.random.RandomState(0)
BATCHES = [[[(_random.randint(0, 11, n), _random.randn(n)) for n in cut] for cut in update] for update in CUTS]
OPTIMIZERS = {"Adagrad": v1.train.AdagradOptimizer, "Momentum": lambda rate: v1.train.MomentumOptimizer(rate, 0.9)}


def plain(h, y):
    return tf.reduce_mean(tf.square(h[:, 0] - y))


def normalized(h, y):
    mean, variance = tf.nn.moments(h, [0])
    return plain((h - mean) / tf.sqrt(variance + 0.1), y)


def contrastive(h, y):
    labels = tf.range(tf.shape(h)[0])
    logits = h @ tf.transpose(h) + y[:, None]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def model(loss, batches):
    """The gradients of each batch, of one model."""
    emb = v1.get_variable("emb", [11, 4], initializer=v1.random_normal_initializer(seed=1), dtype=tf.float64)
    w = v1.get_variable("w", [4, 3], initializer=v1.random_normal_initializer(seed=2), dtype=tf.float64)
    places = v1.get_variable("places", [2, 4], initializer=v1.random_normal_initializer(seed=3), dtype=tf.float64)
    found = []
    for ids, y in batches:
        h = tf.nn.embedding_lookup(emb, ids) + tf.reduce_sum(tf.nn.embedding_lookup(places, [1, 1]), 0)
        value = loss(tf.tanh(h @ w), y) + 0.1 * tf.nn.l2_loss(w)
        found.append(tf.gradients(value, [emb, w, places]))
    return (emb, w, places), found


def fed(number=""):
    return v1.placeholder(tf.int64, [None], f"ids{number}"), v1.placeholder(tf.float64, [None], f"y{number}")


def joined(parts, ids, y):
    """What one process is fed in place of what workers are."""
    return {ids: np.concatenate([part[0] for part in parts]), y: np.concatenate([part[1] for part in parts])}


def apply(optimizer, clip, gradients, variables):
    if clip:
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
    return OPTIMIZERS[optimizer](0.1).apply_gradients(zip(gradients, variables, strict=True), name="train")


def by_two(loss, optimizer, clip, config, layout):
    with tf.Graph().as_default() as graph:
        variables, [gradients] = model(loss, [fed()])
        apply(optimizer, clip, gradients, variables)
    return run_by_two(graph, config, layout)


def run_by_two(graph, config, layout, fetched="train"):
    """What each of two workers has of a graph's variables when it has run something of it with every batch."""
    native_ops()
    analysed = analyse(graph, layouts=True)
    plan = plan_for(analysed, layout, config)
    rewrites = rewrites_of(analysed, plan)
    of = [Worker(rank, 2, 7, servers=plan.servers) for rank in range(2)]
    made = [transform(analysed.captured.view, rewrites, worker) for worker in of]
    reads = {v.name: graph.as_graph_element(v).name for v in graph.get_collection("variables")}
    with NamedSession(combine_workers([one.graph_def for one in made], [fetched]), v1.ConfigProto()) as session:
        job = JobInMemory(session, analysed, made)
        for phase in initialization_phases(analysed.captured):
            job.run_ops([phase] * 2)
        job.run_ops([list(one.counter_initializers) for one in made])
        for update in BATCHES:
            for parts in update:
                job.run([fetched], [{"ids:0": ids, "y:0": y} for ids, y in parts])
        values = job.run(list(reads.values()), [{}] * 2)
    return [dict(zip(reads, own, strict=True)) for own in values]
