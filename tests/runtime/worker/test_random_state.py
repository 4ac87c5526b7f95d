import random

import numpy as np
import pytest

from parallax.runtime.worker.random_state import EqualUntilBuilt


@pytest.fixture(autouse=True)
def restored():
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def drawn(rank, seeds=lambda: None):
    """What one process draws while it builds its graph, and afterwards as that worker."""
    alike = EqualUntilBuilt(7)
    seeds()
    built = random.random(), np.random.random()
    alike.part(rank)
    alike.part(rank)
    return built, (random.random(), np.random.random())


def test_processes_draw_alike_until_the_graph_is_built_and_then_each_its_own():
    functions = random.seed, random.setstate, np.random.seed, np.random.set_state
    first, again, second = drawn(0), drawn(0), drawn(1)
    assert first == again and first[0] == second[0]
    assert not set(first[1]) & set(second[1])
    assert (random.seed, random.setstate, np.random.seed, np.random.set_state) == functions


def test_a_generator_that_the_script_has_seeded_goes_on_as_it_is():
    (_, first), (_, second) = drawn(0, lambda: np.random.seed(3)), drawn(1, lambda: np.random.seed(3))
    assert first[1] == second[1] and first[0] != second[0]
    state = random.Random(5).getstate()
    assert drawn(0, lambda: random.setstate(state))[1][0] == drawn(1, lambda: random.setstate(state))[1][0]
