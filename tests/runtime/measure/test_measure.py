"""Profiles of whole graphs from sample batches, in this process: no job, no cluster."""

import mmap
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from parallax import shard
from parallax.analysis.graph_to_plan import analyse
from parallax.analysis.reading.construction import record
from parallax.base.errors import ConfigError, GraphError
from parallax.runtime.measure import compute
from parallax.runtime.measure.memory import free_bytes, peak_bytes, reset_peak
from parallax.runtime.measure.options import measure_options
from parallax.runtime.measure.samples import profile_samples
from parallax.settings.config import Config
from parallax.settings.environment import Settings

v1 = tf.compat.v1
record.install()

ROWS, WORKERS, STEPS = 50, 3, 4
FEEDS, IDS_ONLY = (f"{Path(__file__).resolve()}:{name}" for name in ("zipf_feeds", "ids_only"))


def zipf_feeds(step, worker, num_workers):
    """Batches of Zipf ids; named as a user would."""
    draw = np.random.default_rng([step, worker])
    return {"ids": np.minimum(draw.zipf(1.3, 12), ROWS) - 1, "rows:0": draw.integers(0, ROWS, [4, 2])}


def ids_only(step, worker, num_workers):
    return {"ids": zipf_feeds(step, worker, num_workers)["ids"]}


