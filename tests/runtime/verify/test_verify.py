"""What `parallax verify` calls equal, noise and different: on arrays, and on an attention model broken on purpose."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse
from parallax.analysis.planner import make_plan
from parallax.analysis.reading.construction import record
from parallax.base.errors import ConfigError, GraphError, ParallaxError
from parallax.graph.shard import shard
from parallax.plans.plan import PlanConstraints, one_host
from parallax.runtime.verify.batches_of_graph import concatenate_read, find_batches_of
from parallax.runtime.verify.claim_records import save, walk_of
from parallax.runtime.verify.island_processes import MET, UNMET
from parallax.runtime.verify.one_process import OneProcess, check_fits, concatenate_batches
from parallax.runtime.verify.table import FOLDED_FROM, join_islands, status, table_text, verdict_text
from parallax.runtime.verify.verdicts import MARGIN, OTHERS, VARIABLES, Verdict, judge, measure
from parallax.runtime.verify.verified_steps import check_comparable
from parallax.runtime.worker.session.feeds import read_feeds, train_op
from tests.mutations import for_all, mutated_bytes

v1 = tf.compat.v1
TOLERANCE = 1e-5
STEPS, ROWS, WORDS, WIDTH = 5, 12, 6, 8


def one_array(change, *errors, noise=0.0, value=1.0, kind=VARIABLES, name="x"):
    """An array of 4 elements around `value` that changes by `change` each, and what workers' copies differ by."""
    before = np.full(4, value, np.float64)
    after = before + change
    return measure(name, kind, before, after, noise, [after + error for error in errors])


def verdicts(*arrays):
    return [one.verdict.value for one in judge(arrays, TOLERANCE)]


def test_a_variable_that_is_left_out_is_found_however_small_its_change_is_beside_its_value():
    assert verdicts(one_array(1e-8, -1e-8, -1e-8)) == ["NOT equal"]


def test_a_wrong_copy_of_any_worker_is_found_and_named():
    (found,) = judge([one_array(0.1, 0.0, 0.0, 0.05)], TOLERANCE)
    assert (found.verdict, found.worker, round(found.error, 3)) == (Verdict.DIFFERENT, 2, 0.5)


def test_an_array_that_one_process_repeats_only_roughly_is_noise_if_the_error_is_no_larger():
    assert verdicts(one_array(0.1, 0.2, 0.2, noise=0.1)) == ["noise"]
    assert verdicts(one_array(0.1, 4.0, 4.0, noise=0.1)) == ["NOT equal"]


def test_noise_must_be_the_same_on_all_workers():
    assert verdicts(one_array(0.1, 0.2, -0.1, noise=0.1)) == ["NOT equal: workers differ"]


def test_noise_that_would_hide_no_workers_part_is_allowed_for():
    assert verdicts(one_array(0.1, 1e-4, 1e-4, noise=1e-4)) == ["equal"]


def test_what_one_process_does_not_change_is_held_against_the_largest_change_of_its_kind():
    still = [one_array(0.0, error, error, value=0.0, name=str(error)) for error in (1e-18, 1e-12)]
    assert verdicts(*still, one_array(0.1, 0.0, 0.0)) == ["noise", "NOT equal", "equal"]


def test_integers_must_be_equal_and_values_finite():
    counted = measure("step", OTHERS, np.int64(0), np.int64(5), 0.0, [np.int64(5), np.int64(10)])
    endless = measure("x", OTHERS, np.zeros(2), np.ones(2), 0.0, [np.ones(2), np.array([1.0, np.nan])])
    assert verdicts(counted, endless) == ["NOT equal", "NOT equal"]


def test_a_table_folds_what_is_equal_and_shows_the_rest_by_name():
    many = [one_array(0.1, 0.0, name=f"layer/{number}") for number in range(FOLDED_FROM)]
    judged = judge([*many, one_array(0.1, 0.05, name="wrong"), one_array(0.1, 0.2, noise=0.1, name="loose")], TOLERANCE)
    lines = table_text(judged, ["count"]).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["variable", "wrong", "loose", "40 others", "count"]
    assert lines[1].endswith("5.00e-01      1.00e-05  NOT equal (worker 0)"), lines[1]
    assert "are NOT equal after 5 steps: 1 of 42 variables differ, 1 of 42 is rounding" in verdict_text(
        judged, "2 workers and one process", 5, 1e-5
    )
    assert (status(judged), status(judged[:3]), status(judged[-1:])) == (1, 0, 1)


