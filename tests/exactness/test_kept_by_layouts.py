"""Scripts that keep gradients over several batches, by layouts: one process's mean over these batches, by examples."""

import numpy as np
import pytest
import tensorflow as tf

from parallax import Config
from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.base.errors import GraphError
from parallax.plans.plan import Layout, one_host
from tests.exactness.uneven_script import (
    BATCHES,
    apply,
    by_two,
    contrastive,
    fed,
    joined,
    model,
    normalized,
    plain,
    run_by_two,
)

v1 = tf.compat.v1


def one_process(loss, optimizer, clip):
    """Takes the mean of the gradients of an update's batches, each by its examples; sparse ones as slices."""
    with tf.Graph().as_default() as graph:
        placeholders = [fed(number) for number in range(2)]
        rows = [tf.cast(tf.shape(y)[0], tf.float64) for _, y in placeholders]
        shares = [one / tf.add_n(rows) for one in rows]
        variables, found = model(loss, placeholders)
        gradients = []
        for variable, *parts in zip(variables, *found, strict=True):
            if variable.op.name == "places":  # of ids that all batches have, the global batch has rows once
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
                    given |= joined(parts, ids, y)
                session.run(run, given)
            return {v.name: session.run(v) for v in graph.get_collection("variables")}


@pytest.mark.rotates
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


def test_what_a_batch_gives_is_written_with_every_batch():
    """Of the global batch: a moving average, as of a normalization, and a count; a count of updates is an update's."""
    with tf.Graph().as_default() as graph:
        ids, y = fed()
        variables, [gradients] = model(plain, [(ids, y)])
        average, seen, updates = (
            v1.get_variable(n, [], tf.float64, tf.zeros_initializer(), trainable=False) for n in "asu"
        )
        mean = tf.reduce_sum(y) / tf.cast(tf.size(y), tf.float64)
        written = [
            v1.assign_sub(average, 0.1 * (average - mean)),
            v1.assign_add(seen, tf.cast(tf.size(ids), tf.float64)),
        ]
        tf.group(apply("Adagrad", True, gradients, variables), v1.assign_add(updates, 1.0), *written, name="all")
    expected = {"a:0": 0.0, "s:0": 0.0, "u:0": len(BATCHES)}
    for parts in sum(BATCHES, []):
        values = np.concatenate([y for _, y in parts])
        expected["a:0"] += 0.1 * (values.mean() - expected["a:0"])
        expected["s:0"] += len(values)
    for found in run_by_two(graph, Config(accumulate_steps=2), Layout((2,)), "all"):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, err_msg=name)


def test_an_update_by_what_one_batch_has_is_refused():
    with tf.Graph().as_default() as graph:
        ids, y = fed()
        variables, [gradients] = model(plain, [(ids, y)])
        scaled = [tf.convert_to_tensor(g) * tf.reduce_max(y) for g in gradients]
        apply("Momentum", False, scaled, variables)
    analysed = analyse(graph, layouts=True)
    with pytest.raises(GraphError, match="computed from a single batch"):
        plan_for(analysed, Layout((2,)), Config(accumulate_steps=2))
