"""The shortest step of twins: a graph whose schedule can be followed by hand, and those of published networks."""

import pytest
import tensorflow as tf

from ops.bench.race.accelerators import twin_sizes
from ops.bench.race.models import model_of
from ops.bench.race.rounds import least_of
from ops.bench.race.shortest import shortest_of, shortest_step
from ops.twin.library import twin_ops
from parallax.transform.building.all_to_all import LookupIds, all_to_all, native_ops, prepare_hop

v1 = tf.compat.v1
RATE = 1000  # bytes a second


def layer(tensor, seconds):
    until, outputs = twin_ops().twin_launch(
        [tensor], output_types=[tf.float32], output_shapes=[[]], seconds=seconds, passes=False
    )
    return until, outputs[0]


def there(until):
    return twin_ops().twin_wait(until, [], output_types=[tf.float32], output_shapes=[[]], passes=False)[0]


def reduced(tensor, elements, name):
    return native_ops().parallax_all_reduce(parts=[tensor], kind="sum", scales=[1.0], elements=elements, name=name)[0]


def two_layers(elements=1000):
    """Forward 1 s and 2 s; backward 4 s and 3 s, then an all-reduce of each layer's gradient."""
    with tf.Graph().as_default() as graph:
        one, two = (v1.get_variable(name, [], use_resource=True) for name in ("one", "two"))
        x = layer(one.read_value(), 1.0)[1]
        x = layer(x + two.read_value(), 2.0)[1]
        of_two, x = layer(x, 4.0)
        of_one, x = layer(x, 3.0)
        updates = [
            tf.raw_ops.AssignSubVariableOp(resource=two.handle, value=reduced(there(of_two), elements, "reduce_2")),
            tf.raw_ops.AssignSubVariableOp(resource=one.handle, value=reduced(there(of_one), 500, "reduce_1")),
        ]
        train = tf.group(*updates, name="train")
    return graph.as_graph_def(add_shapes=True), (train.name,)


@pytest.mark.rotates
def test_a_layers_all_reduce_is_beside_the_next_layer():
    # 2 hosts send 2 * 1/2 * 4 bytes an element: 4 s and 2 s. The layers end at 10; reduce_2 is 7-11, reduce_1 11-13.
    found = shortest_step(*two_layers(), [[{}], [{}]], RATE)
    assert found.alone_s == pytest.approx(13)
    # reduce_1 at once after its layer, at 10, would have the step that follows begin at 12.
    assert found.overlapping_s == pytest.approx(12)


@pytest.mark.rotates
def test_an_exchange_whose_bytes_are_not_known_leaves_the_step_unknown():
    assert shortest_step(*two_layers(elements=-1), [[{}], [{}]], RATE) is None


def test_rows_of_other_hosts_are_counted_by_the_batches():
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [4], name="ids")
        hop = prepare_hop([LookupIds(ids, "table", 10)], [0, 1], 2, tf.int32, to_owners=True)
        asked, counts = all_to_all(hop.local, hop.splits)
        rows, _ = all_to_all(tf.zeros([tf.size(asked), 25]), counts, arriving=hop.splits)
        train = tf.identity(tf.reduce_sum(rows), name="train")
    # Rank 0 asks rank 1 for 3 rows, and rank 1 asks rank 0 for 1: 2 on average, of 4 bytes out and 100 back.
    feeds = [[{"ids:0": [1, 3, 5, 0]}], [{"ids:0": [1, 3, 3, 8]}]]
    found = shortest_step(graph.as_graph_def(add_shapes=True), (train.op.name,), feeds, RATE)
    assert found.alone_s == pytest.approx(2 * (4 + 100) / RATE)


@pytest.mark.rotates
@pytest.mark.parametrize("network", ["lm", "stack"])
def test_the_shortest_step_lies_between_the_longest_part_and_the_sum_of_all(network):
    sizes = {
        "network": network,
        "step_s": 0.1,
        "dilation": 1.0,
        "batch_size": 8,
        "divisor": 1 if network == "stack" else 256,
    }
    least, _ = least_of("twin", sizes, 2, 1)
    rate = least / 0.08
    found = shortest_of("twin", sizes, 2, 1, rate)
    assert 0.1 - 1e-6 < found.overlapping_s <= found.alone_s < 0.1 + 0.08 * 1.05


@pytest.mark.parametrize(
    ("model", "sizes", "hosts", "workers", "rate"),
    [
        ("embed", {}, 2, 1, 1e6),
        ("twin", {"network": "stack", "divisor": 1, "values": "cores"}, 2, 1, 1e6),
        ("twin", {"network": "stack", "divisor": 1}, 1, 1, 1e6),
        ("twin", {"network": "stack", "divisor": 1}, 2, 2, 1e6),
        ("twin", {"network": "stack", "divisor": 1}, 2, 1, 0),
    ],
)
def test_where_it_is_not_known_there_is_none(model, sizes, hosts, workers, rate):
    assert shortest_of(model, sizes, hosts, workers, rate) is None


def test_a_language_model_that_the_accelerator_binds_can_hide_little_of_its_rows():
    sizes = {**twin_sizes("2019", "lm", {}), "divisor": 256}
    device_s = model_of("twin", **sizes).device_s
    least, _ = least_of("twin", sizes, 8, 1)
    found = shortest_of("twin", sizes, 8, 1, least / (0.1 * device_s))
    assert device_s < found.overlapping_s < found.alone_s < 1.11 * device_s