def test_the_verdicts_of_islands_are_joined_and_name_those_that_differ():
    equal, wrong = (judge([one_array(0.1, error, name="w")], TOLERANCE) for error in (0.0, 0.05))
    found, text = join_islands({(UNMET, 0): equal, (UNMET, 1): wrong, (MET, 0): wrong, (MET, 1): wrong}, 2)
    assert [(one.name, one.verdict, one.worker) for one in found] == [("w", Verdict.DIFFERENT, 2)]
    assert text == "Not equal to its process before the first meeting: island 1\n"
    found, text = join_islands({(UNMET, 0): equal, (UNMET, 1): equal, (MET, 0): wrong, (MET, 1): equal}, 2)
    assert (found[0].worker, text) == (0, "Equal before the first meeting; not equal after the last: island 0\n")
    assert join_islands({(UNMET, 0): equal, (MET, 0): equal}, 2) == (equal, "")


def attention(optimizer, broken=None, factor=1.0):
    """An attention layer, whose key bias has a true gradient of 0; one variable's gradient may be wrong by a factor."""
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(3)
        ids = v1.placeholder(tf.int32, [None, WORDS], name="ids")
        labels = v1.placeholder(tf.float32, [None], name="labels")

        def dense(name, x, width):
            kernel = v1.get_variable(f"{name}/kernel", [WIDTH, width], initializer=v1.random_normal_initializer(0, 0.1))
            return tf.tensordot(x, kernel, 1) + v1.get_variable(f"{name}/bias", [width], initializer=tf.zeros)

        table = v1.get_variable("table", [20, WIDTH], initializer=v1.random_normal_initializer(0, 0.1))
        x = tf.gather(table, ids)
        query, key, value = (dense(name, x, WIDTH) for name in ("query", "key", "value"))
        x += tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True)), value)
        loss = tf.reduce_mean(tf.square(tf.squeeze(dense("top", x[:, 0], 1), 1) - labels))
        gradients = optimizer.compute_gradients(loss)
        changed = [(_times(g, factor) if v.op.name == broken else g, v) for g, v in gradients]
        optimizer.apply_gradients(changed)
    return graph


def _times(gradient, factor):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


@pytest.fixture(scope="module")
def batches():
    record.install()
    draw = np.random.default_rng(0)
    return [
        {"ids:0": draw.integers(0, 20, (ROWS, WORDS)), "labels:0": draw.normal(size=ROWS).astype(np.float32)}
        for _ in range(STEPS)
    ]


def process(graph, batches):
    return OneProcess(graph, analyse(graph), batches[0], 1, None), [train_op(graph, None).name]


