"""The image classifier example: its networks, normalization, learning rates and images."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import parallax
from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.plans.plan import Layout

EXAMPLE = Path(__file__).parents[2] / "examples" / "vision" / "image_classifier.py"
v1 = tf.compat.v1


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("image_classifier_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        yield graph


def elements(shapes):
    return sum(int(np.prod(shape)) for shape in shapes)


def taken(dataset, count, num_shards=1, shard_id=0):
    """The first batches of a dataset of the default graph, images and labels, for one of several workers."""
    iterator = v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    shard = dict(zip(parallax.shard.create_num_shards_and_shard_id(), (num_shards, shard_id), strict=True))
    with v1.Session() as session:
        session.run(iterator.initializer, shard)
        return [session.run(batch) for _ in range(count)]


# --- flags ---


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data", "a", "--synthetic"], "exclude each other"),
        (["--heldout", "a"], "--heldout belongs to --data"),
        (["--model", "resnet50"], "the digits are for --model resnet8"),
        (["--image-size", "16"], "for other images give --data or --synthetic"),
        (["--model", "inception3", "--synthetic", "--image-size", "74"], "must be 75 or more for inception3; got 74"),
        (["--steps", "0"], "must be 1 or more"),
        (["--model", "resnet50", "--data", "data_*.bin"], "must be 32 for .bin files of CIFAR-10's layout; got 224"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(example, capsys, argv, message):
    with pytest.raises(SystemExit):
        example.parse_flags(argv)
    assert message in capsys.readouterr().err


def test_the_help_says_what_workers_mean_for_batch_norm(example, capsys):
    with pytest.raises(SystemExit):
        example.parse_flags(["--help"])
    assert "What N workers mean for batch norm" in capsys.readouterr().out


# --- networks ---


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("model", "norm", "parameters", "width"),
    [
        ("resnet50", "batch", 25_557_032, 2048),
        ("resnet50", "group", 25_557_032, 2048),
        ("inception3", "batch", 23_834_568, 2048),
        # 3 * 16 * 9 weights; of a stage of width w after c channels c * w + 13 * w * w + 4 * c * w and 110 * 17 * w * w
        # weights, scale and offset of c + 2 * w and 110 * 6 * w channels, and of 256; 10.3 M with 10 classes
        ("resnet1001", "batch", 10_325_136 + 257 * 1000, 256),
        # 9 * (3 * 16 + 2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64) + 16 * 32 + 32 * 64 weights, scale and
        # offset of 3 * (16 + 32 + 64) channels, and 64 * 1000 + 1000
        ("resnet8", "group", 142_392, 64),
    ],
)
def test_networks_have_their_published_sizes(example, graph, model, norm, parameters, width):
    flags = example.parse_flags(["--model", model, "--synthetic", "--norm", norm])
    images = v1.placeholder(tf.float32, [2, flags.image_size, flags.image_size, 3])
    scores, nats = example.classification_nats(flags, example.Norm(norm, True), images, tf.constant([0, 999]))
    assert (scores.shape, nats.shape) == ((2, 1000), (2,))
    assert elements(v.shape for v in v1.trainable_variables()) == parameters
    assert v1.trainable_variables()[-2].shape == (width, 1000)


@pytest.mark.rotates
def test_a_plan_for_48_workers_all_reduces_everything_and_needs_no_server(example, graph):
    flags = example.parse_flags(["--model", "resnet50", "--synthetic"])
    example.build_graph(flags, example.open_images(flags))
    plan = plan_for(analyse(graph), Layout((6,) * 8, tuple(range(8))), parallax.Config())
    assert (plan.num_workers, plan.servers) == (48, ())
    assert {(v.cls.value, v.route) for v in plan.variables} == {("dense", "allreduce")}
    moving = [v.shape for v in plan.variables if "/moving_" in v.name]
    assert len(moving) == 2 * 53
    assert elements(v.shape for v in plan.variables) == 25_557_032 + elements(moving)


# --- normalization ---


def test_moving_averages_go_a_tenth_of_the_way_to_what_the_batch_has(example, graph):
    norm = example.Norm("batch", training=True)
    x = np.random.default_rng(1).normal(3.0, 2.0, [4, 2, 2, 5]).astype(np.float32)
    normalized = example.normalize(norm, tf.constant(x), scale=1.0)
    step = example.update_averages(norm)
    by_channel = x.reshape(-1, 5)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(normalized).reshape(-1, 5).mean(axis=0), 0, atol=1e-5)
        session.run(step)
        mean, variance = session.run([average for average, _ in norm.averages])
    np.testing.assert_allclose(mean, 0.1 * by_channel.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * by_channel.var(axis=0, ddof=1), rtol=1e-5)


def test_evaluation_normalizes_by_the_moving_averages(example, graph):
    x = np.random.default_rng(1).normal(size=[4, 2, 2, 5]).astype(np.float32)
    normalized = example.normalize(example.Norm("batch", training=False), tf.constant(x), scale=1.0)
    mean, variance = v1.global_variables()[-2:]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run([v1.assign(mean, np.full(5, 2.0)), v1.assign(variance, np.full(5, 4.0))])
        np.testing.assert_allclose(session.run(normalized), (x - 2.0) / 2.0, atol=1e-5)


def test_group_norm_does_not_depend_on_other_images(example, graph):
    x = np.random.default_rng(1).normal(3.0, 2.0, [4, 2, 2, 16]).astype(np.float32)
    with v1.Session() as session:
        normalized = session.run(example.group_norm(tf.constant(x)))
        alone = session.run(example.group_norm(tf.constant(x[1:2])))
    np.testing.assert_allclose(normalized[1:2], alone, atol=1e-6)
    groups = normalized.reshape(4, 4, 2, 8)
    np.testing.assert_allclose(groups.mean(axis=(1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(groups.var(axis=(1, 3)), 1, rtol=1e-4)


# --- learning rates ---


@pytest.mark.parametrize(
    ("step", "rate"),
    [(1, 0.2), (3, 0.4), (5, 0.6), (6, 0.6), (30, 0.6), (31, 0.06), (60, 0.06), (61, 0.006), (80, 0.006), (81, 0.0006)],
)
def test_the_rate_warms_up_to_that_of_the_joined_batch_and_drops_three_times(example, step, rate):
    flags = example.parse_flags("--model resnet50 --synthetic --batch 32 --steps 90".split())
    assert flags.warmup == 5
    assert example.learning_rate(flags, step, num_workers=48) == pytest.approx(rate)


def test_the_rate_of_fewer_images_than_the_base_is_lower_from_the_first_step(example):
    flags = example.parse_flags("--learning-rate 0.1 --batch 64 --steps 90".split())
    assert example.learning_rate(flags, 1, num_workers=1) == pytest.approx(0.025)
    assert example.learning_rate(flags, 30, num_workers=1) == pytest.approx(0.025)


def test_the_rate_depends_on_the_images_of_a_step_and_not_on_how_workers_share_them(example):
    rates = []
    for workers in (1, 2, 4):
        flags = example.parse_flags(["--batch", str(512 // workers), "--steps", "90"])
        rates.append([example.learning_rate(flags, step, workers) for step in range(1, 91)])
    assert rates[0] == rates[1] == rates[2]


# --- digits and noise ---


def test_every_fifth_digit_is_held_out_and_each_is_evaluated_once(example, graph):
    from sklearn.datasets import load_digits

    images = example.digits(example.parse_flags([]))
    seen = np.concatenate([labels for _, labels in taken(images.heldout, 14)])
    assert seen[:359].tolist() == load_digits().target[4::5].tolist()
    assert set(seen[359:]) == {example.PADDING}


def test_the_digits_trained_on_are_the_others_each_once_in_an_epoch(example, graph):
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = example.digits(example.parse_flags(["--batch", "2"]))
    pixels, labels = map(np.concatenate, zip(*taken(images.train, 719), strict=True))
    expected = np.delete(loaded.images, np.s_[4::5], axis=0) / 8.0 - 1.0
    assert sorted(pixels.reshape(1438, 64).tolist()) == sorted(expected.reshape(1438, 64).tolist())
    assert np.bincount(labels).tolist() == np.bincount(np.delete(loaded.target, np.s_[4::5])).tolist()


def test_the_workers_batches_are_together_that_of_one_worker(example, graph):
    one = example.digits(example.parse_flags(["--batch", "8"])).train
    each = example.digits(example.parse_flags(["--batch", "4"])).train
    whole = taken(one, 200)  # more than an epoch of 1,438
    shares = [taken(each, 200, num_shards=2, shard_id=shard_id) for shard_id in (0, 1)]
    for step in (0, 1, 199):
        for part in (0, 1):
            joined = np.stack([share[step][part] for share in shares], axis=1)
            np.testing.assert_array_equal(joined.reshape(whole[step][part].shape), whole[step][part])


def test_another_seed_gives_another_order(example, graph):
    orders = [taken(example.digits(example.parse_flags(["--seed", seed])).train, 1)[0][1] for seed in "112"]
    assert orders[0].tolist() == orders[1].tolist() != orders[2].tolist()


def test_digits_without_scikit_learn_end_with_what_to_do(example, graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match="install scikit-learn, name images with --data, or give --synthetic"):
        example.digits(example.parse_flags([]))


def test_noise_is_one_batch_over_and_over(example, graph):
    flags = example.parse_flags("--synthetic --image-size 16 --batch 4 --classes 3".split())
    first, second = taken(example.noise(flags), 2)
    assert first[0].shape == (4, 16, 16, 3) and first[0].std() == pytest.approx(1.0, rel=0.1)
    assert first[1].tolist() == [0, 1, 2, 0]
    np.testing.assert_array_equal(first[0], second[0])


# --- files ---


def record(image, label):
    with tf.Graph().as_default(), v1.Session() as session:
        encoded = session.run(tf.io.encode_jpeg(image, quality=100))
    feature = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def grey(level, height=20, width=30):
    return np.full([height, width, 3], level, np.uint8)


def normalized(example, level):
    return (level / 255.0 - np.array(example.COLOUR_MEAN)) / example.COLOUR_DEVIATION


@pytest.fixture
def write_files(tmp_path):
    """Writes lists of (image, label) to files train-00000-of-..., one file a list, and gives their pattern."""

    def write(*files):
        for number, images in enumerate(files):
            with tf.io.TFRecordWriter(str(tmp_path / f"train-{number:05}-of-{len(files):05}")) as writer:
                for image, label in images:
                    writer.write(record(image, label))
        return f"{tmp_path}/train-*"

    return write


def flags_for(example, pattern, *more):
    small = ["--model", "resnet8", "--image-size", "8", "--classes", "10", "--batch", "4"]
    return example.parse_flags([*small, "--data", pattern, "--heldout", pattern, *more])


def test_held_out_images_are_read_once_in_the_order_of_the_files_and_labels_begin_with_0(example, graph, write_files):
    files = [[(grey(10 * label), label)] for label in range(1, 7)]
    images = example.open_images(flags_for(example, write_files(*files)))
    (pixels, labels), (_, rest) = taken(images.heldout, 2)
    assert labels.tolist() + rest.tolist() == [0, 1, 2, 3, 4, 5, example.PADDING, example.PADDING]
    assert pixels.shape == (4, 8, 8, 3)
    np.testing.assert_allclose(pixels[3, 5, 5], normalized(example, 40), atol=0.05)


def test_workers_train_on_files_of_their_own(example, graph, write_files):
    files = [[(grey(10 * label), label)] * 3 for label in (1, 2, 3, 4)]
    images = example.open_images(flags_for(example, write_files(*files)))
    seen = []
    for shard_id in (0, 1):
        batches = taken(images.train, 6, num_shards=2, shard_id=shard_id)
        for pixels, labels in batches:
            assert pixels.shape == (4, 8, 8, 3)
            for image, label in zip(pixels, labels, strict=True):
                np.testing.assert_allclose(image[4, 4], normalized(example, 10 * (label + 1)), atol=0.05)
        seen.append({int(label) for _, labels in batches for label in labels})
    assert seen == [{0, 2}, {1, 3}]


def test_evaluation_sees_the_middle_of_an_image_and_training_parts_of_it(example, graph, write_files):
    image = grey(250, 64, 96)
    image[:, 20:76] = 10  # the middle square is within the columns 20 to 76
    images = example.open_images(flags_for(example, write_files([(image, 1)])))
    ((middle, _),) = taken(images.heldout, 1)
    np.testing.assert_allclose(middle[0], np.broadcast_to(normalized(example, 10), [8, 8, 3]), atol=0.1)
    parts = np.concatenate([pixels for pixels, _ in taken(images.train, 4)])
    assert len(np.unique(parts.round(2).reshape(16, -1), axis=0)) > 8  # no two alike, but for those within one colour


def write_cifar(path, images):
    """Writes (image [32, 32, 3], class) in CIFAR-10's binary layout."""
    path.write_bytes(b"".join(bytes([label]) + image.transpose(2, 0, 1).tobytes() for image, label in images))


