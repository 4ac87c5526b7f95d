"""Stages of random graphs, cut at random: they end, whatever comes when, with the values of the whole graph."""

import random

import pytest

from parallax.graph.cut.graph_to_cut import GraphToCut
from parallax.graph.cut.messages import find_messages, messages_within
from parallax.graph.cut.places import complete_places
from tests.graph.cut.generated import generate, run_stages, run_whole

CUTS = 20


def places_of_cut(forward, backward, count, draw):
    ends = sorted(draw.sample(range(1, len(forward)), min(count, len(forward)) - 1))
    places = {node: sum(number >= end for end in ends) for number, node in enumerate(forward)}
    return places | {gradient: places[node] for gradient, node in backward.items() if draw.random() < 0.9}


@pytest.mark.parametrize("seed", range(50))
def test_stages_compute_what_the_whole_graph_does(seed):
    graph, forward, backward = generate(seed)
    whole = run_whole(graph)
    for number in range(CUTS):
        draw = random.Random(f"{seed} {number}")
        count = draw.randint(2, 5)
        places = complete_places(graph, places_of_cut(forward, backward, count, draw))
        messages = find_messages(graph, places)
        assert len({(m.tensor, m.after, m.source, m.target) for m in messages}) == len(messages)
        assert all(m.source != m.target for m in messages)
        values, order = run_stages(graph, places, messages, count, draw)
        assert all(value == whole[node] for (_, node), value in values.items())
        when = {one: at for at, one in enumerate(order)}
        last = ("after" in places) and when[places["after"], "after"]
        assert all(when[places[u], u] < last for u in graph.controls["train"])  # it waits for all members of the group


def test_blocks_stay_together():
    graph, forward, backward = next(g for seed in range(50) if (g := generate(seed))[0].blocks)
    places = complete_places(graph, places_of_cut(forward, backward, 3, random.Random(1)))
    assert len({places[node] for node in graph.blocks}) == 1


def test_small_things_go_to_large_ones():
    inputs = {"a": (), "b": (), "of_a": ("a:0",), "of_b": ("b:0",), "norm": ("of_a:0", "of_b:0")}
    inputs["clipped"] = ("b:0", "norm:0")
    graph = GraphToCut(tuple(inputs), inputs, size_bytes={"a:0": 400, "b:0": 100, "norm:0": 4})
    places = complete_places(graph, {"a": 0, "b": 1})
    assert places == {"a": 0, "b": 1, "of_a": 0, "of_b": 1, "norm": 0, "clipped": 1}
    sent = [(m.tensor, m.source, m.target) for m in find_messages(graph, places)]
    assert sent == [("of_b:0", 1, 0), ("norm:0", 0, 1)]


def test_a_scalar_draws_no_sum_of_gradients():
    """The accumulator is scaled by a number of another stage before the gradient comes."""
    inputs = {"gradient": (), "examples": (), "handle": (), "take": ("handle:0",), "scaled": ("take:0", "examples:0")}
    inputs |= {"added": ("scaled:0", "gradient:0"), "add": ("handle:0", "added:0"), "reduced": ("added:0",)}
    order = ("examples", "handle", "take", "scaled", "gradient", "added", "add", "reduced")
    sizes = {"examples:0": 4} | dict.fromkeys(("gradient:0", "take:0", "scaled:0", "added:0"), 4000)
    graph = GraphToCut(order, inputs, blocks=dict.fromkeys(("handle", "take", "add"), "handle"), size_bytes=sizes)
    places = complete_places(graph, {"gradient": 0, "examples": 1})
    assert places == dict.fromkeys(inputs, 0) | {"examples": 1}
    assert [m.tensor for m in find_messages(graph, places)] == ["examples:0"]


def test_what_takes_nothing_goes_to_who_takes_it():
    graph = GraphToCut(
        order=("drawn", "scaled", "variable"), inputs={"drawn": (), "scaled": ("drawn:0",), "variable": ("scaled:0",)}
    )
    assert complete_places(graph, {"variable": 2}) == {"drawn": 2, "scaled": 2, "variable": 2}


def test_messages_of_a_run():
    graph = GraphToCut(order=("a", "b", "c"), inputs={"a": (), "b": ("a:0",), "c": ("b:0",)})
    messages = find_messages(graph, {"a": 0, "b": 1, "c": 0})
    assert [m.tensor for m in messages_within(messages, {"a", "b"}, frozenset())] == ["a:0"]
    assert [m.tensor for m in messages_within(messages, {"a", "b", "c"}, frozenset())] == ["a:0", "b:0"]
    assert [m.tensor for m in messages_within(messages, {"b", "c"}, frozenset({"a:0"}))] == ["b:0"]
