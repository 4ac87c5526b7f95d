"""Checks the invariants of the finished graph; a violation names the offending op.

- tables: every table and slot variable has the local shape; no gather of full rows remains.
- gradients: gradients pass from autodiff to the update through an exchange: no redirected edge still reads the raw
  tensor.
- state: an update of a trained variable reads no raw gradient of one worker.
- seeds: no random op is unseeded.

In addition, every lookup of a table is a pull, and no op on the worker itself writes variables that servers store: such
a node is a NoOp or an Identity.
"""

from __future__ import annotations

from collections.abc import Mapping

from parallax.base.errors import TransformError
from parallax.base.types import GraphDef, NodeDef
from parallax.graph.ops import takes_seeds
from parallax.graph.view import Edge, tensor_name
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.editor import Worker


def check(graph_def: GraphDef, rewrites: Rewrites, worker: Worker) -> None:
    """Raises TransformError, naming the op, when an invariant of a pass is violated."""
    nodes = {node.name: node for node in graph_def.node}
    _check_passes(nodes, rewrites, worker)
    check_exchanges(nodes, rewrites)
    check_servers(nodes, rewrites)


def _check_passes(nodes: Mapping[str, NodeDef], rewrites: Rewrites, worker: Worker) -> None:
    for table in rewrites.tables:
        if table.servers:
            continue
        expected = list(table.local_shape(worker.rank, worker.size))[:1]
        for member in table.members:
            shape = [dim.size for dim in nodes[member].attr["shape"].shape.dim]
            if shape[:1] != expected:
                raise TransformError(
                    f"{member!r} must have the local shape {[*expected, *shape[1:]]} on worker {worker.rank}, and has "
                    f"{shape}."
                )
    for lookup in rewrites.lookups:
        if nodes[lookup.node].op != "Identity" and not lookup.combines:
            raise TransformError(
                f"Lookup {lookup.node!r} of table {lookup.table!r} must be a pull, and is {nodes[lookup.node].op}."
            )
    for tensor, edge, what in _led_edges(rewrites):
        if edge.node not in nodes or _input(nodes[edge.node], edge.slot) == tensor_name(tensor):
            raise TransformError(
                f"Input {edge.slot} of {edge.node!r} must take {what}, and takes {tensor!r} as it was."
            )
    for name, node in nodes.items():
        if takes_seeds(node) and not (node.attr["seed"].i or node.attr["seed2"].i):
            raise TransformError(f"Random op {name!r} must have a seed, and has none.")


def check_servers(nodes: Mapping[str, NodeDef], rewrites: Rewrites) -> None:
    """Raises TransformError when an op on the worker itself still writes variables that servers store."""
    for one in rewrites.owned:
        if one.writes and nodes[one.node].op not in ("NoOp", "Identity"):
            raise TransformError(
                f"{one.node!r} must write the partitions of {one.table!r} on their servers, and is still "
                f"{nodes[one.node].op} in the worker."
            )


def _led_edges(rewrites: Rewrites) -> list[tuple[str, Edge, str]]:
    """(raw tensor, edge, required input) for all edges that passes redirect."""
    led = [(s.tensor, e, "scaled gradient rows") for s in rewrites.scales for e in s.edges]
    led += [(r.tensor, e, "the all-reduced value") for r in rewrites.all_reduces for e in r.edges]
    led += [(b.tensor, e, "worker 0's value") for b in rewrites.broadcasts for e in b.edges]
    for cut in rewrites.slices:
        if not rewrites.table(cut.table).servers:
            led += [(cut.tensor, e, "the local rows") for e in cut.edges]
    led += [(g.tensor, e, "all rows") for g in rewrites.gathers for e in g.edges]
    return led


def _input(node: NodeDef, slot: int) -> str:
    data = [name for name in node.input if not name.startswith("^")]
    return tensor_name(data[slot]) if slot < len(data) else ""


def check_exchanges(nodes: Mapping[str, NodeDef], rewrites: Rewrites) -> None:
    """Raises TransformError when an update still reads raw gradient rows instead of pushed or collected ones."""
    exchanged = [(*p.values, *p.indices) for p in rewrites.pushes if not rewrites.table(p.table).servers]
    exchanged += [(*c.values, *c.indices) for c in rewrites.collects]
    for edges in exchanged:
        for edge in edges:
            tensor_read = _input(nodes[edge.node], edge.slot)
            if not tensor_read.startswith("parallax/"):
                raise TransformError(
                    f"Input {edge.slot} of {edge.node!r} must take exchanged rows, and takes {tensor_read!r}."
                )