def test_files_of_cifar_have_their_class_first_and_the_colours_one_after_the_other(example, graph, tmp_path):
    images = np.random.default_rng(1).integers(0, 256, [3, 32, 32, 3], dtype=np.uint8)
    write_cifar(tmp_path / "data_1.bin", zip(images, [3, 0, 9], strict=True))
    files = f"{tmp_path}/data_*.bin"
    flags = example.parse_flags(
        ["--model", "resnet8", "--classes", "10", "--batch", "4", "--data", files, "--heldout", files]
    )
    opened = example.open_images(flags)
    ((pixels, labels),) = taken(opened.heldout, 1)
    assert labels.tolist() == [3, 0, 9, example.PADDING]
    expected = (images / 255.0 - example.COLOUR_MEAN) / example.COLOUR_DEVIATION
    np.testing.assert_allclose(pixels[:3], expected, atol=1e-5)
    parts = np.concatenate([batch for batch, _ in taken(opened.train, 6)])
    assert parts.shape == (24, 32, 32, 3) and len(np.unique(parts.reshape(24, -1), axis=0)) > 6


def test_a_class_of_cifar_outside_the_classes_is_refused(example, graph, tmp_path):
    write_cifar(tmp_path / "test.bin", [(np.zeros([32, 32, 3], np.uint8), 10)])
    flags = example.parse_flags(f"--model resnet8 --classes 10 --data {tmp_path}/test.bin".split())
    with pytest.raises(tf.errors.InvalidArgumentError, match="a class must be below --classes 10"):
        taken(example.open_images(flags).train, 1)


@pytest.mark.parametrize("label", [0, 11])
def test_a_label_outside_the_classes_is_refused(example, graph, write_files, label):
    images = example.open_images(flags_for(example, write_files([(grey(10), label)])))
    with pytest.raises(tf.errors.InvalidArgumentError, match="image/class/label must be from 1 to 10"):
        taken(images.heldout, 1)


def test_a_pattern_without_files_is_refused(example, graph, tmp_path):
    with pytest.raises(SystemExit, match="no files match"):
        example.open_images(flags_for(example, f"{tmp_path}/train-*"))
