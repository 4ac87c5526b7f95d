"""The bytes and rounds of each route, on variables written down by hand; no TensorFlow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallax.plans.plan import RouteCost
from tests.analysis.specs import dense, make_plan, sparse, spec


def test_a_dense_variable_sends_twice_its_bytes_less_its_own_share() -> None:
    (planned,) = make_plan(spec(dense()), 4).variables
    assert planned.cost == RouteCost("allreduce", 2 * 3 * 160 // 4, 1)


def test_a_sparse_variable_costs_what_the_formulas_say() -> None:
    # 50 rows of 8 floats and one 4-byte id: ids and rows twice in the exchange, once in the gather, to 3 others of 4.
    (planned,) = make_plan(spec(sparse()), 4).variables
    assert planned.cost == RouteCost("alltoall", 3 * 50 * (4 + 2 * 32) // 4, 3)
    bytes_of = {r.route: r.sent_bytes for r in planned.rejected}
    expected = {"allgather": 3 * 50 * (4 + 32), "allreduce": 2 * 3 * (32000 + 4000) // 4, "ps": 50 * (4 + 8 + 2 * 32)}
    assert bytes_of == expected


@pytest.mark.parametrize(("wire", "summed"), [("bfloat16", 4), ("float16", 2)])
def test_half_precision_halves_rows_and_what_horovod_can_add_up(wire: str, summed: int) -> None:
    (planned,) = make_plan(spec(sparse()), 4, wire_dtype=wire).variables
    bytes_of = {r.route: r.sent_bytes for r in (planned.cost, *planned.rejected)}
    assert bytes_of == {
        "alltoall": 3 * 50 * (4 + 2 * 16) // 4,
        "allgather": 3 * 50 * (4 + 16),
        "allreduce": 2 * 3 * summed * (8000 + 1000) // 4,
        "ps": 50 * (4 + 8 + 2 * 16),
    }


def test_only_float32_is_halved() -> None:
    wide = replace(sparse(), dtype="float64", dtype_bytes=8)
    plans = [make_plan(spec(wide), 4, wire_dtype=wire) for wire in (None, "bfloat16")]
    assert plans[0].variables == plans[1].variables
