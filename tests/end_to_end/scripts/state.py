"""State that is set and read around training: restored, saved, assigned whole, averaged, trained in turns.

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

graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int32, [None], name="ids")
    words = tf.placeholder(tf.int32, [None], name="words")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [11, 4])
    words_table = tf.get_variable("words_table", [9, 3])
    parted = tf.get_variable("parted", [7, 4], partitioner=tf.fixed_size_partitioner(2))
    whole_parted = parted.as_tensor()
    weights = tf.get_variable("weights", [4, 1])
    rows = tf.nn.embedding_lookup(emb, ids)
    loss = tf.reduce_mean(tf.square(rows @ weights - 1.0))
    loss += tf.reduce_mean(tf.square(tf.nn.embedding_lookup(parted, ids % 7)))
    adam = tf.train.AdamOptimizer(0.1)
    train = adam.minimize(loss, global_step=step)
    other_loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(words_table, words) - 2.0))
    other_train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(other_loss, global_step=step)
    again_train = tf.train.GradientDescentOptimizer(0.5).minimize(
        tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, words)))
    )
    average = tf.train.ExponentialMovingAverage(0.5)
    averaged = average.apply([emb, weights])
    average_emb = average.average(emb)
    pretrained = tf.placeholder(tf.float32, [11, 4], name="pretrained")
    assign = tf.assign(emb, pretrained)
    add_one = tf.assign_add(emb, tf.ones([11, 4]))
    reset_weights = weights.initializer
    normalized = emb / tf.sqrt(tf.reduce_sum(tf.square(emb), 1, keepdims=True))
    similarity = tf.matmul(tf.nn.embedding_lookup(normalized, words), normalized, transpose_b=True)
    norm = tf.norm(emb)
    squares = tf.square(emb)
    row_norms = tf.norm(emb, axis=1)
    column_means = tf.reduce_mean(emb, 0)
    middle = emb[3:7]
    best = tf.nn.top_k(tf.reduce_sum(emb, 1), 3).indices
    transposed = tf.transpose(emb)
    saver = tf.train.Saver(max_to_keep=None)
    only_emb = tf.train.Saver([emb])
    initialize = tf.global_variables_initializer()
    slots = [adam.get_slot(v, s) for v in (emb, weights) for s in adam.get_slot_names()]

everything = [emb, words_table, weights, step, average_emb, *slots]
batch = {ids: [1, 2, 10], words: [0, 8, 8]}


def state_of(session):
    """All values, as a plain session gives them."""
    return session.run([*everything, whole_parted])


path = folder / "single"
if not path.with_suffix(".index").exists():  # the launcher comes first
    with tf.Session(graph=graph) as single:
        single.run(initialize)
        for _ in range(3):
            single.run([train, other_train], batch)
        single.run(averaged)
        saver.save(single, str(path))
        np.savez(folder / "single.npz", *state_of(single))

# One thread for all ops: nothing that waits for another rank may hold it.
config = parallax.Config(seed=11, sess_config=as_written(inter_op_parallelism_threads=1))
sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)

mine = {ids: [[worker_id, 2]], words: [[0, worker_id]]}


def all_state():
    """All values, whole."""
    return [value for (value,) in sess.run([*everything, parted])]


def equal_on_all(values):
    everyone = sess.workers.allgather(values)
    return all(np.array_equal(mine, other) for theirs in everyone for mine, other in zip(values, theirs, strict=True))


def a_checkpoint_of_one_process_is_restored():
    saver.restore(sess, str(path))
    with np.load(folder / "single.npz") as file:
        want = [file[name] for name in file.files]
    for thing, value, wanted in zip([*everything, parted], all_state(), want, strict=True):
        np.testing.assert_array_equal(value, wanted, err_msg=str(thing))
    for row in range(11):
        np.testing.assert_array_equal(sess.run(rows, {ids: [[row]]})[0][0], want[0][row])


def training_goes_on_from_it_as_one_process_would():
    same = {ids: [batch[ids]], words: [batch[words]]}
    sess.run([train, other_train], same)
    with tf.Session(graph=graph) as single:
        saver.restore(single, str(path))
        single.run([train, other_train], batch)
        want = state_of(single)
    for thing, value, wanted in zip([*everything, parted], all_state(), want, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-7, err_msg=str(thing))


def training_ops_take_turns():
    for _ in range(2):
        for op in (train, other_train, again_train):
            before = all_state()
            sess.run(op, mine)
            changed = [not np.array_equal(b, a) for b, a in zip(before, all_state(), strict=True)]
            assert changed[0] == (op is not other_train) and changed[1] == (op is other_train), (op.name, changed)
    sess.run([train, other_train, again_train], mine)
    assert equal_on_all(all_state())


def averages_follow():
    before = sess.run(average_emb)[0]
    sess.run(averaged)
    np.testing.assert_allclose(sess.run(average_emb)[0], (before + sess.run(emb)[0]) / 2, rtol=1e-5)


def a_checkpoint_of_all_ranks_is_one_of_a_single_process():
    own = folder / f"rank{worker_id}" / "model"
    own.parent.mkdir(exist_ok=True)
    saved = saver.save(sess, str(own), global_step=step)
    assert saved == f"{own}-{sess.run(step)[0]}", saved
    assert tf.train.latest_checkpoint(str(own.parent)) == saved
    want = all_state()
    with tf.Session(graph=graph) as single:
        saver.restore(single, saved)
        for thing, value, wanted in zip([*everything, parted], state_of(single), want, strict=True):
            np.testing.assert_array_equal(value, wanted, err_msg=str(thing))
    saver.save(sess, str(folder / "shared"))  # all to the same file
    sess.workers.Barrier()
    np.testing.assert_array_equal(tf.train.load_variable(str(folder / "shared"), "emb"), want[0])


def a_whole_table_is_assigned_from_a_feed():
    value = np.arange(44, dtype=np.float32).reshape(11, 4)
    (back,) = sess.run(assign, {pretrained: [value]})
    np.testing.assert_array_equal(back, value)
    np.testing.assert_array_equal(sess.run(emb)[0], value)
    np.testing.assert_array_equal(sess.run(rows, {ids: [[10, 0, 3, 10]]})[0], value[[10, 0, 3, 10]])
    assert sess.run(assign.op, {pretrained: [value + worker_id]}) == [None]
    np.testing.assert_array_equal(sess.run(emb)[0], value)  # worker 0's, on all
    np.testing.assert_array_equal(sess.run(add_one)[0], value + 1)
    only_emb.restore(sess, str(path))
    with np.load(folder / "single.npz") as file:
        np.testing.assert_array_equal(sess.run(emb)[0], file["arr_0"])


def what_evaluation_reads_of_a_table_is_whole():
    table = sess.run(emb)[0]
    unit = table / np.sqrt(np.sum(np.square(table), 1, keepdims=True))
    np.testing.assert_allclose(sess.run(norm)[0], np.linalg.norm(table), rtol=1e-6)
    found = sess.run(similarity, {words: [[0, 3 + worker_id]]})[0]
    np.testing.assert_allclose(found, unit[[0, 3 + worker_id]] @ unit.T, rtol=1e-5)
    for fetch, wanted in (
        (normalized, unit),
        (squares, table**2),
        (row_norms, np.linalg.norm(table, axis=1)),
        (column_means, table.mean(0)),
        (middle, table[3:7]),
        (best, np.argsort(-table.sum(1))[:3]),
        (transposed, table.T),
    ):
        np.testing.assert_allclose(sess.run(fetch)[0], wanted, rtol=1e-5, err_msg=fetch.name)


def one_variable_is_initialized_anew():
    assert sess.run(reset_weights) is not None
    assert equal_on_all(all_state())


with sess:
    run_checks(
        [
            a_checkpoint_of_one_process_is_restored,
            training_goes_on_from_it_as_one_process_would,
            training_ops_take_turns,
            averages_follow,
            a_checkpoint_of_all_ranks_is_one_of_a_single_process,
            a_whole_table_is_assigned_from_a_feed,
            what_evaluation_reads_of_a_table_is_whole,
            one_variable_is_initialized_anew,
        ]
    )
