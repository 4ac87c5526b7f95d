"""What a session takes and gives: every kind of fetch and feed, errors, and what stands around a loop.

Arguments: `reference` or `resource` (the kind of variables, and TensorFlow 2's behavior) and a folder to write to.
"""

import os
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from checks import as_written, refused, run_checks

import parallax

kind, folder = sys.argv[1], Path(sys.argv[2])
if kind == "reference":
    tf.disable_v2_behavior()

graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int32, [None], name="ids")
    other_ids = tf.placeholder(tf.int64, [None, 2], name="other_ids")
    labels = tf.placeholder_with_default(np.ones([2, 1], np.float32), [None, 1], name="labels")
    factor = tf.placeholder_with_default(1.0, [], name="factor")
    rate = tf.placeholder_with_default(0.1, [], name="rate")
    sparse = tf.sparse_placeholder(tf.float32, name="sparse")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [11, 4])
    read = emb.read_value()
    second = tf.get_variable("second", [7, 4])
    parted = tf.get_variable("parted", [10, 4], partitioner=tf.fixed_size_partitioner(3))
    across = tf.get_variable("across", [4, 6], partitioner=tf.fixed_size_partitioner(2, axis=1))
    weights = tf.get_variable("weights", [4, 1])
    rows = tf.nn.embedding_lookup(emb, ids, name="rows")
    second_rows = tf.nn.embedding_lookup(second, other_ids, name="second_rows")
    parted_rows = tf.nn.embedding_lookup(parted, ids, partition_strategy="div", name="parted_rows")
    first_loss = factor * tf.reduce_mean(tf.square(rows @ weights - labels))
    loss = first_loss + tf.reduce_mean(tf.square(second_rows)) + tf.reduce_mean(tf.square(parted_rows))
    loss += tf.reduce_sum(tf.square(tf.concat(list(across), 1)))
    optimizer = tf.train.AdamOptimizer(rate)
    gradients = optimizer.compute_gradients(loss)
    train = optimizer.apply_gradients(gradients, global_step=step)
    emb_slices = next(g for g, v in gradients if v is emb)
    scores = tf.matmul(emb, weights, name="scores")
    total = tf.sparse_reduce_sum(sparse)
    doubled = tf.sparse.SparseTensor(sparse.indices, 2 * sparse.values, sparse.dense_shape)
    summary = tf.summary.merge([tf.summary.scalar("loss", loss), tf.summary.histogram("emb", emb)])
    printed = tf.print("printed loss", loss, output_stream=sys.stdout)
    words = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([4, 9], tf.int32)), -1
    )
    word = tf.placeholder(tf.string, [None], name="word")
    word_ids = words.lookup(word)
    noise = tf.random_uniform([3], name="noise")
    dropped = tf.nn.dropout(tf.ones([64]), rate=0.5)
    initialize = tf.global_variables_initializer()
    slots = {(v.op.name, name): optimizer.get_slot(v, name) for v in (emb, weights) for name in ("m", "v")}
    elsewhere = tf.Graph()
    with elsewhere.as_default():
        foreign = tf.constant(1.0, name="foreign")

with tf.Session(graph=graph) as single:
    single.run(initialize)
    initial = single.run({"emb": emb, "second": second, "weights": weights, "m": slots["emb", "m"]})
    initial["parted"] = single.run(parted.as_tensor())
    initial["across"] = single.run(across.as_tensor())

# With one kind of variables TensorFlow rewrites the graph for each set of fetches, as usual, which takes long.
config = parallax.Config(seed=11, sess_config=as_written() if kind == "reference" else None)
sess, num_workers, worker_id, replicas = parallax.parallel_run(graph, parallax_config=config)

Pair = namedtuple("Pair", ["left", "right"])
batch = {ids: [[worker_id, 2]], other_ids: [[[1, worker_id + 2]]]}


def equal_on_all(value):
    return all(np.array_equal(np.asarray(value), other) for other in sess.workers.allgather(np.asarray(value)))


def the_call_says_who_this_is():
    assert (num_workers, replicas) == (2, 1)
    assert worker_id == int(os.environ["OMPI_COMM_WORLD_RANK"])
    assert (sess.workers.rank, sess.workers.size) == (worker_id, num_workers)
    assert sess.graph is graph


