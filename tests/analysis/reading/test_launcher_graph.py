"""What two processes that run one script must build alike, and whose values count where they do not."""

import math
import random
import re

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.reading.construction.digests import are_alike, fingerprint, first_difference
from parallax.analysis.reading.construction.launcher_graph import (
    LauncherGraph,
    export_graph,
    map_functions,
    pack_graph,
    pin_graph,
    pin_packed,
    unpack_graph,
)
from parallax.base.errors import OtherGraphError
from parallax.graph.view import EXAMPLES
from parallax.runtime.worker.session.one_graph import place_of, read_launcher_graph

v1 = tf.compat.v1


def built(value=1.0, seed=0, width=3, name="x", transposed=False, more=False, inner=2.0, shift=0, large=0.0):
    """A small graph with a constant, a random op, a function and a large constant."""
    for _ in range(shift):  # functions are counted
        tf.function(lambda a: a).get_concrete_function(tf.TensorSpec([], tf.float32))
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [2, 2], name=name)
        noise = tf.random.uniform([2, 2], seed=seed, name="noise")
        product = tf.matmul(
            x + noise, tf.constant(value, tf.float32, [2, 2], name="factor"), transposed, name="product"
        )

        @tf.function
        def scaled(a):
            return a * tf.constant(inner, name="inner")

        tf.reshape(scaled(product), [width, -1] if width != 3 else [4], name="shaped")
        tf.constant(np.full([64, 64], large, np.float32), name="large")
        if more:
            tf.identity(product, name="more")
    return graph


def definition(graph):
    return graph.as_graph_def(add_shapes=True)


@pytest.mark.parametrize("change", [{"value": 2.0}, {"seed": 7}, {"inner": 3.0}, {"shift": 2}, {"large": 1.0}], ids=str)
def test_values_seeds_and_names_of_functions_are_no_structure(change):
    first, second = definition(built()), definition(built(**change))
    assert fingerprint(first) == fingerprint(second)
    assert first_difference(first, second) is None


@pytest.mark.parametrize(
    "change, op, text",
    [
        ({"transposed": True}, "product", "built op 'product' differently.*attribute transpose_a is True, and the"),
        ({"name": "y"}, "y", r"has no op 'x' \(Placeholder\).*and built 'y' \(Placeholder\) instead"),
        (
            {"width": 2},
            "shaped/shape",
            r"differently.*its type and shape is int32 \(2,\), and the launcher's int32 \(1,\)",
        ),
        ({"more": True}, "more", r"built op 'more' \(Identity\), which the launcher's graph does not have"),
    ],
    ids=str,
)
def test_the_first_op_that_differs_is_named_and_how(change, op, text):
    first, second = definition(built()), definition(built(**change))
    assert fingerprint(first) != fingerprint(second)
    found = first_difference(first, second)
    assert found.op == op and re.search(text, found.text), found


def test_an_op_that_is_not_there_is_told_with_the_one_before_it():
    found = first_difference(definition(built(more=True)), definition(built()))
    assert (found.op, found.text) == (
        "large",
        "has no op 'more' (Identity), which the launcher's graph has after 'large'",
    )


def test_the_first_difference_is_in_the_order_of_the_graph_and_not_of_names():
    def graph(names):
        with tf.Graph().as_default() as made:
            for name in names:
                v1.placeholder(tf.float32, name=name)
        return definition(made)

    assert first_difference(graph(["b", "z", "a"]), graph(["b", "y", "c"])).op == "y"


def test_the_body_of_a_function_is_structure():
    def graph(function):
        with tf.Graph().as_default() as made:
            tf.function(function)(v1.placeholder(tf.float32, [2], name="x"))
        return definition(made)

    found = first_difference(graph(lambda a: tf.sin(a)), graph(lambda a: tf.cos(a)))
    assert re.search("in its function __inference_.* there is no op 'Sin'", found.text), found


def test_control_inputs_have_no_order():
    def graph(names):
        with tf.Graph().as_default() as made:
            first, second = (tf.no_op(name=name) for name in "ab")
            with tf.control_dependencies([{"a": first, "b": second}[name] for name in names]):
                tf.no_op(name="c")
        return definition(made)

    assert fingerprint(graph("ab")) == fingerprint(graph("ba"))


def constant(graph_def, name):
    node = next(node for node in graph_def.node if node.name == name)
    return tf.make_ndarray(node.attr["value"].tensor)


