"""The networks' sizes, against published ones, and what an accelerator and a cluster's twin make of them."""

import math

import pytest

from ops.twin.clusters import CLUSTERS, DILATION, GBIT, SLOWER
from ops.twin.networks import divided, layer_seconds, network_of

NETWORKS = ("lm", "nmt", "resnet50", "inception_v3")
every_network = pytest.mark.parametrize("name", [*NETWORKS, "stack"])


@pytest.mark.parametrize(
    ("name", "dense", "tables", "giga_multiply_adds"),
    [
        ("lm", 9_445_376, 813_306_750, 20 * (18.9 / 2 + 8.4 / 2) * 1e-3),  # docs/published.md; 2 operations each
        ("nmt", 99_353_285, 74_852_352, 2.48),  # docs/published.md
        ("resnet50", 25_557_032, 0, 3.86),  # torchvision has as many; He et al.: 3.8
        (
            "inception_v3",
            23_817_352,
            0,
            5.71,
        ),  # keras.applications, what is trained; Szegedy et al.: 5
    ],
)
def test_networks_have_the_published_sizes(name, dense, tables, giga_multiply_adds):
    network = network_of(name)
    assert (network.dense_elements, network.table_elements) == (dense, tables)
    assert network.multiply_adds / 1e9 == pytest.approx(giga_multiply_adds, rel=0.01)


@every_network
def test_names_are_unique_and_a_layer_takes_something(name):
    layers = network_of(name).layers
    for names in ([layer.name for layer in layers], [v.name for la in layers for v in (*la.weights, *la.tables)]):
        assert len(names) == len(set(names))
    assert all(layer.weights or layer.tables for layer in layers)


@every_network
def test_layers_take_the_step_forward_and_twice_as_long_backward(name):
    network = network_of(name)
    seconds = layer_seconds(network, 3.0)
    assert list(seconds) == [layer.name for layer in network.layers]
    assert sum(forward for forward, _ in seconds.values()) == pytest.approx(1.0)
    assert all(backward == 2 * forward > 0 for forward, backward in seconds.values())


def test_a_step_is_shared_by_multiply_adds():
    seconds = layer_seconds(network_of("lm"), 3.0)
    lstm, softmax = 1024 * 8192 + 2048 * 512, 512 * 8193
    assert seconds["lstm"][0] == pytest.approx(lstm / (lstm + softmax))


@pytest.mark.parametrize(
    ("shape", "divisor", "expected"),
    [
        ((1024, 8192), 16, (64, 8192)),
        ((7, 7, 3, 64), 16, (7, 7, 3, 4)),  # 3 inputs do not divide
        ((1, 1, 48, 64), 64, (1, 1, 3, 16)),  # 48 by 16, and the outputs by 4
        ((36549, 1024), 64, (36549, 16)),
        ((8192,), 16, (512,)),
        ((36549,), 64, (572,)),
        ((5, 7), 4, (5, 2)),
        ((5, 7), 1, (5, 7)),
    ],
)
def test_shapes_are_divided_by_inputs_first_and_rounded_up(shape, divisor, expected):
    assert divided(shape, divisor) == expected


@pytest.mark.parametrize("divisor", [1, 16, 64])
@every_network
def test_a_divided_network_has_its_share_of_the_elements(name, divisor):
    network = network_of(name)
    shapes = [divided(weights.shape, divisor) for layer in network.layers for weights in layer.weights]
    assert divisor * sum(map(math.prod, shapes)) == pytest.approx(network.dense_elements, rel=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_cluster_has_a_sourced_pace_for_every_network(name):
    for cluster in CLUSTERS.values():
        pace = cluster.paces[name]
        assert pace.source and 0.01 < pace.step_s(network_of(name).units_of_example) < 2.0
    assert SLOWER % DILATION[name] == 0


def test_paces_are_those_of_their_sources():
    paper, today = CLUSTERS["2019"], CLUSTERS["today-10gbit"]
    assert paper.rate_bytes_per_s == 12.5e9 and today.rate_bytes_per_s == 10 * GBIT
    assert {name: round(pace.units_per_s, -1) for name, pace in paper.paces.items()} == {
        "lm": 29_150,
        "nmt": 11_090,
        "resnet50": 190,
        "inception_v3": 140,
    }
    assert paper.paces["resnet50"].step_s(1) == pytest.approx(0.335, abs=0.001)
    assert today.paces["resnet50"].step_s(1) == pytest.approx(0.282, abs=0.001)


def test_what_is_estimated_says_so():
    estimated = {
        (accelerator, name)
        for accelerator, paces in ((c.accelerator, c.paces) for c in CLUSTERS.values())
        for name, pace in paces.items()
        if pace.source.startswith("estimated")
    }
    assert estimated == {("A100 40 GB, TF32", name) for name in ("inception_v3", "nmt", "lm", "wide")}


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="one of lm, nmt, resnet50, inception_v3, stack, wide, got 'x'"):
        network_of("x")