def initial_values_are_those_of_one_process():
    found = {n: sess.run(v)[0] for n, v in (("emb", emb), ("second", second), ("weights", weights))}
    found |= {"m": sess.run(slots["emb", "m"])[0], "parted": sess.run(parted)[0], "across": sess.run(across)[0]}
    for name, value in initial.items():
        assert found[name].shape == value.shape, (name, found[name].shape)
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def a_variable_is_fetched_whole_whatever_it_is_called():
    whole = initial["emb"]
    for fetch in (emb, "emb:0", emb.name, emb.op.outputs[0], read):
        np.testing.assert_array_equal(sess.run(fetch)[0], whole, err_msg=str(fetch))
    np.testing.assert_array_equal(emb.eval(session=sess)[0], whole)


def fetches_come_back_as_they_were_asked_for():
    found = sess.run({"l": [loss, (train, "ids:0")], "p": Pair(weights, "rows:0")}, batch)
    assert list(found) == ["l", "p"] and isinstance(found["l"][1], tuple) and isinstance(found["p"], Pair)
    assert found["l"][1][0] == [None]
    assert found["l"][1][1][0].tolist() == [worker_id, 2]
    assert found["p"].left[0].shape == (4, 1) and found["p"].right[0].shape == (2, 4)
    assert sess.run([]) == [] and sess.run({}) == {} and sess.run(()) == ()
    assert sess.run(noise.op.name) == [None] and len(sess.run(noise)) == 1


def inside_with_eval_and_run_give_and_take_plain_values():
    assert factor.eval({factor: 3.0}) == 3.0 and tf.get_default_session().run(step) == sess.run(step)[0]
    assert rows.eval({ids: [1, 2]}).shape == (2, 4) and emb.eval().shape == (11, 4)
    assert weights.op.run() is None


def feeds_may_be_lists_values_names_and_defaults():
    value = [1, 5, 1]
    want = sess.run(emb)[0][value]
    for feed in ([value], [np.array(value)], np.array(value), (value,)):
        np.testing.assert_array_equal(sess.run(rows, {ids: feed})[0], want)
    np.testing.assert_array_equal(sess.run(rows, {"ids:0": [value]})[0], want)
    plain, scaled = (sess.run(first_loss, {**batch, factor: [f]})[0] for f in (1.0, 3.0))
    np.testing.assert_allclose(scaled, 3 * plain, rtol=1e-6)
    np.testing.assert_allclose(sess.run(first_loss, batch)[0], plain, rtol=1e-6)
    other = sess.run(first_loss, {**batch, labels: [np.zeros([2, 1], np.float32)]})[0]
    assert not np.allclose(other, plain)
    # A tensor in the middle of the graph is fed as well: then nothing behind it runs.
    assert sess.run(first_loss, {rows: [np.zeros([2, 4], np.float32)]})[0] == 1.0


def ids_of_any_shape_and_none_at_all_are_looked_up():
    assert sess.run(rows, {ids: [[]]})[0].shape == (0, 4)
    only_one = [3] if worker_id else []
    assert sess.run(rows, {ids: [only_one]})[0].shape == (len(only_one), 4)
    assert sess.run(second_rows, {other_ids: [np.zeros([3, 2], np.int64)]})[0].shape == (3, 2, 4)


def a_lookup_does_not_ask_for_the_feeds_of_another_that_shares_its_exchange():
    assert sess.run(rows, {ids: [[1]]})[0].shape == (1, 4)
    assert sess.run(second_rows, {other_ids: [[[1, 2]]]})[0].shape == (1, 2, 4)
    assert sess.run(parted_rows, {ids: [[9, 0]]})[0].shape == (2, 4)
    np.testing.assert_array_equal(sess.run(parted_rows, {ids: [[9, 0]]})[0], sess.run(parted)[0][[9, 0]])


def sparse_things_are_fed_and_fetched_whole():
    value = tf.SparseTensorValue([[0, 1], [2, 0]], [1.5, 2.5], [3, 2])
    assert sess.run(total, {sparse: [value]}) == [4.0]
    assert sess.run(total, {sparse: value}) == [4.0]
    (back,) = sess.run(doubled, {sparse: [value]})
    assert isinstance(back, tf.SparseTensorValue) and back.values.tolist() == [3.0, 5.0]
    (found,) = sess.run(emb_slices, batch)
    assert found.indices.tolist() == [worker_id, 2]
    assert found.values.shape == (2, 4)