def test_a_held_graph_has_the_launchers_values_and_what_was_added_since():
    launcher, own = built(value=2.0, seed=5, inner=3.0, large=7.0), built(large=7.0)
    data = pack_graph(launcher)
    assert len(pack_graph(launcher, large_bytes=1 << 20)) - len(data) > 0 and unpack_graph(data).digests.keys() == {
        "large"
    }
    pin_graph(own, unpack_graph(data))
    with own.as_default():
        tf.constant(9.0, name="later")
    found = export_graph(own)
    assert constant(found, "factor")[0, 0] == 2.0 and constant(found, "later") == 9.0
    assert {node.name: node for node in found.node}["noise/RandomUniform"].attr["seed2"].i == 5
    np.testing.assert_array_equal(constant(found, "large"), np.full([64, 64], 7.0))
    call = next(node for node in found.node if node.op.endswith("PartitionedCall"))
    (body,) = (f for f in found.library.function if f.signature.name == call.attr["f"].func.name)
    assert [tf.make_ndarray(n.attr["value"].tensor) for n in body.node_def if n.op == "Const"] == [3.0]


def test_functions_of_a_held_graph_are_known_by_the_launchers_names():
    launcher, own = built(), built(shift=3)
    (theirs,), (mine,) = ([f.signature.name for f in definition(g).library.function] for g in (launcher, own))
    assert theirs != mine and map_functions(own) == {}
    pin_graph(own, unpack_graph(pack_graph(launcher)))
    assert map_functions(own) == {mine: theirs}


def test_worker_0_gives_a_large_constant_that_nobody_has_from_the_launcher():
    own, value = built(large=1.0), definition(built(large=2.0)).node[-1].attr["value"].tensor
    data = unpack_graph(pack_graph(built(large=3.0)))
    pin_graph(own, LauncherGraph(data.graph_def, data.digests, {"large": value}))
    np.testing.assert_array_equal(constant(export_graph(own), "large"), np.full([64, 64], 2.0))


def test_a_graph_of_another_structure_is_not_held():
    data = pack_graph(built(value=2.0), math.inf)
    alike, other = built(), built(more=True)
    for graph in (alike, other):
        pin_packed(graph, data)
    assert constant(export_graph(alike, add_shapes=False), "factor")[0, 0] == 2.0
    assert constant(export_graph(other), "factor")[0, 0] == 1.0


def test_another_structure_is_refused_with_its_place_in_the_script():
    own = built(transposed=random.random() < 2)
    with pytest.raises(OtherGraphError, match=f"worker 3 built op 'product' differently.*{__file__}:[0-9]+"):
        read_launcher_graph(own, pack_graph(built()), fingerprint(definition(built())), rank=3)


def test_a_graph_of_the_planned_structure_is_the_launchers_and_its_digest_is_told():
    launcher, own = built(value=2.0), built(shift=2)
    digest = fingerprint(definition(launcher))
    found, told = read_launcher_graph(own, pack_graph(launcher), digest, rank=0)
    assert (told, len(found.graph_def.node)) == (digest, len(definition(launcher).node))


def test_ops_that_came_after_the_plan_are_seen():
    digest = fingerprint(definition(built()))
    with pytest.raises(OtherGraphError, match="worker 0 has no op 'more'"):
        read_launcher_graph(built(), pack_graph(built(more=True)), digest, rank=0)


def test_the_place_of_an_op_is_the_scripts_line():
    with tf.Graph().as_default():
        op = tf.square(1.0).op
    assert place_of(op).startswith(f"{__file__}:")


def test_graphs_are_alike_whose_structure_and_values_are_also_inside_of_functions():
    first = definition(built())
    assert are_alike(first, definition(built(shift=1)))  # other names of functions
    for other in ({"value": 2.0}, {"inner": 3.0}, {"large": 1.0}, {"seed": 1}, {"width": 4}, {"more": True}):
        assert not are_alike(first, definition(built(**other))), other


def test_graphs_are_not_alike_that_expect_batches_of_another_length():
    graphs = [definition(built()) for _ in range(2)]
    for graph_def, length in zip(graphs, (8, 16), strict=True):
        next(node for node in graph_def.node if node.op == "Placeholder").attr[EXAMPLES].i = length
    assert fingerprint(graphs[0]) == fingerprint(graphs[1]) and not are_alike(*graphs)
