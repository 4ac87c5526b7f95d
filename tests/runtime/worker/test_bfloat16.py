"""What is counted of a step's products, what is said of it, and what a session is asked for."""

import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import graph_pb2, types_pb2

from parallax.runtime.worker.session.bfloat16 import Products, effect, has_instructions, options_with, products_of
from parallax.settings.environment import onednn_is_off

FLOAT, HALF = types_pb2.DT_FLOAT, types_pb2.DT_BFLOAT16


def graph(*nodes):
    made = graph_pb2.GraphDef()
    for op, dtype, device in nodes:
        node = made.node.add(op=op, device=device)
        node.attr["T"].type = dtype
    return made


def test_products_are_counted_by_type_whatever_onednn_calls_them():
    first = graph(("_MklMatMul", HALF, ""), ("_MklNativeFusedConv2D", HALF, ""), ("Mul", HALF, ""), ("Cast", FLOAT, ""))
    second = graph(
        ("_FusedMatMul", FLOAT, ""),
        ("DepthwiseConv2dNative", HALF, ""),
        ("Conv3DBackpropFilterV2", FLOAT, "/device:GPU:0"),
        ("MatMul", types_pb2.DT_INT32, ""),
    )
    assert products_of([first, second]) == Products(3, 2, 1)


@pytest.mark.parametrize(
    ("products", "instructions", "turned_off", "level", "text"),
    [
        (Products(3, 1), True, False, logging.INFO, "compute_dtype: 3 of 4 matrix products and convolutions of a step"),
        (Products(3, 1), False, False, logging.WARNING, "but this processor has none of avx512_bf16, amx_bf16"),
        (Products(0, 0), True, False, logging.WARNING, "no effect here: a step of this graph has no matrix product"),
        (Products(0, 4), True, True, logging.WARNING, "all 4 products of a step stay float32: TensorFlow does it by"),
        (Products(0, 4, 4), True, False, logging.WARNING, "the products are on a GPU. Leave compute_dtype out."),
        (Products(0, 4), False, False, logging.WARNING, "none of avx512_bf16, amx_bf16, avx_ne_convert. Run on hosts"),
        (Products(0, 4), True, False, logging.WARNING, "Do not turn it off in sess_config (disable_meta_optimizer"),
    ],
)
def test_what_a_step_does_is_said_with_the_cause_and_a_remedy(products, instructions, turned_off, level, text):
    found = effect(products, instructions, turned_off)
    assert found[0] == level and text in found[1], found
    assert ("has no effect here" in found[1]) == (not products.rounded)


@pytest.mark.parametrize(("flags", "has"), [("fpu avx512_bf16 amx_tile", True), ("fpu avx512f avx512_vnni", False)])
def test_the_instructions_are_those_that_linux_tells(tmp_path, flags, has):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n")
    assert has_instructions(tmp_path / "cpuinfo") is has
    assert has_instructions(tmp_path / "none")  # nobody knows better


def test_the_users_session_options_are_kept_and_one_is_added():
    given = tf.ConfigProto(intra_op_parallelism_threads=3)
    given.graph_options.rewrite_options.min_graph_nodes = 7
    asked = options_with(given, "bfloat16")
    rewrites = asked.graph_options.rewrite_options
    assert rewrites.auto_mixed_precision_onednn_bfloat16 == rewrites.ON
    rewrites.ClearField("auto_mixed_precision_onednn_bfloat16")
    assert asked == given == options_with(given, None)


@pytest.mark.skipif(not has_instructions() or onednn_is_off(), reason="the processor, or oneDNN, has no bfloat16")
def test_a_sampled_softmax_that_draws_a_label_by_chance_stays_a_number():
    with tf.Graph().as_default() as made:
        weights = tf.get_variable("weights", [4, 8], initializer=tf.random_normal_initializer(seed=1))
        inputs = tf.placeholder(tf.float32, [3, 8])
        labels = tf.constant([[0], [1], [2]], tf.int64)
        all_of_them = tf.nn.uniform_candidate_sampler(labels, 1, 4, True, 4, seed=1)
        losses = tf.nn.sampled_softmax_loss(weights, tf.zeros([4]), labels, inputs, 4, 4, sampled_values=all_of_them)
        loss = tf.reduce_mean(losses)
        start = tf.global_variables_initializer()
    found = {}
    for dtype in (None, "bfloat16"):
        with tf.Session(graph=made, config=options_with(tf.ConfigProto(), dtype)) as session:
            session.run(start)
            values = np.random.default_rng(1).normal(size=(3, 8))
            found[dtype] = session.run(loss, {inputs: values})
    assert np.isfinite(found["bfloat16"]) and found["bfloat16"] != found[None]
    np.testing.assert_allclose(found["bfloat16"], found[None], rtol=0.05)
