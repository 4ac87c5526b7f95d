"""A worker's graph where owners have unequal shares, and the plan files that give them; no cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph, analyse, plan_for, rewrites_of
from parallax.analysis.planner import make_plan
from parallax.analysis.reading.construction import record
from parallax.base.errors import PlanError
from parallax.graph.ownership import Ownership
from parallax.plans.plan import Plan, PlanConstraints, one_host, plan_from_json
from parallax.report.plan_table import explain_variable, plan_table
from parallax.settings.config import Config
from parallax.transform.building.all_to_all import ALL_TO_ALL
from parallax.transform.building.editor import Worker
from parallax.transform.passes.server_partitions import row_places, slice_holder_rows
from parallax.transform.pipeline import transform
from tests.equality import models

v1 = tf.compat.v1
record.install()


def two_tables(rows: int) -> None:
    x = models.ids(rows)
    h = tf.nn.embedding_lookup(models.table("a", (100, 8)), x) * tf.nn.embedding_lookup(models.table("b", (50, 8)), x)
    v1.train.AdagradOptimizer(0.1).minimize(models.squared(models.dense(h), rows))


def planned(
    patterns: dict[str, tuple[int, ...]], workers: int = 3, route: str = "alltoall"
) -> tuple[AnalysedGraph, Plan]:
    """The plan of two tables with these patterns."""
    graph = tf.Graph()
    with graph.as_default():
        two_tables(6)
    analysed = analyse(graph)
    plan = make_plan(analysed.spec, one_host(workers), PlanConstraints(routes={"a": route, "b": route}))
    owned = tuple(replace(v, owner_pattern=patterns.get(v.name, ())) for v in plan.variables)
    return analysed, replace(plan, variables=owned)


def exchanges(patterns: dict[str, tuple[int, ...]]) -> int:
    """How many all-to-alls the graph of a worker has."""
    analysed, plan = planned(patterns)
    made = transform(analysed.captured.view, rewrites_of(analysed, plan), Worker(0, 3, 7))
    return sum(n.op == ALL_TO_ALL for n in made.graph_def.node)


def test_tables_of_one_pattern_share_an_exchange_and_others_do_not() -> None:
    assert exchanges({}) == exchanges({"a": (0, 2), "b": (0, 2)}) == 3
    assert exchanges({"a": (0, 2)}) == exchanges({"a": (0, 2), "b": (2, 0)}) == 6
    assert exchanges({"a": (0, 1, 2)}) == 3  # equal shares, written out


@pytest.mark.parametrize(("rank", "rows"), [(0, 40), (1, 0), (2, 60)])
def test_tables_and_slots_have_the_shape_of_what_their_worker_owns(rank: int, rows: int) -> None:
    analysed, plan = planned({"a": (0, 2, 2, 2, 0)})
    made = transform(analysed.captured.view, rewrites_of(analysed, plan), Worker(rank, 3, 7))
    shapes = {n.name: [d.size for d in n.attr["shape"].shape.dim] for n in made.graph_def.node}
    assert shapes["a"] == shapes["a/Adagrad"] == [rows, 8]
    assert made.spread["a/Adagrad"] == Ownership((0, 2, 2, 2, 0), 3)


@pytest.mark.parametrize("pattern", [(0, 1, 2), (2, 0, 0, 2, 0), (1,)])
@pytest.mark.parametrize("rows", [0, 1, 4, 11])
def test_whole_values_are_cut_and_put_together_again(pattern: tuple[int, ...], rows: int) -> None:
    ownership = Ownership(pattern, 3)
    with tf.Graph().as_default(), v1.Session() as session:
        whole = tf.constant(np.arange(2 * rows).reshape(rows, 2))
        held = [slice_holder_rows(whole, ownership, holder) for holder in range(3)]
        again = tf.gather(tf.concat(held, 0), row_places(rows, ownership))
        parts, found = session.run([held, again])
    for holder, part in enumerate(parts):
        assert part[:, 0].tolist() == [2 * row for row in range(rows) if ownership.holder(row) == holder]
    assert found[:, 0].tolist() == list(range(0, 2 * rows, 2))


def of_file(tmp_path: Path, pattern: Any, route: str = "alltoall") -> Plan:
    """What a job takes from a plan file in which a user has written a pattern."""
    analysed, plan = planned({}, route=route)
    raw = json.loads(plan.to_json())
    raw["variables"][0]["owner_pattern"] = pattern
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    return plan_for(analysed, one_host(3), Config(plan_file=str(tmp_path / "plan.json")))


def test_a_pattern_in_a_plan_file_gives_the_rows_of_each_owner(tmp_path: Path) -> None:
    plan = of_file(tmp_path, [0, 2, 2, 2, 0])
    assert plan.variable("a").owner_rows == (40, 0, 60) and plan.variable("b").owner_rows == (17, 17, 16)
    assert plan_from_json(plan.to_json()) == plan
    assert "2 owners" in plan_table(plan) and "worker 1 owns 0 rows" in explain_variable(plan, "a")


@pytest.mark.parametrize("pattern", [[0, 3], [-1], ["0"], [True, 0], [0.0]])
def test_a_pattern_that_names_no_worker_is_refused(tmp_path: Path, pattern: list[Any]) -> None:
    rule = "the owner_pattern of 'a' must name workers from 0 to 2, got"
    with pytest.raises(PlanError, match=f"{rule}|expected `int`.* at .*variables.0..owner_pattern"):
        of_file(tmp_path, pattern)


def test_a_pattern_of_rows_without_owners_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match="only variables on route alltoall have an owner_pattern, but 'a' takes route allgather"
    ):
        of_file(tmp_path, [0, 1], "allgather")
