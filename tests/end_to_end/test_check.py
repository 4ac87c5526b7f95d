"""The command `parallax check`: two builds of a script's graph, compared, planned and looked through."""

from pathlib import Path

import pytest
import tensorflow as tf

from parallax.runtime.check.builds import differing_values, structural_difference

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parent / "scripts" / "odd.py"
CLI = ("-m", "parallax.entry.cli")


@pytest.mark.rotates
def test_what_would_be_refused_is_told_all_at_once_with_its_place(start):
    done = start(*CLI, "check", "--workers", 3, SCRIPT, "--name", cold=True).finish()
    assert done.status == 1, str(done)
    *lines, verdict = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["refused", "refused"], str(done)
    assert "tables" in lines[0] and "built 'rows_" in lines[1] and f"({SCRIPT}:16)" in lines[1], str(done)
    assert verdict == "A run would be refused; 0 suspicious, 0 to know. Nothing was started.", str(done)


def graph_with(value, seed):
    graph = tf.Graph()
    with graph.as_default():
        tf.constant(value, name="drawn")
        tf.compat.v1.random_uniform([2], seed=seed, name="random")
    return graph


def test_values_may_differ_between_two_builds_and_are_named():
    first, second = graph_with(1.0, 3), graph_with(2.0, 4).as_graph_def(add_shapes=True)
    assert structural_difference(first, second) == ""
    assert "between two builds: drawn, random/RandomUniform. Seed" in differing_values(first, second)
    assert differing_values(first, graph_with(1.0, 3).as_graph_def()) == ""