def profile_of(build, workers=WORKERS, **wanted):
    """The profile and the notes of a graph that `build` makes."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    settings = Settings(steps=STEPS, **wanted)
    return profile_samples(graph, analyse(graph), workers, Config(seed=5), settings)


def table(name, **options):
    return v1.get_variable(name, [ROWS, 2], initializer=v1.zeros_initializer(), **options)


def train(*outputs):
    loss = tf.add_n([tf.reduce_sum(tf.square(output - 1.0)) for output in outputs])
    return v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=v1.train.get_or_create_global_step())


def expected(rows_of, workers=WORKERS, steps=STEPS):
    """(ids, distinct rows, those of all workers) of batches drawn again."""
    batches = [[np.concatenate(rows_of(zipf_feeds(s, w, workers))) for w in range(workers)] for s in range(steps)]
    return (
        np.mean([len(b) for step in batches for b in step]),
        np.mean([len(set(b)) for step in batches for b in step]),
        np.mean([len(set(np.concatenate(step))) for step in batches]),
    )


def counts(profile, name):
    found = profile.table(name)
    return found.ids, found.touched_rows, found.joined_rows[-1][1]


def tables_of_all_kinds():
    """Fed ids, two lookups of one table, a partitioned variable, one gathered by Nd, sampled candidates."""
    ids = v1.placeholder(tf.int64, [None], name="ids")
    rows = v1.placeholder(tf.int32, [None, 2], name="rows")
    tied, nested = table("tied"), table("nested", use_resource=True)
    parts = table("parts", partitioner=v1.fixed_size_partitioner(3))
    weights, biases = table("weights"), v1.get_variable("biases", [ROWS], initializer=v1.zeros_initializer())
    hidden = tf.nn.embedding_lookup(tied, ids)
    sampled = v1.nn.sampled_softmax_loss(weights, biases, ids[:, None], hidden, 7, ROWS)
    divided = tf.nn.embedding_lookup(list(parts), ids)
    train(hidden, tf.nn.embedding_lookup(tied, rows), divided, tf.gather_nd(nested, rows[:, :1]), sampled)


def test_rows_of_every_kind_of_lookup_are_counted():
    profile, notes = profile_of(tables_of_all_kinds, feeds=FEEDS)
    assert (profile.steps, profile.source, notes) == (STEPS, "sample batches", ())
    assert [t.name for t in profile.tables] == ["biases", "nested", "parts", "tied", "weights"]
    assert counts(profile, "tied") == expected(lambda b: [b["ids"], b["rows:0"].ravel()])
    assert counts(profile, "parts") == expected(lambda b: [b["ids"]])
    assert counts(profile, "nested") == expected(lambda b: [b["rows:0"][:, 0]])
    assert [k for k, _ in profile.table("tied").joined_rows] == [1, 2, 3]
    labels, candidates = profile.table("parts"), profile.table("weights")
    assert candidates.ids == 12 + 7 and candidates.touched_rows > max(labels.touched_rows, 7)
    assert candidates.joined_rows[-1][1] > labels.joined_rows[-1][1]
    assert profile.table("biases").joined_rows == candidates.joined_rows, "one draw for both"
    assert profile.compute_s is None and profile.memory_bytes is None
    again, _ = profile_of(tables_of_all_kinds, feeds=FEEDS)
    assert again == profile, "what is drawn follows the seed"


def test_each_worker_reads_its_own_shard_words_are_looked_up_and_queues_filled():
    def build():
        data = shard.shard(tf.data.Dataset.range(24)).batch(2)
        once = v1.data.make_one_shot_iterator(data).get_next()
        words = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "d"]).repeat().batch(3)
        again = v1.data.make_initializable_iterator(words)
        known = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b", "c"]), tf.constant([3, 4, 5], tf.int64))
        word_ids = tf.lookup.StaticHashTable(known, 0).lookup(again.get_next())
        moved = v1.get_variable("moved", [], tf.int64, v1.constant_initializer(10), trainable=False)
        queued = v1.train.batch([tf.constant(7, tf.int64) + moved], 5)
        train(*(tf.nn.embedding_lookup(table(n), i) for n, i in (("r", once), ("w", word_ids), ("q", queued))))

    profile, notes = profile_of(build)
    assert notes == ()
    assert profile.table("r").joined_rows == ((1, 2.0), (2, 4.0), (3, 6.0))
    assert (profile.table("w").touched_rows, profile.table("w").joined_rows[-1]) == (3.0, (3, 3.0))
    assert (profile.table("q").ids, profile.table("q").touched_rows) == (5.0, 1.0)
    assert profile.table("q").busiest_share == 3.0, "row 17 only"
    ended, notes = profile_of(build, workers=8)
    assert (ended.steps, notes) == (2, ("the data of worker 0 ended after 2",))
    assert ended.table("r").joined_rows == ((1, 1.5), (2, 3.0), (4, 6.0), (8, 12.0))


def test_ids_that_training_makes_are_left_out_and_said():
    def build():
        ids = v1.placeholder(tf.int64, [None], name="ids")
        scores = v1.get_variable("scores", [ROWS], initializer=v1.zeros_initializer())
        hardest = tf.math.top_k(scores, 3)[1]
        train(tf.nn.embedding_lookup(table("fed"), ids), tf.nn.embedding_lookup(table("mined"), hardest), scores)

    profile, notes = profile_of(build, feeds=IDS_ONLY)
    assert [t.name for t in profile.tables] == ["fed"]
    assert notes == (
        "mined: not measured, its ids depend on variable scores, which training changes: see parallax run --measure",
    )


def fed_and_read():
    """A table of fed ids, and one of a dataset that either of two ops begins."""
    ids = v1.placeholder(tf.int64, [None], name="ids")
    iterator = v1.data.Iterator.from_structure(tf.int64, [None])
    for name, first in (("begin_training", 0), ("begin_testing", 20)):
        iterator.make_initializer(tf.data.Dataset.range(first, first + 9).batch(2), name=name)
    train(tf.nn.embedding_lookup(table("fed"), ids), tf.nn.embedding_lookup(table("read"), iterator.get_next()))


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        (None, "A profile needs values for the placeholders (ids): pass --feeds FILE.py:FUNCTION"),
        (f"{Path(__file__).resolve()}:feeds_of_rows", "feeds_of_rows must feed every placeholder that is needed, but "),
        (f"{Path(__file__).resolve()}:outside", "Worker 1 looks up id 50 in step 2, but table 'fed' has only 50 rows"),
        (f"{Path(__file__).resolve()}:nowhere", "tensor of the graph, got 'there'"),
    ],
)
def test_feeds_that_are_missing_or_wrong_are_named_with_the_remedy(feeds, message):
    with pytest.raises((ConfigError, GraphError), match=re.escape(message)):
        profile_of(fed_and_read, feeds=feeds, init="begin_training")


def feeds_of_rows(step, worker, num_workers):
    return {}


def outside(step, worker, num_workers):
    return {"ids": np.array([1, ROWS if (step, worker) == (2, 1) else 0])}


def nowhere(step, worker, num_workers):
    return {"there": 0}


def test_an_iterator_begun_by_either_of_two_ops_takes_the_named_one():
    with pytest.raises(ConfigError, match=r"has 2 \(begin_training, begin_testing\).* with --init"):
        profile_of(fed_and_read, feeds=IDS_ONLY)
    profile, _ = profile_of(fed_and_read, feeds=IDS_ONLY, init="begin_testing")
    assert profile.table("read").joined_rows[-1] == (3, 2.0), "nothing shards it: all workers read the same"


def test_a_queue_that_nobody_fills_is_refused_and_not_waited_for():
    def build():
        queue = tf.queue.FIFOQueue(5, [tf.int64], [[3]], name="own")
        train(tf.nn.embedding_lookup(table("read"), queue.dequeue()))

    with pytest.raises(GraphError, match="must have a queue runner that fills it, but 'own' has none"):
        profile_of(build)


def test_steps_of_one_process_are_timed_on_variables_that_are_thrown_away():
    profile, _ = profile_of(tables_of_all_kinds, feeds=FEEDS, compute=True)
    assert profile.compute_s > 0 and profile.memory_bytes > 0


def test_variables_that_do_not_fit_into_memory_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(compute, "free_bytes", lambda: 4000)
    message = "slots, 3.61 kB, and the largest twice during initialization, 4.01 kB in all, but only 4 kB are free"
    with pytest.raises(GraphError, match=re.escape(message)):
        profile_of(tables_of_all_kinds, feeds=FEEDS, compute=True)


def test_what_a_run_is_asked_to_measure():
    assert measure_options(Settings()) is None
    wish = measure_options(Settings(measure="p.json", measure_steps=7, cluster="c"))
    assert (wish.path, wish.steps, wish.cluster) == (Path("p.json").absolute(), 7, "c")
    with pytest.raises(ConfigError, match="--measure-steps 7 needs --measure FILE"):
        measure_options(Settings(measure_steps=7))


def test_memory_is_what_the_kernel_tells():
    assert reset_peak()
    before = peak_bytes()
    # A mapping of its own: what is freed to the allocator may stay in the process.
    block = mmap.mmap(-1, 40_000_000)
    block[:: mmap.PAGESIZE] = bytes(-(-len(block) // mmap.PAGESIZE))
    assert peak_bytes() - before >= 0.9 * len(block) and free_bytes() > 0
    block.close()
    assert reset_peak() and peak_bytes() - before < 20_000_000