def what_breaks_a_rule_is_refused():
    error = parallax.SessionError
    refused(error, "one entry per replica", lambda: sess.run(rows, {ids: [1, 2, 3]}))
    refused(error, "one entry per replica", lambda: sess.run(rows, {ids: []}))
    refused(error, "foreign", lambda: sess.run(foreign))
    refused(error, "foreign", lambda: sess.run(loss, {foreign: [1.0]}))
    refused(error, "nowhere", lambda: sess.run("nowhere:0"))
    refused(error, "nowhere", lambda: sess.run(rows, {"nowhere:0": [1]}))
    refused(error, "operation", lambda: sess.run(rows, {"ids": [[1]]}))
    refused(error, "None", lambda: sess.run([loss, None], batch))
    refused(error, "partial_run", lambda: sess.partial_run_setup([loss]))
    refused(error, "feed_dict", lambda: sess.run(rows, [1, 2]))
    refused(error, "its rows are sharded", lambda: sess.run(rows, {**batch, read: [np.zeros([11, 4], np.float32)]}))
    with graph.as_default():
        late = tf.constant(1.0, name="late")
    refused(
        error,
        "'late:0' can be neither fetched nor fed, since it is not in the graph that was passed to parallel_run: it was "
        "added later",
        lambda: sess.run(late),
    )
    refused(error, "once", lambda: parallax.parallel_run(graph))
    refused(tf.errors.InvalidArgumentError, "ids", lambda: sess.run(ids))
    refused(ValueError, "shape", lambda: sess.run(rows, {ids: [[[1]]]}))


def sums_of_a_sharded_table_are_had_by_all_ranks():
    want = sess.run(emb)[0] @ sess.run(weights)[0]
    np.testing.assert_allclose(sess.run(scores)[0], want, rtol=1e-5)


def tables_of_words_are_filled():
    assert sess.run(word_ids, {word: [["b", "a", "c"]]})[0].tolist() == [9, 4, -1]


def summaries_prints_and_traces_work():
    writer = tf.summary.FileWriter(str(folder / f"summaries{worker_id}"), sess.graph)
    writer.add_summary(sess.run(summary, batch)[0], sess.run(step)[0])
    writer.close()
    assert sess.run(printed, batch) == [None]
    metadata = tf.RunMetadata()
    sess.run(loss, batch, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    assert metadata.step_stats.dev_stats


def ranks_train_and_hold_the_same():
    before = sess.run(step)[0]
    assert tf.train.global_step(sess, step) == before
    for _ in range(3):
        sess.run(train, batch)
    assert sess.run(step) == [before + 3]
    for thing in (emb, second, parted, across, weights, *slots.values()):
        value = sess.run(thing)[0]
        assert equal_on_all(value) and np.isfinite(value).all(), thing
    assert np.abs(sess.run(emb)[0] - initial["emb"]).max() > 0.01


def randomness_differs_between_ranks():
    for thing in (noise, dropped):
        mine = sess.run(thing)[0]
        assert not equal_on_all(mine)
    print("noise", sess.run(noise)[0].tolist())


def running_the_initializer_again_starts_anew():
    sess.run(initialize)
    assert equal_on_all(sess.run(emb)[0]) and sess.run(step) == [0]
    np.testing.assert_array_equal(sess.run(slots["emb", "m"])[0], initial["m"])


def a_closed_session_stays_closed():
    assert not sess.should_stop()
    with sess as same:
        assert same is sess
        sess.close()
    sess.close()
    assert sess.should_stop()
    refused(Exception, "closed", lambda: sess.run(noise))


with sess:
    run_checks(
        [
            the_call_says_who_this_is,
            initial_values_are_those_of_one_process,
            a_variable_is_fetched_whole_whatever_it_is_called,
            fetches_come_back_as_they_were_asked_for,
            inside_with_eval_and_run_give_and_take_plain_values,
            feeds_may_be_lists_values_names_and_defaults,
            ids_of_any_shape_and_none_at_all_are_looked_up,
            a_lookup_does_not_ask_for_the_feeds_of_another_that_shares_its_exchange,
            sparse_things_are_fed_and_fetched_whole,
            what_breaks_a_rule_is_refused,
            sums_of_a_sharded_table_are_had_by_all_ranks,
            tables_of_words_are_filled,
            summaries_prints_and_traces_work,
            ranks_train_and_hold_the_same,
            randomness_differs_between_ranks,
            running_the_initializer_again_starts_anew,
            a_closed_session_stays_closed,
        ]
    )
