"""The models of a race, each in one process at a tiny size."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from ops.bench.race.least import least_bytes
from ops.bench.race.models import Built, Table, model_of
from ops.bench.race.models.draws import generator, log_uniform
from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.analysis.reading.construction import record
from parallax.graph.spec import VariableClass
from parallax.plans.plan import ALLREDUCE, ALLTOALL, NO_ROUTE, one_host
from parallax.settings.config import Config

v1 = tf.compat.v1

TINY = {
    "dense": {"size": 8, "channels": 4, "groups": 2, "batch_size": 8},
    "embed": {"rows": 200, "width": 8, "ids": 32},
    "lm": {"vocabulary": 200, "width": 16, "state": 4, "batch_size": 8, "unroll": 4, "samples": 16},
    "nmt": {
        "source_words": 90,
        "target_words": 60,
        "width": 16,
        "state": 8,
        "batch_size": 8,
        "source_length": 4,
        "target_length": 4,
    },
    "recsys": {"features": 5, "most_rows": 2000, "hidden": 16, "batch_size": 32},
    "translation": {"source_words": 90, "target_words": 60, "width": 16, "state": 8, "batch_size": 8},
    "twin": {"network": "nmt", "batch_size": 4, "step_s": 0.0, "divisor": 64, "values": "real"},
    "word2vec": {"words": 200, "width": 8, "batch_size": 32},
}
every_model = pytest.mark.parametrize("name", TINY)


def built_in(graph, model, partitions=0):
    """The model in a graph, its variables cut into partitions along their first axis."""
    partitioner = v1.fixed_size_partitioner(partitions) if partitions else None
    with graph.as_default(), v1.variable_scope("", partitioner=partitioner):
        return model.build()


def losses_of(model, steps, partitions=0):
    """The losses of worker 0; in the first step they are those of the initial values."""
    graph = tf.Graph()
    built = built_in(graph, model, partitions)
    with graph.as_default():
        train_op = built.optimizer.minimize(built.loss)
        initial = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(initial)
        feeds = [{built.feeds[k]: v for k, v in model.batch(0, step).items()} for step in range(steps)]
        return [float(session.run((built.loss, train_op), feed)[0]) for feed in feeds]


@pytest.mark.rotates
@every_model
def test_the_loss_falls_and_partitions_do_not_change_the_first(name):
    model = model_of(name, **TINY[name])
    losses = losses_of(model, 20)
    assert np.all(np.isfinite(losses))
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    (cut,) = losses_of(model, 1, partitions=3)
    assert cut == pytest.approx(losses[0], rel=1e-5)  # products of matrices may add up in another order


@every_model
def test_a_batch_depends_on_worker_and_step_alone(name):
    model = model_of(name, **TINY[name])
    batches = [model.batch(worker, step) for worker, step in ((1, 2), (1, 2), (2, 1), (1, 3))]
    for feed in batches[0]:
        np.testing.assert_array_equal(batches[0][feed], batches[1][feed])
    for other in batches[2:]:
        assert any(not np.array_equal(batches[0][feed], other[feed]) for feed in batches[0])


@pytest.mark.rotates
@every_model
def test_feeds_are_placeholders_of_one_device_and_ids_are_rows(name):
    model = model_of(name, **TINY[name])
    built, batch = built_in(tf.Graph(), model), model.batch(0, 0)
    assert set(built.feeds) == set(batch)
    for feed, array in batch.items():
        assert (built.feeds[feed].shape, built.feeds[feed].dtype) == (np.shape(array), array.dtype)
    for table in model.tables:
        for feed in table.ids:
            assert 0 <= batch[feed].min() <= batch[feed].max() < table.rows


@pytest.mark.rotates
@every_model
def test_tables_are_the_variables_of_sparse_gradients(name):
    record.install()
    model, graph = model_of(name, **TINY[name]), tf.Graph()
    built = built_in(graph, model)
    with graph.as_default():
        built.optimizer.minimize(built.loss)
    spec = analyse(graph).spec
    shapes = {v.name: v.shape for v in spec.variables if v.cls is VariableClass.SPARSE}
    assert shapes == {t.name: (t.rows, t.width) if t.name != "softmax_b" else (t.rows,) for t in model.tables}


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["embed", "lm", "nmt", "translation", "word2vec"])
def test_by_default_tables_have_owners_and_all_else_is_reduced(name):
    record.install()
    model, graph = model_of(name), tf.Graph()
    built = built_in(graph, model)
    with graph.as_default():
        built.optimizer.minimize(built.loss)
    plan = plan_for(analyse(graph), one_host(8), Config())
    tables = {table.name for table in model.tables}
    routes = {v.name: v.route for v in plan.variables if v.route != NO_ROUTE}
    assert routes == {name: ALLTOALL if name in tables else ALLREDUCE for name in routes}


def test_the_default_language_model_has_the_published_proportions():
    model, graph = model_of("lm"), tf.Graph()
    built_in(graph, model)
    tables = {table.name: table for table in model.tables}
    dense = sum(v.shape.num_elements() for v in graph.get_collection("trainable_variables") if v.op.name not in tables)
    batches = [model.batch(worker, 0) for worker in range(8)]
    ids = {name: [np.concatenate([b[f].ravel() for f in table.ids]) for b in batches] for name, table in tables.items()}
    distinct = {name: np.mean([np.unique(i).size for i in of_workers]) for name, of_workers in ids.items()}
    looked_up = sum(np.mean([i.size for i in of_workers]) for of_workers in ids.values())
    assert dense / sum(distinct[name] * table.width for name, table in tables.items()) == pytest.approx(0.6, abs=0.03)
    assert 1.9 <= looked_up / sum(distinct.values()) <= 2.2


def test_drawn_negatives_are_distinct_and_lower_ones_are_more_frequent():
    draws = [log_uniform(generator(seed), 1000, 20) for seed in range(200)]
    assert all(np.unique(ids).size == 20 <= tries for ids, tries in draws)
    counts = np.bincount(np.concatenate([ids for ids, _ in draws]), minlength=1000)
    tries = np.mean([tries for _, tries in draws])
    expected = 200 * -np.expm1(tries * np.log1p(-np.log1p(1 / np.arange(1, 4)) / np.log(1001)))
    np.testing.assert_allclose(counts[:3], expected, rtol=0.1)  # of 200 draws; three deviations are about 0.1
    assert counts[:10].sum() > counts[500:].sum()


@dataclass(frozen=True)
class Counted:
    """Two tables and 10 dense parameters; worker 0 touches rows 0, 1 and 2 of `wide`, all others row 3 twice."""

    tables = (Table("wide", 100, 5, ("ids",)), Table("small", 2, 1, ("all",)))

    def build(self):
        variables = [v1.get_variable(t.name, [t.rows, t.width]) for t in self.tables]
        return Built(tf.reduce_sum(v1.get_variable("dense", [2, 5])), None, dict.fromkeys(("ids", "all"), variables))

    def batch(self, worker, step):
        ids = [0, 1, 1, 2] if worker == 0 else [3, 3]
        return {"ids": np.array(ids), "all": np.array([0, 1])}


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize(
    ("hosts", "workers", "dense", "wide", "small"),
    [
        (1, 2, 0.0, 0.0, 0.0),
        (
            2,
            1,
            40.0,
            44.0,
            8.0,
        ),  # half of 2 * 40; of a mean of 2 rows of 4 + 2 * 20; of 2 * 8, as rows would cost 2 * 12
        (2, 2, 40.0, 55.0, 8.0),  # 4 rows of one host, 1 of the other
        (4, 1, 60.0, 49.5, 12.0),  # three quarters; 3, 1, 1 and 1 rows
    ],
)
def test_least_bytes_are_those_counted_by_hand(partitions, hosts, workers, dense, wide, small):
    graph = tf.Graph()
    built_in(graph, Counted(), partitions)
    least = least_bytes(Counted(), graph, hosts, workers)
    assert least.bytes == dense + wide + small
    assert least.formula.endswith(f" = {least.bytes:,.0f} bytes")
    assert "40 dense" in least.formula and "8 for all of small" in least.formula


def test_an_unknown_model_is_refused_with_the_known_ones():
    known = "dense, embed, generated, lm, nmt, recsys, translation, twin, word2vec"
    with pytest.raises(ValueError, match=f"one of {known}, got 'x'"):
        model_of("x")
