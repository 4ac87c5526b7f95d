"""Half precision on the wire: which ops of a worker's graph send it, and how rounding is measured; no cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.base.errors import PlanError
from parallax.plans.plan import one_host
from parallax.settings.config import Config
from parallax.transform.building.all_to_all import ALL_REDUCE, ALL_TO_ALL
from parallax.transform.building.editor import Worker
from parallax.transform.building.wire import GRADIENTS, ROWS, SAMPLED_ROWS, Wire
from parallax.transform.pipeline import WorkerGraph, transform
from tests.equality import models
from tests.transform.test_transform import decided

v1 = tf.compat.v1
SENT = (ALL_TO_ALL, ALL_REDUCE, "HorovodAllgather")
HALVES = (tf.bfloat16, tf.float16, tf.int16)  # bfloat16 is gathered as the integers of its bits


def worker_graph(wire: str | None, worker: Worker | None = None, **options: Any) -> WorkerGraph:
    view, rewrites = decided(lambda rows: models.two_lookups(rows, "Adagrad", True), **options)
    terms = replace(rewrites.terms, wire_dtype=wire)
    return transform(view, replace(rewrites, terms=terms), worker or Worker(0, 2, 7))


def sent(made: WorkerGraph, among: str = "workers") -> list[tuple[str, Any]]:
    """(op, type) of all that is sent and is no id, those that only a fetch of a whole table needs left out."""
    found = []
    for node in made.graph_def.node:
        if node.op in SENT and "/whole/" not in node.name:
            dtype = tf.dtypes.as_dtype(node.attr["T"].type)
            if dtype not in (tf.int32, tf.int64) and node.attr["among"].s in (b"", among.encode()):
                found += [(node.op, dtype)] * max(1, node.attr["N"].i)
    return sorted(found, key=str)


def test_rows_and_gradient_rows_travel_halved_and_norms_do_not() -> None:
    kinds = sent(worker_graph("bfloat16"))
    assert {dtype for op, dtype in kinds if op == ALL_TO_ALL} == {tf.bfloat16}
    assert [dtype for op, dtype in kinds if op == ALL_REDUCE] == [tf.float32] * 3  # two norms, one gradient


def test_float16_is_added_up_as_it_travels_but_for_norms() -> None:
    kinds = sent(worker_graph("float16"))
    assert {dtype for op, dtype in kinds if op == ALL_TO_ALL} == {tf.float16}
    assert sorted(str(d) for op, d in kinds if op == ALL_REDUCE) == sorted(
        str(d) for d in (tf.float16, tf.float32, tf.float32)
    )


@pytest.mark.parametrize(("wire", "halved"), [("bfloat16", tf.int16), ("float16", tf.float16)])
def test_gathered_rows_travel_halved(wire: str, halved: Any) -> None:
    kinds = sent(worker_graph(wire, routes={"emb": "allgather", "bias": "allgather"}))
    assert {dtype for op, dtype in kinds if op == "HorovodAllgather"} == {halved}


def test_within_a_host_nothing_is_rounded() -> None:
    made = worker_graph("bfloat16", Worker(0, 4, 7, hosts=(0, 0, 1, 1), merges_in_host=True))
    assert {dtype for op, dtype in sent(made, "host") if op == ALL_TO_ALL} == {tf.float32}
    assert {dtype for op, dtype in sent(made) if op == ALL_TO_ALL} == {tf.bfloat16}


def test_without_it_nothing_is_halved_measured_or_counted_otherwise() -> None:
    plain, halved = worker_graph(None), worker_graph("bfloat16")
    assert not [dtype for _, dtype in sent(plain) if dtype in HALVES] and not plain.roundings
    assert [c.row_bytes for c in halved.counters] == [c.row_bytes / 2 for c in plain.counters]
    assert {r.kind for r in halved.roundings} == {ROWS, GRADIENTS}


def measured(dtype: str, *runs: Any) -> Any:
    graph = tf.Graph()
    with graph.as_default():
        wire, rows = Wire("here", dtype), v1.placeholder(tf.float32, [None, 4])
        out = wire.out(rows, ROWS)
        (rounding,) = wire.roundings
        with v1.Session(graph=graph) as session:
            session.run(rounding.initializer)
            for run in runs:
                session.run(out, {rows: run})
            return session.run(rounding.tensor)


def test_the_rounding_of_rows_is_measured_against_their_norm() -> None:
    exact = np.array([[1 + 2**-9, 0, 0, 0], [3, 0, 4, 0], [0, 0, 0, 0]], np.float32)
    runs, sampled, total, largest, magnitude = measured("bfloat16", exact, exact[:1] * 2)
    error = 2**-9 / (1 + 2**-9)
    assert (runs, sampled, magnitude) == (2, 3, 4)
    assert (total, largest) == pytest.approx((2 * error, error))


def test_what_float16_cannot_hold_shows_as_an_infinite_or_whole_error() -> None:
    assert measured("float16", np.full([1, 4], 1e5, np.float32))[3] == np.inf
    assert measured("float16", np.full([1, 4], 1e-9, np.float32))[3] == 1
    assert measured("bfloat16", np.full([1, 4], 1e-9, np.float32))[3] < 2**-8


def test_no_rows_and_many_rows_are_measured_too() -> None:
    assert measured("float16", np.zeros([0, 4], np.float32)).tolist() == [1, 0, 0, 0, 0]
    many = np.ones([SAMPLED_ROWS + 9, 4], np.float32)
    many[-1] = 7
    assert measured("float16", many).tolist() == [1, SAMPLED_ROWS, 0, 0, 7]


def test_a_plan_file_says_what_travels_and_another_wish_is_refused(tmp_path: Any) -> None:
    graph = tf.Graph()
    with graph.as_default():
        models.two_lookups(6, "Adagrad", False)
    analysed, path = analyse(graph), tmp_path / "plan.json"
    path.write_text(plan_for(analysed, one_host(2), Config(wire_dtype="float16")).to_json())
    for wish in (None, "float16"):
        assert plan_for(analysed, one_host(2), Config(plan_file=path, wire_dtype=wish)).wire_dtype == "float16"
    with pytest.raises(PlanError, match="with wire_dtype 'float16', but the job asks for 'bfloat16'"):
        plan_for(analysed, one_host(2), Config(plan_file=path, wire_dtype="bfloat16"))
