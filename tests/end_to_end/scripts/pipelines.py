"""Where batches come from: datasets, queues, Python code and word tables inside the graph, until the data ends.

Arguments: `reference` or `resource` (the kind of variables, and TensorFlow 2's behavior) and a folder to write to.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from checks import as_written, run_checks

import parallax

kind, folder = sys.argv[1], Path(sys.argv[2])
if kind == "reference":
    tf.disable_v2_behavior()

index = tf.lookup.TextFileIndex
vocabulary = folder / "vocabulary.txt"
if not vocabulary.exists():
    vocabulary.write_text("the\nof\nand\n")

calls = []


def sentences():
    for length in range(1, 20):
        yield np.arange(length) % 11


def doubled(x):
    calls.append(len(x))
    return 2 * x


if kind == "resource":
    tf.disable_eager_execution()  # so that there is a default graph
once = tf.data.make_one_shot_iterator(tf.data.Dataset.range(7).map(lambda x: x % 11).batch(2)).get_next()
again = tf.data.make_initializable_iterator(tf.data.Dataset.range(11).shuffle(11, seed=3).batch(4))
again_ids = again.get_next()
generated = tf.data.make_one_shot_iterator(
    tf.data.Dataset.from_generator(sentences, tf.int64, [None]).padded_batch(3, [None])
).get_next()
file_name = tf.placeholder(tf.string, [], name="file_name")
lines = tf.data.make_initializable_iterator(tf.data.TextLineDataset(file_name).repeat(2).batch(2))
line = lines.get_next()
of_file = tf.lookup.StaticVocabularyTable(
    tf.lookup.TextFileInitializer(
        str(vocabulary),
        tf.string,
        index.WHOLE_LINE,
        tf.int64,
        index.LINE_NUMBER,
    ),
    num_oov_buckets=2,
)
in_graph = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant(["the", "of"]), tf.constant([1, 2], tf.int64)), 0
)
line_ids = of_file.lookup(line)
back = tf.lookup.StaticHashTable(
    tf.lookup.TextFileInitializer(
        str(vocabulary),
        tf.int64,
        index.LINE_NUMBER,
        tf.string,
        index.WHOLE_LINE,
    ),
    "?",
).lookup(line_ids)
line_numbers = in_graph.lookup(line)
queued = tf.train.batch([tf.train.limit_epochs(tf.constant(5, tf.int64), num_epochs=None)], 2, name="queued")
python = tf.py_func(doubled, [once], tf.int64)
python.set_shape([None])
emb = tf.get_variable("emb", [22, 4])
noise = tf.random_normal([], name="noise")
seen = tf.get_variable("seen", [], tf.int64, tf.zeros_initializer(), trainable=False)
count = tf.assign_add(seen, tf.size(once, out_type=tf.int64))
hits = tf.metrics.mean(tf.cast(once, tf.float32))


def training(ids, name):
    """A training op on these ids."""
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) - 1.0))
    return loss, tf.train.AdagradOptimizer(0.5).minimize(loss, name=name)


losses = {
    "once": training(once, "of_once"),
    "again": training(again_ids, "of_again"),
    "generated": training(generated, "of_generated"),
    "lines": training(line_ids, "of_lines"),
    "queued": training(queued, "of_queued"),
    "python": training(python, "of_python"),
}

config = parallax.Config(seed=11, sess_config=as_written() if kind == "reference" else None)
sess, num_workers, worker_id, _ = parallax.parallel_run(tf.get_default_graph(), parallax_config=config)


def until_the_data_ends(fetches):
    found = []
    try:
        while True:
            found.append(sess.run(fetches))
    except tf.errors.OutOfRangeError:
        return found


def what_is_not_seeded_follows_the_seed_of_the_job():
    print("drawn", sess.run(emb)[0][:2].tolist(), sess.run(noise)[0])


def a_queue_is_filled_by_its_runner():
    assert sess.run(queued)[0].tolist() == [5, 5]
    sess.run(losses["queued"])


def an_initializable_dataset_is_read_twice():
    for _ in range(2):
        assert sess.run(again.initializer) == [None]
        runs = until_the_data_ends([again_ids, *losses["again"]])
        assert [len(ids) for [ids], _, _ in runs] == [4, 4, 3]
        assert sorted(i for [ids], _, _ in runs for i in ids) == list(range(11))


def a_generator_feeds_padded_batches():
    runs = until_the_data_ends([generated, *losses["generated"]])
    assert [ids.shape for [ids], _, _ in runs][:2] == [(3, 3), (3, 6)] and len(runs) == 7


def words_become_rows_by_tables():
    sess.run(lines.initializer, {file_name: [str(vocabulary)]})
    runs = until_the_data_ends([line, line_ids, line_numbers, back, *losses["lines"]])
    assert [ids.tolist() for _, [ids], *_ in runs] == [[0, 1], [2, 0], [1, 2]]
    assert [n.tolist() for _, _, [n], *_ in runs] == [[1, 2], [0, 1], [2, 0]]
    assert all(words.tolist() == again.tolist() for [words], _, _, [again], *_ in runs)


def a_one_shot_dataset_runs_through_python_code_until_it_ends():
    before = sess.run(losses["once"][0])
    (twice,) = sess.run(python)
    assert twice.tolist() == [4, 6] and calls == [2], (twice, calls)
    sess.run([losses["python"], count, hits[1]])
    assert sess.run(seen) == [2] and sess.run(hits[0]) == [4.5]
    with sess:  # the end of the data ends the block quietly, as in a MonitoredSession
        while not sess.should_stop():
            sess.run(losses["once"])
    assert sess.should_stop() and before


run_checks(
    [
        what_is_not_seeded_follows_the_seed_of_the_job,
        a_queue_is_filled_by_its_runner,
        an_initializable_dataset_is_read_twice,
        a_generator_feeds_padded_batches,
        words_become_rows_by_tables,
        a_one_shot_dataset_runs_through_python_code_until_it_ends,
    ]
)
