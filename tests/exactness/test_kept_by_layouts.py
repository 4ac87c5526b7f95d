"""Scripts that keep gradients over several batches, by layouts: one process's mean over these batches, by examples.

The batches of an update, and workers' shares of each, are of unequal length, and some shares are empty.
"""

import numpy as np
import pytest
import tensorflow as tf

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession
from ops.exactness.transport import together
from parallax import Config
from parallax.analysis.reading import record
from parallax.analysis.reading.capture import initialization_phases
from parallax.analysis.stages import analyse, plan_for, rewrites_of
from parallax.errors import GraphError
from parallax.plans.plan import Layout, one_host
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


def apply(optimizer, clip, gradients, variables):
    if clip:
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
    return OPTIMIZERS[optimizer](0.1).apply_gradients(zip(gradients, variables, strict=True), name="train")


def one_process(loss, optimizer, clip):
    """Takes the mean of the gradients of an update's batches, each by its examples; sparse ones as slices."""
    with tf.Graph().as_default() as graph:
        placeholders = [fed(number) for number in range(2)]
        rows = [tf.cast(tf.shape(y)[0], tf.float64) for _, y in placeholders]
        shares = [one / tf.add_n(rows) for one in rows]
        variables, found = model(loss, placeholders)
        gradients = []
        for variable, *parts in zip(variables, *found, strict=True):
            if variable.op.name == "places":  # of ids that all batches have, the joined batch has rows once
                values = tf.add_n([p.values * share for p, share in zip(parts, shares, strict=True)])
                gradients.append(tf.IndexedSlices(values, parts[0].indices))
            elif isinstance(parts[0], tf.IndexedSlices):
                values = [p.values * share for p, share in zip(parts, shares, strict=True)]
                gradients.append(tf.IndexedSlices(tf.concat(values, 0), tf.concat([p.indices for p in parts], 0)))
            else:
                gradients.append(tf.add_n([p * share for p, share in zip(parts, shares, strict=True)]))
        run = apply(optimizer, clip, gradients, variables)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for update in BATCHES:
                given = {}
                for (ids, y), parts in zip(placeholders, update, strict=True):
                    given |= {ids: np.concatenate([p[0] for p in parts]), y: np.concatenate([p[1] for p in parts])}
                session.run(run, given)
            return {v.name: session.run(v) for v in graph.get_collection("variables")}


def by_two(loss, optimizer, clip, config, layout):
    native_ops()
    with tf.Graph().as_default() as graph:
        variables, [gradients] = model(loss, [fed()])
        apply(optimizer, clip, gradients, variables)
    analysed = analyse(graph, layouts=True)
    plan = plan_for(analysed, layout, config)
    rewrites = rewrites_of(analysed, plan)
    of = [Worker(rank, 2, 7, servers=plan.servers) for rank in range(2)]
    made = [transform(analysed.captured.view, rewrites, worker) for worker in of]
    reads = {v.name: graph.as_graph_element(v).name for v in graph.get_collection("variables")}
    with NamedSession(together([one.graph_def for one in made], ["train"]), v1.ConfigProto()) as session:
        job = JobInMemory(session, analysed, made)
        for phase in initialization_phases(analysed.captured):
            job.run_ops([phase] * 2)
        job.run_ops([list(one.counter_initializers) for one in made])
        for update in BATCHES:
            for parts in update:
                job.run(["train"], [{"ids:0": ids, "y:0": y} for ids, y in parts])
        values = job.run(list(reads.values()), [{}] * 2)
    return [dict(zip(reads, own, strict=True)) for own in values]


@pytest.mark.parametrize("route", ["alltoall", "allgather", "allreduce", "ps"])
@pytest.mark.parametrize("optimizer, clip", [("Adagrad", True), ("Momentum", False)])
@pytest.mark.parametrize("loss", [plain, normalized, contrastive])
def test_each_batch_counts_by_its_examples(loss, optimizer, clip, route):
    if route == "ps":
        config, layout = Config(accumulate_steps=2, run_option="PS"), one_host(2, 2)
    else:
        config, layout = Config(accumulate_steps=2, routes={"emb": route}), Layout((2,))
    expected = one_process(loss, optimizer, clip)
    for found in by_two(loss, optimizer, clip, config, layout):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_an_update_by_what_one_batch_has_is_refused():
    with tf.Graph().as_default() as graph:
        ids, y = fed()
        variables, [gradients] = model(plain, [(ids, y)])
        scaled = [tf.convert_to_tensor(g) * tf.reduce_max(y) for g in gradients]
        apply("Momentum", False, scaled, variables)
    analysed = analyse(graph, layouts=True)
    with pytest.raises(GraphError, match="computed of one of them"):
        plan_for(analysed, Layout((2,)), Config(accumulate_steps=2))