@pytest.mark.rotates
@pytest.mark.parametrize(
    "optimizer",
    [lambda: v1.train.AdamOptimizer(1e-3), lambda: v1.train.MomentumOptimizer(0.01, 0.9)],
    ids=["Adam", "Momentum"],
)
def test_rounding_passes_where_a_true_gradient_is_0_and_a_wrong_gradient_does_not(batches, optimizer):
    one, fetches = process(attention(optimizer()), batches)
    runs = one.run(fetches, batches)
    noise = one.noise(fetches, batches, runs, 0.0)

    def found(after):
        arrays = [measure(n, one.kinds[n], runs[0][n], runs[1][n], noise[n], [after[n]] * 2) for n in sorted(noise)]
        return {judged.name: judged for judged in judge(arrays, TOLERANCE)}

    turned = [{name: np.roll(value, ROWS // 2, axis=0) for name, value in batch.items()} for batch in batches]
    judged = found(one.run(fetches, turned)[1])
    loose = {name for name, one in judged.items() if one.verdict == Verdict.NOISE}
    assert {name for name in judged if name.startswith("key/bias")} == loose, judged
    assert all(one.verdict == Verdict.EQUAL for name, one in judged.items() if name not in loose), judged
    assert max(one.error for one in judged.values()) > 0.01  # which is why noise is measured
    for broken, factor in (("table", 0.5), ("query/bias", 0.0), ("value/kernel", 0.75), ("top/bias", 0.5)):
        other, same = process(attention(optimizer(), broken, factor), batches)
        judged = found(other.run(same, batches)[1])
        assert any(one.verdict == Verdict.DIFFERENT for name, one in judged.items() if name.startswith(broken)), judged
        assert not any("key/bias" in name for name, one in judged.items() if one.error > MARGIN), judged


def analysed_and_planned(build, **constraints):
    graph = tf.Graph()
    with graph.as_default():
        loss = build(v1.get_variable("table", [8, 4]))
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    analysed = analyse(graph)
    return analysed, make_plan(analysed.spec, one_host(2), PlanConstraints(**constraints))


def from_dataset(table):
    ids = v1.data.make_one_shot_iterator(tf.data.Dataset.range(8).batch(2)).get_next()
    return tf.reduce_mean(tf.gather(table, ids))


@pytest.mark.parametrize(
    ("build", "constraints", "said"),
    [
        (lambda table: tf.reduce_mean(tf.nn.dropout(table, rate=0.5)), {}, "a step has random ops .dropout/"),
        (from_dataset, {}, "IteratorGetNext, OneShotIterator produce batches inside the graph"),
        (tf.reduce_mean, {"synchronous": False}, "sync=False"),
    ],
    ids=["random ops", "dataset", "asynchronous"],
)
def test_first_steps_that_one_process_cannot_repeat_are_refused_before_the_start(build, constraints, said):
    with pytest.raises(ConfigError, match=said):
        check_comparable(*analysed_and_planned(build, **constraints))


def reading(rows, is_fed):
    """A step that reads a shard of a dataset, in batches with a string and a number for all; or is fed them."""
    graph = tf.Graph()
    with graph.as_default():
        dataset = shard(tf.data.Dataset.range(8)).batch(rows).map(lambda ids: (ids, tf.strings.as_string(ids), 2.0))
        ids, texts, factor = v1.data.make_one_shot_iterator(dataset).get_next()
        if is_fed:
            ids, texts = v1.placeholder(tf.int64, [None], name="ids"), v1.placeholder(tf.string, [None], name="texts")
        table = v1.get_variable("table", [8, 4], initializer=v1.random_normal_initializer(seed=1))
        numbers = tf.strings.to_number(texts)[:, None]
        loss = tf.reduce_mean(tf.square(tf.gather(table, ids) - numbers)) * tf.reduce_max(factor)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return graph


def test_the_one_process_is_fed_the_batches_that_workers_read_from_datasets(tmp_path):
    graph = reading(2, False)
    analysed = analyse(graph)
    walk = walk_of(analysed, make_plan(analysed.spec, one_host(2), PlanConstraints()))
    read, hidden = find_batches_of(walk, "GradientDescent")
    assert read == {f"IteratorGetNext:{number}": number < 2 for number in range(3)} and not hidden
    files = []
    for rank in range(2):
        ids = np.array([rank, rank + 2])
        texts = np.array([b"%d\0" % number if number else b"0" for number in ids], object)
        found = dict(zip(read, (ids, texts, np.float32(2.0)), strict=True))
        files.append([tmp_path / f"{rank}.npz"])
        save(files[-1][0], found)
    joined = concatenate_read(files, read)
    assert joined["IteratorGetNext:1"].tolist() == [b"0", b"2\0", b"1\0", b"3\0"]
    joined["IteratorGetNext:1"] = np.array([b"0", b"2", b"1", b"3"], object)
    one = OneProcess(graph, analysed, joined, 1, None, read)
    other = reading(2, True)
    batch = {"ids:0": joined["IteratorGetNext:0"], "texts:0": joined["IteratorGetNext:1"]}
    fed = OneProcess(other, analyse(other), batch, 1, None)
    tables = [
        process.run(["GradientDescent"], [fed_with])[1]["table"] for process, fed_with in ((one, joined), (fed, batch))
    ]
    np.testing.assert_array_equal(*tables)
    save(files[-1][0], {**joined, "IteratorGetNext:2": np.float32(3.0)})
    with pytest.raises(ConfigError, match="'IteratorGetNext:2' of the graph has no row for each example, and differs"):
        concatenate_read(files, read)


def test_batches_are_joined_by_rows_and_must_fit():
    joined = concatenate_batches(
        [{"x:0": np.ones([2, 3]), "rate:0": np.array(0.5)}, {"x:0": np.ones([1, 3]), "rate:0": 0.5}]
    )
    assert joined["x:0"].shape == (3, 3) and joined["rate:0"] == 0.5
    with pytest.raises(ConfigError, match=r"'x:0' has the shapes \[\(2, 3\), \(2, 4\)\]\. Pad them"):
        concatenate_batches([{"x:0": np.ones([2, 3])}, {"x:0": np.ones([2, 4])}])
    with pytest.raises(ConfigError, match="some do not feed 'y:0'"):
        concatenate_batches([{"x:0": np.ones(2), "y:0": np.ones(2)}, {"x:0": np.ones(2)}])


def test_a_graph_that_the_joined_batch_contradicts_is_refused_without_a_run():
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [4, 2], name="x")
        tf.reduce_mean(x)
        check_fits(graph, {"x:0": np.zeros([8, 2])})
        tf.reshape(x, [8])
    with pytest.raises(GraphError, match="graph does not accept it: .* Leave the batch dimension of the placeholders"):
        check_fits(graph, {"x:0": np.zeros([8, 2])})


def test_the_ops_that_train_are_listed_where_it_is_not_clear_which_is_meant():
    record.install()
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 2])
        first, second = v1.get_variable("first", [2, 1]), v1.get_variable("second", [1])
        loss = tf.reduce_mean(x @ first + second)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        optimizer.minimize(loss, var_list=[first], name="one")
        with pytest.raises(ConfigError, match=r"got 'oen'. Ops that train.*: one \(1 of 1 trained variables\)\."):
            train_op(graph, "oen")
        other = optimizer.minimize(loss, var_list=[second], name="other")
        with pytest.raises(ConfigError, match=r"made 2: one, other\. Name one .*: one \(1 of 2 .*, other \(1 of 2 "):
            train_op(graph, None)
        with tf.control_dependencies([other]):
            last = tf.group(graph.get_operation_by_name("one"), name="both")
        with pytest.raises(ConfigError, match=r"depends: both \(2 of 2 trained variables\)\."):
            train_op(graph, None)
        graph.get_collection_ref("train_op").append(last)
    assert train_op(graph, None) is last


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)], ids=["some", "ten thousand"])
def test_mutated_files_of_feeds_are_refused_in_words_or_feed_something(tmp_path, count):
    whole, file = [], tmp_path / "feeds.npz"
    for write in (np.savez, np.savez_compressed):
        write(file, x=np.arange(24.0).reshape(3, 4, 2), y=np.arange(3))
        whole.append(file.read_bytes())

    def check(content):
        file.write_bytes(content)
        try:
            feeds = read_feeds(str(file))
            assert all(isinstance(feeds(step, worker, 2), dict) for step in range(4) for worker in range(2))
        except ParallaxError as error:
            assert str(error).isprintable()

    for_all(count, check, mutated_bytes(whole[0]) | mutated_bytes(whole[1]))


@pytest.mark.parametrize("array", [np.array(3.0), np.zeros((0, 4))], ids=["no steps", "none of its steps"])
def test_a_file_of_feeds_has_a_step(tmp_path, array):
    np.savez(tmp_path / "feeds.npz", x=array)
    with pytest.raises(ConfigError, match=r"x must have at least one step, got the shape \("):
        read_feeds(str(tmp_path / "feeds.npz"))
