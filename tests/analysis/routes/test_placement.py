"""Partitions on servers: how many, where, and that no server has much more to carry than another."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from parallax.analysis.routes.placement import PARTITION_BYTES, partition_count, place
from parallax.graph.spec import Part, VariableSpec
from parallax.plans.rewrites import Table
from tests.analysis.specs import dense, sparse


def drawn(seed: int) -> tuple[list[VariableSpec], dict[str, float], int]:
    """Variables of many sizes, what a step moves for each, and a number of servers."""
    draw = random.Random(seed)
    variables = [sparse(f"v{i}", (draw.randint(1, 50_000), draw.randint(1, 64))) for i in range(draw.randint(1, 40))]
    return variables, {v.name: draw.random() * v.value_bytes for v in variables}, draw.randint(1, 9)


@pytest.mark.parametrize("seed", range(20))
def test_no_server_carries_more_than_another_by_more_than_one_partition(seed: int) -> None:
    variables, loads, servers = drawn(seed)
    carried, largest = [0.0] * servers, 0.0
    for name, (of_part,) in place(variables, loads, servers, {}).items():
        largest = max(largest, loads[name] / len(of_part))
        for server in of_part:
            carried[server] += loads[name] / len(of_part)
    assert max(carried) - min(carried) <= largest * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_place_does_not_depend_on_the_order_of_the_variables(seed: int) -> None:
    variables, loads, servers = drawn(seed)
    placed = place(variables, loads, servers, {})
    shuffled = random.Random(seed).sample(variables, len(variables))
    assert place(shuffled, loads, servers, {}) == placed


@pytest.mark.parametrize("seed", range(20))
def test_partitions_of_one_variable_are_as_far_apart_as_they_can(seed: int) -> None:
    variables, loads, servers = drawn(seed)
    wanted = {v.name: random.Random(v.name).randint(1, min(v.rows, 17)) for v in variables}
    for name, (of_part,) in place(variables, loads, servers, wanted).items():
        held = [of_part.count(server) for server in range(servers)]
        assert len(of_part) == wanted[name] and max(held) - min(held) <= 1


@pytest.mark.parametrize(("rows", "partitions"), [(1, 1), (11, 2), (11, 3), (11, 11), (1000, 7)])
def test_every_row_is_in_one_partition(rows: int, partitions: int) -> None:
    table = Table("emb", rows, (4,), "float32", ("emb",), "emb", (0,) * partitions)
    found = [0] * partitions
    for row in range(rows):
        found[row % partitions] = max(found[row % partitions], row // partitions + 1)
    assert [table.local_shape(p, partitions) for p in range(partitions)] == [(n, 4) for n in found]
    assert sum(found) == rows


def test_a_scalar_is_one_partition_without_rows() -> None:
    assert Table("step", 1, (), "int64", ("step",), "step", (0,), is_scalar=True).local_shape(0, 1) == ()


@pytest.mark.parametrize(
    ("partitions_bytes", "servers", "count"),
    [(1, 4, 1), (2, 4, 2), (4, 4, 4), (9, 4, 4), (9, 1, 1)],
)
def test_a_variable_has_a_partition_for_each_server_that_is_worth_it(
    partitions_bytes: int, servers: int, count: int
) -> None:
    rows = partitions_bytes * PARTITION_BYTES // 32
    assert partition_count(sparse(shape=(rows, 8)), 0, servers, None) == count


def test_a_long_row_is_not_cut() -> None:
    assert partition_count(dense(shape=(2, PARTITION_BYTES)), 0, 4, None) == 2
    assert partition_count(dense(shape=()), 0, 4, None) == 1


def test_a_variable_that_the_script_has_partitioned_keeps_its_parts() -> None:
    parts = (Part("emb/part_0", (30_000, 8)), Part("emb/part_1", (20_000, 8), 30_000))
    parted = replace(sparse(shape=(50_000, 8)), parts=parts)
    assert place([parted], {"emb": 1.0}, 2, {}) == {"emb": ((0,), (1,))}
    assert [len(p) for p in place([parted], {"emb": 1.0}, 2, {"emb": 3})["emb"]] == [3, 3]
