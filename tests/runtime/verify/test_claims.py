"""`parallax verify --claims`: which tensors are tried in which step, and what is told of each kind of claim."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse
from parallax.analysis.planner import make_plan
from parallax.analysis.propagation.states import SAME, Rows, Values
from parallax.analysis.reading.construction import record
from parallax.base.errors import ConfigError
from parallax.graph.view import GraphView
from parallax.plans.plan import PlanConstraints, one_host
from parallax.plans.rewrites import AllReduce, Scale, Table
from parallax.runtime.verify.claim_records import (
    KEPT_FILE,
    START_FILE,
    ClaimGroups,
    check_claims,
    groups_of,
    save,
    save_claims,
    walk_of,
)
from parallax.runtime.verify.claims import Claims, find_watched
from parallax.runtime.verify.draws import concatenate_draws, draws_of, hidden_text
from parallax.runtime.verify.trials import CLAIM_TOLERANCE, Margins, Trials, evaluate_claims, place_in

v1 = tf.compat.v1
EMB = Table("emb", 3, (1,), "float32", ("emb",), "emb")
SAID = {
    "same": {"states": {"x:0": SAME}},
    "part": {"states": {"x:0": SAME}, "all_reduces": [AllReduce("x:0", (), "mean")]},
    "gradient": {"scales": [Scale("x:0", ())]},
    "values": {"states": {"x:0": Values(("x:0",))}},
    "rows": {"states": {"x:0": Rows("emb")}, "tables": {"emb": EMB}},
}
TRUE = {
    "same": ([[1.0], [2.0], [4.0]], [[1.0], [2.0], [4.0]], [[1.0], [2.0], [4.0]]),
    "part": ([[1.0], [2.0], [4.0]], [[2.0], [2.0], [4.0]], [[0.0], [2.0], [4.0]]),
    "gradient": ([[1.0], [2.0], [4.0]], [[6.0]], [[8.0]]),
    "values": ([[1.0], [2.0], [4.0]], [[4.0], [1.0]], [[2.0]]),
    "rows": ([[1.0], [2.0], [4.0]], [[1.0], [4.0]], [[2.0]]),
}
"""By kind of claim what the one process has, and each of two workers."""


@pytest.fixture(scope="module")
def graph():
    graph = tf.Graph()
    with graph.as_default():
        v1.placeholder(tf.float32, [3, 1], name="x")
        tf.square(v1.placeholder(tf.float32, [], name="y"), name="squared")
    return graph


def claims(graph, **said):
    nothing = {"states": {}, "all_reduces": [], "scales": [], "shared_rows": [], "merges": {}}
    known = SimpleNamespace(tables=said.pop("tables", {}), layouts=None)
    assumed = SimpleNamespace(table_of=said.pop("table_of", {}))
    view = GraphView(graph.as_graph_def(add_shapes=True))
    return Claims(SimpleNamespace(view=view, facts=known, assumptions=assumed, **{**nothing, **said}))


class Stub:
    """A one process whose values are given: of the steps, and of those that begin a rounding away."""

    def __init__(self, values, moved=None):
        self.values, self.moved = values, values if moved is None else moved

    def each_step(self, fetches, batches, starts, rounding=None):
        for _ in zip(fetches, batches, starts, strict=True):
            yield [None, np.asarray(self.values if rounding is None else self.moved, np.float32)]


def tried(graph, folder, said, one, *found):
    """What is told of `x:0` after one step."""
    ClaimGroups((("x:0",),), (), 0).write(folder)
    save(folder / START_FILE.format(step=0), {})
    for rank, values in enumerate(found):
        save(folder / KEPT_FILE.format(rank=rank, step=0), {"x:0": np.asarray(values, np.float32)})
    margins = Margins(CLAIM_TOLERANCE, 32.0, 0.0)
    evaluate_claims(one, claims(graph, **said), "train", [{}], folder, len(found), margins, graph)
    return Trials.read(folder)


@pytest.mark.parametrize("kind", SAID)
def test_a_claim_of_each_kind_holds_or_is_named_with_op_line_and_difference(graph, tmp_path, kind):
    value, *parts = TRUE[kind]
    held = tried(graph, tmp_path, SAID[kind], Stub(value), *parts)
    assert [row.counts for row in held.rows] == [[1, 0, 0]] and not held.false, held.text()
    assert held.text().endswith("No claim of 1 is false in 1 step; 0 other tensors have no claim\n")
    parts[1] = (np.asarray(parts[1]) * 2 + 1).tolist()  # of worker 1
    found = tried(graph, tmp_path, SAID[kind], Stub(value), *parts)
    assert [row.counts for row in found.rows] == [[0, 0, 1]], found.text()
    assert found.false.startswith("step 1, Placeholder 'x:0' is said to be ") and "is off by" in found.false
    assert f"({__file__}:" in found.false, found.false


def test_what_one_process_repeats_only_roughly_is_not_told_and_no_larger_error_is_allowed(graph, tmp_path):
    one = Stub([[1.0], [2.0], [4.0]], [[1.1], [2.0], [4.0]])
    rough = tried(graph, tmp_path, SAID["same"], one, [[1.0], [2.0], [4.3]], [[1.0], [2.0], [4.0]])
    assert [row.counts for row in rough.rows] == [[0, 1, 0]] and not rough.false, rough.text()
    assert ", 1 of them as far as rounding can tell" in rough.text()
    wrong = tried(graph, tmp_path, SAID["same"], one, [[1.0], [2.0], [44.0]], [[1.0], [2.0], [4.0]])
    assert "is off by 10 of its size" in wrong.false


def test_tensors_are_dealt_out_to_steps_by_their_size_and_what_is_left_out_is_said(graph):
    said = claims(graph, states={"x:0": SAME, "y:0": SAME, "squared:0": SAME})
    tensors = ("x:0", "y:0", "squared:0", "other:0")
    groups = groups_of(said, tensors, {"x:0": 60, "y:0": 30, "squared:0": 101}, limit_bytes=100)
    assert groups == ClaimGroups((("x:0", "y:0"),), ("squared:0",), 1)
    groups = groups_of(said, tensors, {"x:0": 60, "y:0": 50, "squared:0": 50}, limit_bytes=100)
    assert groups.groups == (("x:0",), ("y:0", "squared:0")) and groups.of(3) == ("y:0", "squared:0")
    text = Trials([], 1, "", 0, ["squared:0"], 2, 3).text()
    assert "Not checked: 1 tensor too large to keep (squared:0)." in text
    assert "Not checked: 2 tensors, for lack of steps. Checking all takes --steps 3." in text


@pytest.fixture(scope="module")
def references():
    """A graph whose variables are references, with a gradient taken in a function."""
    record.install()
    graph = tf.Graph()
    with graph.as_default():
        v1.get_variable_scope().set_use_resource(False)
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        w = v1.get_variable("w", [2, 1])
        doubled = tf.function(lambda value: value @ w * 2.0)
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(doubled(x))))
    return graph


def test_memory_that_an_update_may_write_is_not_looked_at_and_all_else_is(references):
    view = analyse(references).captured.view
    found = find_watched(view, "GradientDescent")
    assert found and not {"w:0", "w/read:0"} & set(found)
    assert any(view.op(tensor.split(":")[0]) == "MatMul" for tensor in found)


def test_an_op_in_a_function_has_the_place_of_the_call(references):
    view = analyse(references).captured.view
    made = {op.name for op in references.get_operations()}
    inlined = [n for n in view.nodes if view.op(n) == "MatMul" and n not in made]
    assert inlined and place_in(references, f"{inlined[0]}:0").startswith(f"{__file__}:")


def test_the_groups_are_left_for_both_sides(references, tmp_path):
    analysed = analyse(references)
    plan = make_plan(analysed.spec, one_host(2, 0), PlanConstraints())
    save_claims(walk_of(analysed, plan), tmp_path, "GradientDescent", lambda tensors: dict.fromkeys(tensors, 4))
    (group,) = ClaimGroups.read(tmp_path).groups
    assert any(tensor.startswith("gradients/") for tensor in group)


def test_claims_that_cannot_be_tried_are_refused_before_the_start(references):
    analysed = analyse(references)
    plan = make_plan(analysed.spec, one_host(2, 0), PlanConstraints())
    check_claims(plan, None, None)
    for refused, joined, replan in ((plan, "--batch 4", None), (plan, None, "apply")):
        with pytest.raises(ConfigError, match="--claims"):
            check_claims(refused, joined, replan)
    with pytest.raises(ConfigError, match="takes 2 batches here"):
        check_claims(make_plan(analysed.spec, one_host(2, 0), PlanConstraints(accumulate_steps=2)), None, None)
    with pytest.raises(ConfigError, match="rows on servers"):
        check_claims(make_plan(analysed.spec, one_host(2, 2), PlanConstraints(run_option="PS")), None, None)


def test_what_is_drawn_for_rows_is_fetched_from_workers_and_what_all_draw_alike_is_not():
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        w = v1.get_variable("w", [2, 1])
        shared = tf.random.normal([2, 1], name="shared")
        rows = tf.nn.dropout(x, rate=0.5, name="own")
        hidden = tf.cond(tf.equal(tf.shape(x)[0], 1), lambda: rows, lambda: tf.nn.dropout(rows, rate=0.1, name="inner"))
        loss = tf.reduce_mean(tf.square(hidden @ (w + 0.1 * shared)))
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    analysed = analyse(graph)
    plan = make_plan(analysed.spec, one_host(2, 0), PlanConstraints())
    tensors, hidden = draws_of(walk_of(analysed, plan), "GradientDescent")
    assert tensors == ["own/random_uniform/RandomUniform:0"] and ["inner" in name for name in hidden] == [True]
    assert "in conditionals, loops or functions" in hidden_text(hidden) and hidden[0] in hidden_text(hidden)


def test_draws_join_along_the_axis_along_which_one_process_draws_more(tmp_path):
    files = []
    for rank, rows in enumerate((2, 3)):
        files.append(tmp_path / f"{rank}.npz")
        drawn = {"own:0": np.full([4, rows, 2], rank), "odd:0": np.full([rows, 5], rank), "alike:0": np.zeros(7)}
        save(files[-1], drawn)
    shapes = {"own:0": (4, 5, 2), "alike:0": (7,), "odd:0": (4, 4), "gone:0": (1,)}
    found = concatenate_draws([[file] for file in files], shapes)
    assert list(found) == ["own:0"] and found["own:0"][0, :, 0].tolist() == [0, 0, 1, 1, 1]
