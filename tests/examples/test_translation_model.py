"""The network of the translation example: what padding and ties do."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

EXAMPLE = Path(__file__).parents[2] / "examples" / "nlp" / "translation_model.py"
v1 = tf.compat.v1

SOURCE = [[3, 5, 4], [6, 2, 7]]
PREVIOUS = [[1, 4, 5], [1, 3, 2]]
TARGET = [[4, 5, 2], [3, 2, 6]]
LENGTHS = [2, 3]  # of the two sentences, on both sides


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("translation_model_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nats_of(example, padding=0, columns=3, **sizes):
    """Nats [2, columns], with id `padding` beyond the sentences, and the shapes of the variables."""
    weights = np.float32(np.arange(columns) < np.array(LENGTHS)[:, None])

    def padded(ids):
        wide = np.full([2, columns], padding, np.int32)
        wide[:, :3] = ids
        return tf.constant(np.where(weights, wide, padding).astype(np.int32))

    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", initializer=v1.random_uniform_initializer(-0.5, 0.5, seed=1)):
        model = example.Sizes(**{"source_words": 9, "target_words": 9, "width": 6, "state": 4, "layers": 2} | sizes)
        given = padded(SOURCE), tf.constant(weights), padded(PREVIOUS), padded(TARGET), tf.constant(weights)
        nats = example.translation_nats(model, *given)
        gradients = tf.gradients(nats, v1.trainable_variables())
        initial = v1.global_variables_initializer()
    assert None not in gradients
    with v1.Session(graph=graph) as session:
        session.run(initial)
        shapes = {v.op.name: tuple(v.shape) for v in graph.get_collection("trainable_variables")}
        return session.run(nats), shapes


def test_padding_changes_nothing_whatever_it_is_and_however_much(example):
    nats, _ = nats_of(example)
    assert np.all(nats[:, :2] > 0) and nats[0, 2] == 0
    np.testing.assert_array_equal(nats_of(example, padding=8)[0], nats)
    wider, _ = nats_of(example, columns=5)
    np.testing.assert_allclose(wider[:, :3], nats, rtol=1e-5)
    np.testing.assert_array_equal(wider[:, 3:], 0)


@pytest.mark.parametrize(
    ("tie", "tables"),
    [
        ("none", {"source_embedding": (9, 6), "target_embedding": (9, 6), "projection": (9, 4)}),
        ("source", {"source_embedding": (9, 6), "projection": (9, 4)}),
        ("output", {"source_embedding": (9, 6), "target_embedding": (9, 6)}),
    ],
)
def test_a_tie_leaves_out_a_table(example, tie, tables):
    nats, shapes = nats_of(example, tie=tie)
    assert np.all(np.isfinite(nats))
    assert {name: shape for name, shape in shapes.items() if shape[0] == 9 and name != "projection_bias"} == tables


def test_smoothing_shares_a_part_of_the_label(example):
    logits = tf.constant([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
    log_shares = np.log(np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum())
    smoothed = example.cross_entropy(logits, tf.constant([2, 0]), 0.3)
    np.testing.assert_allclose(smoothed, [-0.7 * log_shares[2] - 0.1 * log_shares.sum(), np.log(3.0)], rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ({"tie": "all"}, "tie must be one of none, source, output, got 'all'"),
        ({"tie": "source", "target_words": 8}, "One table needs one vocabulary, and there are 9 source words and 8"),
    ],
)
def test_a_tie_that_cannot_be_is_refused(example, sizes, rule):
    with pytest.raises(ValueError, match=rule):
        nats_of(example, **sizes)
