"""The worker's graph for a plan: which collectives it has, what all workers share, and what is refused; no cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.analysis.planner import make_plan
from parallax.analysis.reading.construction import record
from parallax.base.errors import GraphError, PlanError, TransformError
from parallax.graph.view import GraphView
from parallax.plans.plan import PlanConstraints, one_host
from parallax.plans.rewrites import Rewrites
from parallax.runtime.worker.session.accumulation import Accumulation
from parallax.runtime.worker.session.names import Names
from parallax.settings.config import Config
from parallax.transform import pipeline
from parallax.transform.between_passes import check_pass
from parallax.transform.building.all_to_all import ALL_REDUCE, ALL_TO_ALL
from parallax.transform.building.editor import Worker, open_editor
from parallax.transform.invariants import check, check_exchanges
from parallax.transform.passes.random_seeds import set_seeds
from parallax.transform.pipeline import WorkerGraph, transform
from tests.equality import models

v1 = tf.compat.v1
record.install()


def decided(build: Any, rows: int = 6, routes: dict[str, str] | None = None) -> tuple[GraphView, Rewrites]:
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(3)
        build(rows)
    analysed = analyse(graph)
    sparse = {v.name: "alltoall" for v in analysed.spec.variables if v.cls.value == "sparse"}
    plan = make_plan(analysed.spec, one_host(2), PlanConstraints(routes=sparse if routes is None else routes))
    return analysed.captured.view, rewrites_of(analysed, plan)


def worker_graph(build: Any, rank: int = 0, **options: Any) -> WorkerGraph:
    view, rewrites = decided(build, **options)
    return transform(view, rewrites, Worker(rank, 2, 7))


def collectives(made: WorkerGraph, where: str = "") -> dict[str, int]:
    """Collectives by kind, those that only a fetch of a whole table needs left out; joined ones count one by one."""
    names = [n for n in made.graph_def.node if n.op.startswith(("Horovod", ALL_TO_ALL)) and "/whole/" not in n.name]
    found = Counter(n.op.removeprefix("Horovod").removeprefix("Parallax") for n in names if where in n.name)
    members = [name for one in made.fused for name in one.members]
    alone = [n.name for n in made.graph_def.node if n.op == ALL_REDUCE and n.attr["N"].i == 1]
    found["AllReduce"] = sum(where in name for name in (*members, *alone))
    return {kind: number for kind, number in found.items() if number}


def two_equal_tables(rows: int) -> None:
    x = models.ids(rows)
    h = tf.nn.embedding_lookup(models.table("a", (100, 64)), x) * tf.nn.embedding_lookup(models.table("b", (50, 64)), x)
    v1.train.AdagradOptimizer(0.1).minimize(models.squared(models.dense(h), rows))


def test_two_tables_of_equal_width_share_one_exchange() -> None:
    made = worker_graph(two_equal_tables)
    assert collectives(made) == {"AllToAll": 3, "AllReduce": 1}


def test_tables_of_another_width_or_type_have_their_own() -> None:
    assert collectives(worker_graph(models.several_tables))["AllToAll"] == 3 * 3


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("alltoall", {"AllToAll": 3, "AllReduce": 1}),
        ("allgather", {"Allgather": 2, "AllReduce": 1}),
        ("allreduce", {"AllReduce": 2}),
    ],
)
def test_each_route_has_its_collectives_and_no_other(route: str, expected: dict[str, int]) -> None:
    made = worker_graph(
        lambda rows: v1.train.AdagradOptimizer(0.1).minimize(
            models.squared(models.dense(tf.nn.embedding_lookup(models.table(), models.ids(rows))), rows)
        ),
        routes={"emb": route},
    )
    assert collectives(made) == expected


def test_clipping_by_the_global_norm_adds_one_scalar_for_each_sparse_gradient() -> None:
    plain = worker_graph(lambda rows: models.two_lookups(rows, "Adagrad", False))
    clipped = worker_graph(lambda rows: models.two_lookups(rows, "Adagrad", True))
    assert collectives(clipped)["AllReduce"] == collectives(plain)["AllReduce"] + 2


def test_a_tied_table_is_all_reduced_like_any_dense_variable() -> None:
    assert collectives(worker_graph(models.tied)) == {"AllReduce": 1}


def test_ids_that_come_from_another_lookup_wait_for_it_in_a_second_exchange() -> None:
    made = worker_graph(models.looked_up_twice)
    assert collectives(made)["AllToAll"] == 6


def test_a_lookup_without_gradient_is_pulled_apart_so_that_its_rows_are_not_touched() -> None:
    made = worker_graph(models.frozen_lookup)
    assert collectives(made)["AllToAll"] == 3 + 2


@pytest.mark.parametrize(
    "model", ["moving averages", "sampled softmax", "positions, mixed", "several tables", "bags, safe"]
)
def test_all_workers_have_the_same_nodes_in_the_same_order(model: str) -> None:
    view, rewrites = decided(models.MODELS[model])
    zero, one = (transform(view, rewrites, Worker(rank, 2, 7)).graph_def for rank in range(2))
    assert [(n.name, n.op, list(n.input)) for n in zero.node] == [(n.name, n.op, list(n.input)) for n in one.node]


def test_the_same_decisions_give_the_same_graph_byte_for_byte() -> None:
    view, rewrites = decided(models.MODELS["several tables"])
    first, again = (transform(view, rewrites, Worker(1, 2, 7)).graph_def for _ in range(2))
    assert first.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)


def test_tables_and_slots_hold_the_rows_of_their_worker() -> None:
    made = worker_graph(lambda rows: models.two_lookups(rows, "Adam", False), rank=1)
    shapes = {n.name: [d.size for d in n.attr["shape"].shape.dim] for n in made.graph_def.node if n.op == "VarHandleOp"}
    assert shapes["emb"] == shapes["emb/Adam"] == shapes["emb/Adam_1"] == [5, 4]
    assert shapes["bias"] == [5]
    assert shapes["w"] == [4, 1]


def test_random_ops_differ_between_workers_and_initial_values_do_not() -> None:
    def build(rows: int) -> None:
        h = tf.nn.dropout(tf.nn.embedding_lookup(models.table(), models.ids(rows)), rate=0.5)
        v1.train.AdagradOptimizer(0.1).minimize(models.squared(models.dense(h), rows))

    zero, one = (
        {
            n.name: (n.attr["seed"].i, n.attr["seed2"].i)
            for n in worker_graph(build, rank).graph_def.node
            if "seed2" in n.attr
        }
        for rank in range(2)
    )
    differing = {name for name in zero if zero[name] != one[name]}
    assert differing == {name for name in zero if "dropout" in name}
    assert len(zero) > len(differing)


def test_the_seed_of_a_job_gives_all_that_a_graph_does_not_seed() -> None:
    with tf.Graph().as_default() as graph:
        tf.random.normal([3], name="unseeded")

    def seeds(job_seed: int, rank: int) -> list[tuple[int, int]]:
        graph_def = graph.as_graph_def()
        set_seeds(graph_def, frozenset(), Worker(rank, 2, job_seed))
        return [(n.attr["seed"].i, n.attr["seed2"].i) for n in graph_def.node if "seed2" in n.attr]

    assert len(seeds(7, 0)) == 1 and (0, 0) not in seeds(7, 0)
    assert seeds(7, 0) == seeds(7, 0) and seeds(7, 0) != seeds(7, 1) and seeds(7, 0) != seeds(8, 0)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_vocabulary_sorted_by_frequency_is_balanced(workers: int) -> None:
    draw = np.random.RandomState(0)
    asked = np.zeros(workers)
    for _ in range(workers):  # each worker asks an owner once for each distinct row
        rows = np.unique(np.minimum(draw.zipf(1.3, 640) - 1, 99_999))
        asked += np.bincount(rows % workers, minlength=workers)
    assert asked.max() <= 1.2 * asked.mean()


def test_a_gradient_that_is_not_exchanged_is_found_and_its_op_named() -> None:
    view, rewrites = decided(lambda rows: models.two_lookups(rows, "Adagrad", False))
    worker = Worker(0, 2, 7)
    made = transform(view, rewrites, worker).graph_def
    check(made, rewrites, worker)
    (reduction,) = [r for r in rewrites.all_reduces if r.kind == "gradient"]
    node = next(n for n in made.node if n.name == reduction.edges[0].node)
    node.input[reduction.edges[0].slot] = reduction.tensor
    with pytest.raises(TransformError, match=f"'{node.name}' must take the all-reduced value"):
        check(made, rewrites, worker)


def test_an_update_with_raw_rows_is_found_and_its_op_named() -> None:
    view, rewrites = decided(lambda rows: models.two_lookups(rows, "Adagrad", False))
    made = transform(view, rewrites, Worker(0, 2, 7)).graph_def
    edge = rewrites.pushes[0].values[0]
    next(n for n in made.node if n.name == edge.node).input[edge.slot] = view.inputs(edge.node)[edge.slot]
    with pytest.raises(TransformError, match=f"'{edge.node}' must take exchanged rows"):
        check_exchanges({node.name: node for node in made.node}, rewrites)


def test_a_table_left_whole_and_a_lookup_left_local_are_found() -> None:
    view, rewrites = decided(lambda rows: models.two_lookups(rows, "Adagrad", False))
    made = transform(view, rewrites, Worker(0, 2, 7)).graph_def
    with pytest.raises(TransformError, match="must have the local shape"):
        check(made, rewrites, Worker(1, 2, 7))
    wrong = replace(rewrites, lookups=(replace(rewrites.lookups[0], node="emb"),))
    with pytest.raises(TransformError, match="must be a pull, and is VarHandleOp"):
        check(made, wrong, Worker(0, 2, 7))


@pytest.mark.parametrize(
    ("left_out", "rule"),
    [
        ("spread_tables", "have the shape of this worker's rows"),
        ("reduce_gradients", "take the all-reduced value"),
        ("slice_rows", "take the local rows"),
        ("exchange_rows", "be a pull"),
        ("gather_rows", "have all rows beside it"),
    ],
)
def test_a_pass_that_leaves_work_undone_is_named_with_the_op(monkeypatch, left_out: str, rule: str) -> None:
    def nothing(editor: Any, rewrites: Rewrites) -> None:
        """Leaves everything undone."""

    nothing.__name__ = left_out
    passes = tuple(nothing if one.__name__ == left_out else one for one in pipeline.PASSES)
    monkeypatch.setattr(pipeline, "PASSES", passes)
    view, rewrites = decided(two_equal_tables)
    with pytest.raises(TransformError, match=f"After pass {left_out}, '.*' must {rule}"):
        transform(view, rewrites, Worker(0, 2, 7))


def test_an_op_that_takes_a_tensor_of_a_removed_one_is_named() -> None:
    view, rewrites = decided(two_equal_tables)
    editor = open_editor(view, Worker(0, 2, 7), rewrites.terms)
    taken = next(n for n in view.nodes if view.consumers(f"{n}:0"))
    editor.become_no_op(taken, [])
    with pytest.raises(TransformError, match=f"After pass some_pass, .* is '{taken}:0' of a removed op"):
        check_pass(editor, rewrites, "some_pass")


def test_a_node_that_becomes_two_things_is_named() -> None:
    view, rewrites = decided(two_equal_tables)
    editor = open_editor(view, Worker(0, 2, 7), rewrites.terms)
    node = rewrites.lookups[0].node
    editor.become_constant(node, 1.0)
    editor.become_no_op(node, [])
    with pytest.raises(TransformError, match=f"After pass some_pass, '{node}' must become one thing"):
        check_pass(editor, rewrites, "some_pass")


def test_a_graph_with_names_of_parallax_is_refused() -> None:
    def build(rows: int) -> None:
        models.two_lookups(rows, "Adagrad", False)
        tf.constant(1, name="parallax/mine")

    with pytest.raises(TransformError, match="'parallax/mine'"):
        worker_graph(build)


def test_the_decisions_and_ops_of_a_small_graph(golden) -> None:
    view, rewrites = decided(lambda rows: models.two_lookups(rows, "Adagrad", True))
    made = transform(view, rewrites, Worker(0, 2, 7))
    lists = [name for name in Rewrites.__slots__ if name != "terms"]
    lines = [repr(d) for name in lists for d in getattr(rewrites, name)]
    before = Counter(n.op for n in view.graph_def.node)
    after = Counter(n.op for n in made.graph_def.node)
    changed = {op: after[op] - before[op] for op in sorted(after | before) if after[op] != before[op]}
    golden("small_graph.txt", "\n".join([*lines, *(f"{op} {count:+d}" for op, count in changed.items())]) + "\n")


def kept(build: Any, steps: int = 3, rank: int = 0) -> WorkerGraph:
    view, rewrites = decided_by(build, accumulate_steps=steps)
    return transform(view, rewrites, Worker(rank, 2, 7))


def decided_by(build: Any, **constraints: Any) -> tuple[GraphView, Rewrites]:
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(3)
        build(6)
    analysed = analyse(graph)
    sparse = {v.name: "alltoall" for v in analysed.spec.variables if v.cls.value == "sparse"}
    plan = make_plan(analysed.spec, one_host(2), PlanConstraints(routes=sparse, **constraints))
    return analysed.captured.view, rewrites_of(analysed, plan)


def test_kept_gradients_are_pushed_with_their_own_ids() -> None:
    assert collectives(kept(two_equal_tables)) == {"AllToAll": 4, "AllReduce": 1}


def test_a_run_without_the_update_meets_nobody_but_for_its_rows() -> None:
    view, rewrites = decided_by(two_equal_tables, accumulate_steps=3)
    names = Names(view, transform(view, rewrites, Worker(0, 2, 7)))
    update = next(n for n in view.nodes if n == "Adagrad")
    sources = names.accumulated_by((update,), ())
    assert sources == {keep.values for keep in rewrites.accumulated_gradients} and len(sources) == 3
    turn = Accumulation(3)
    seen = []
    for _ in range(6):
        gather = turn.next_run(sources)
        resolved = names.resolve((update,), (), gather)
        nodes = {t.split(":")[0] for t in resolved.tensors}
        runs = names.run_view.ancestors(nodes)
        seen.append((sum(names.run_view.op(n) == ALL_TO_ALL for n in runs), update in nodes, resolved.had))
        assert turn.pending == len(seen) - 1 if len(seen) < 4 else turn.pending == len(seen) - 4
        turn.has_run(sources)
    batch, last = (2, False, (False,)), (4, True, (True,))
    assert seen == [batch, batch, last, batch, batch, last]
    assert turn.pending == 0


def test_a_gradient_after_anothers_update_cannot_be_kept() -> None:
    decided_by(models.chained)
    with pytest.raises(GraphError, match="all gradients of a batch must be computed before any is applied"):
        decided_by(models.chained, accumulate_steps=2)


def test_a_plan_file_of_asynchronous_training_is_for_no_other(tmp_path: Path) -> None:
    graph = tf.Graph()
    with graph.as_default():
        two_equal_tables(6)
    config, layout, file = Config(run_option="PS"), one_host(2, 1), tmp_path / "plan.json"
    file.write_text(plan_for(analyse(graph, synchronous=False), layout, config, synchronous=False).to_json())
    with pytest.raises(PlanError, match="made with sync=False, but the job has sync=True"):
        plan_for(analyse(graph), layout, Config(run_option="PS", plan_file=file))


def test_a_plan_file_says_how_many_batches_an_update_takes(tmp_path: Path) -> None:
    graph = tf.Graph()
    with graph.as_default():
        two_equal_tables(6)
    analysed = analyse(graph)
    file = tmp_path / "plan.json"
    file.write_text(plan_for(analysed, one_host(2), Config(accumulate_steps=3)).to_json())
    for steps in (1, 3):
        assert plan_for(analysed, one_host(2), Config(plan_file=file, accumulate_steps=steps)).accumulate_steps == 3
    with pytest.raises(PlanError, match="with accumulate_steps 3, but the job asks for 2"):
        plan_for(analysed, one_host(2), Config(plan_file=file, accumulate_steps=2))
