"""Rows of sparse gradients by layouts: the global batch's mean, or their sum over the workers (average_sparse)."""

import numpy as np
import pytest
import tensorflow as tf

from parallax import Config
from parallax.plans.plan import Layout, one_host
from tests.exactness.uneven_script import BATCHES, apply, by_two, contrastive, fed, joined, model, plain

v1 = tf.compat.v1


def one_process(loss, optimizer, clip, factor):
    with tf.Graph().as_default() as graph:
        ids, y = fed()
        variables, [gradients] = model(loss, [(ids, y)])
        gradients = [
            tf.IndexedSlices(factor * g.values, g.indices) if isinstance(g, tf.IndexedSlices) else g for g in gradients
        ]
        run = apply(optimizer, clip, gradients, variables)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for update in BATCHES:
                for parts in update:
                    session.run(run, joined(parts, ids, y))
            return {v.name: session.run(v) for v in graph.get_collection("variables")}


@pytest.mark.rotates
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("route", ["alltoall", "allgather", "allreduce", "ps"])
@pytest.mark.parametrize("loss, optimizer, clip", [(plain, "Adagrad", True), (contrastive, "Momentum", False)])
def test_rows_are_those_of_the_joined_batch_or_as_many_times_as_there_are_workers(
    loss, optimizer, clip, route, average
):
    if route == "ps":
        config, layout = Config(average_sparse=average, run_option="PS"), one_host(2, 2)
    else:
        config, layout = Config(average_sparse=average, routes={"emb": route}), Layout((2,))
    expected = one_process(loss, optimizer, clip, 1.0 if average else 2.0)
    for found in by_two(loss, optimizer, clip, config, layout):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)
