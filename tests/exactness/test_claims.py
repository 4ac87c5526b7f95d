"""What the analysis says of a tensor is tried against what the workers and the one process have of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ops.exactness.claims import first_false
from parallax.analysis.propagation.states import SAME, Rows, State, Values
from parallax.graph.view import GraphView
from parallax.plans.rewrites import AllReduce, Scale, Table


@dataclass
class Said:
    """As much of a walk as claims are read from."""

    view: GraphView
    states: dict[str, State]
    all_reduces: list[AllReduce] = field(default_factory=list)
    scales: list[Scale] = field(default_factory=list)
    shared_rows: list[Any] = field(default_factory=list)
    merges: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    table_of: dict[str, str] = field(default_factory=dict)
    layouts: Any = None

    @property
    def facts(self) -> Said:
        """What every walk knows."""
        return self

    @property
    def assumptions(self) -> Said:
        """What the walk before found."""
        return self


@pytest.fixture(scope="module")
def view() -> GraphView:
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        tf.constant(0.0, name="t")
    return GraphView(graph.as_graph_def(add_shapes=True))


def claim(said: Said, expected: Any, *found: Any) -> str:
    one = {"t:0": np.asarray(expected, np.float64)}
    return str(first_false(said, one, [{"t:0": np.asarray(part, np.float64)} for part in found], 1e-9) or "")  # type: ignore[arg-type]


def test_what_is_the_same_has_the_one_value_on_every_worker(view: GraphView) -> None:
    said = Said(view, {"t:0": SAME})
    assert claim(said, [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]) == ""
    assert claim(said, [1.0, 2.0], [1.0, 2.0], [1.0, 4.0]) == (
        "Const 't:0' is said to be the same on all workers, and is off by 1 of its size"
    )


def test_parts_put_together_are_the_one_value(view: GraphView) -> None:
    said = Said(view, {"t:0": SAME}, all_reduces=[AllReduce("t:0", (), "mean")])
    assert claim(said, [3.0], [2.0], [4.0]) == ""
    assert "a part of a mean" in claim(said, [6.0], [2.0], [4.0])


def test_joined_rows_add_up_in_any_order(view: GraphView) -> None:
    said = Said(view, {"t:0": Values(("t:0",))})
    assert claim(said, [[1.0], [3.0], [2.0]], [[1.0], [2.0]], [[3.0]]) == ""
    assert "rows (values)" in claim(said, [[1.0], [3.0]], [[2.0]], [[2.0]])


def test_a_gradient_of_rows_is_the_mean_of_the_sums(view: GraphView) -> None:
    said = Said(view, {}, scales=[Scale("t:0", ())])
    assert claim(said, [[1.0], [3.0]], [[2.0]], [[6.0]]) == ""
    assert "a gradient of rows" in claim(said, [[1.0], [3.0]], [[1.0]], [[3.0]])


def test_an_owner_has_its_rows(view: GraphView) -> None:
    table = Table("emb", 3, (1,), "float32", ("emb",), "emb")
    said = Said(view, {"t:0": Rows("emb")}, tables={"emb": table})
    assert claim(said, [[0.0], [1.0], [2.0]], [[0.0], [2.0]], [[1.0]]) == ""
    assert "an owner's rows" in claim(said, [[0.0], [1.0], [2.0]], [[0.0], [1.0]], [[2.0]])
