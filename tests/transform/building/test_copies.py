"""Copies of a subgraph are the nodes that TensorFlow would have built."""

from typing import Any

import pytest
import tensorflow as tf

from parallax.transform.building.copies import Copies, NamedTensor

v1 = tf.compat.v1


def scaled(tensor: Any) -> Any:
    with tf.control_dependencies([tensor]):
        waited = tf.no_op(name="announce")
    with tf.control_dependencies([waited]):
        return tf.cast(tf.gather(tf.cast(tensor, tf.float64), 0), tf.float32)


def nodes(copied: bool, shapes: list[list[int]]) -> list[Any]:
    """Two subgraphs with an op before, between and after them."""
    graph = tf.Graph()
    with graph.as_default():
        given = [v1.placeholder(tf.float32, shape, name=f"x{i}") for i, shape in enumerate(shapes)]
        copies = Copies(graph)
        with tf.name_scope("parallax/"):
            for tensor in given:
                tf.constant(1.0)
                with tf.name_scope("parallax/some/"):
                    copies.copy("scaled", scaled, [tensor]) if copied else scaled(tensor)
            tf.constant(1.0)
    return [str(node) for node in copies.among(graph.as_graph_def().node) if node.name.startswith("parallax/")]


@pytest.mark.parametrize("shapes", [[[2, 3], [2, 3]], [[2], [4, 5]]])
def test_copies_are_the_nodes_that_would_have_been_built_in_their_order(shapes: list[list[int]]) -> None:
    assert nodes(True, shapes) == nodes(False, shapes)


def test_a_subgraph_is_built_once_for_tensors_of_one_type_and_shape() -> None:
    built = []

    def build(tensor: Any) -> Any:
        built.append(tensor.shape.as_list())
        return tf.identity(tensor)

    copies = Copies(tf.Graph())
    for name, shape in (("a:0", [2, 3]), ("b:0", [2, 3]), ("c:0", [None, 3])):
        made = copies.copy("identity", build, [NamedTensor(name, tf.float32, tf.TensorShape(shape))])
        assert made.shape.as_list() == shape
    assert built == [[2, 3], [None, 3]]


def test_a_copy_takes_the_output_that_was_given_and_waits_for_its_node() -> None:
    copies = Copies(tf.Graph())
    made = copies.copy("scaled", scaled, [NamedTensor("split:1", tf.float32, tf.TensorShape([2, 3]))])
    by_name = {node.name: list(node.input) for node in copies.among([])}
    assert by_name["announce"] == ["^split"] and by_name["Cast"] == ["split:1", "^announce"]
    assert made.name == "Cast_1:0" and made.dtype == tf.float32
