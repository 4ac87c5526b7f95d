"""The least bytes that a host must send, and receive, in a step: a formula that bounds every route.

With H hosts, a ring all-reduce sends 2 (H-1)/H of the dense parameters' bytes (Patarasuk and Yuan 2009), and no other
all-reduce sends less. Each row of a table has an owner: of the u distinct rows that a host's workers touch, (H-1)/H are
on other hosts. The host sends their ids and gradient rows, and receives the rows. It serves as much to the others.

Simplifications: rows are owned and looked up in equal shares, so each host sends as much as the mean host. Every table
sends its own ids. A table that costs less as a dense variable counts as one. Headers and scalars are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ops.bench.race.models import Model

ELEMENT_BYTES = 4
STEPS = 4
"""Steps over which touched rows are averaged; rows vary little from step to step."""


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes per step, the same for sending and for receiving.

    Attributes:
        bytes: the total of one host.
        formula: the formula, with the numbers.
    """

    bytes: float
    formula: str


def least_bytes(model: Model, graph: Any, hosts: int, workers: int) -> Least:
    """Returns the least bytes for `hosts` hosts of `workers` workers each.

    Args:
        model: the model, for its batches and tables.
        graph: the tf.Graph it was built in; its trainable variables that are neither tables nor partitions of tables
            are dense.
        hosts: number of hosts.
        workers: number of workers per host.
    """
    share = (hosts - 1) / hosts
    dense_bytes = ELEMENT_BYTES * dense_parameters(model, graph)
    total, terms = 2 * share * dense_bytes, [f"2 * {hosts - 1}/{hosts} * {dense_bytes:,} dense"]
    sparse: dict[tuple[int, int], list[float]] = {}
    touched = touched_rows(model, hosts, workers)
    for table in model.tables:
        rows = touched[table.name]
        id_bytes = 4 if table.rows <= 2**31 else 8
        row_bytes = id_bytes + 2 * table.width * ELEMENT_BYTES
        whole_bytes = ELEMENT_BYTES * table.rows * table.width
        if rows * row_bytes < 2 * whole_bytes:
            sparse.setdefault((id_bytes, table.width), []).append(rows)
            total += share * rows * row_bytes
        else:
            terms.append(f"2 * {hosts - 1}/{hosts} * {whole_bytes:,} for all of {table.name}")
            total += 2 * share * whole_bytes
    for (id_bytes, width), rows_of in sparse.items():
        number = f" of {len(rows_of)} tables" if len(rows_of) > 1 else ""
        terms.append(f"{hosts - 1}/{hosts} * {sum(rows_of):,.1f} rows{number} * ({id_bytes} + 2 * {width} * 4)")
    return Least(total, f"{' + '.join(terms)} = {total:,.0f} bytes")


def dense_parameters(model: Model, graph: Any) -> int:
    """Returns the number of elements of all trainable variables except tables."""
    tables = {table.name for table in model.tables}
    variables = graph.get_collection("trainable_variables")
    return sum(v.shape.num_elements() for v in variables if not tables & {v.op.name, v.op.name.rpartition("/part_")[0]})


def touched_rows(model: Model, hosts: int, workers: int) -> dict[str, float]:
    """Returns table -> distinct rows that a host's workers look up in a step, averaged over hosts and STEPS steps."""
    sums = {table.name: 0.0 for table in model.tables}
    for step in range(STEPS):
        for host in range(hosts):
            batches = [model.batch(host * workers + worker, step) for worker in range(workers)]
            for table in model.tables:
                ids = [batch[name].ravel() for batch in batches for name in table.ids]
                sums[table.name] += np.unique(np.concatenate(ids)).size
    return {name: rows / (STEPS * hosts) for name, rows in sums.items()}
