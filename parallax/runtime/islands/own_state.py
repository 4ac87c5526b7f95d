"""The state of islands in checkpoints, without the first island's variables: keys under `parallax/islands/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parallax.base.types import Graph
from parallax.runtime.checkpoint.format.stored_tensors import OWN_KEYS, stored_variables, variable_op
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.stage_rows import RowsOfCentre, RowsOfStage
from parallax.runtime.checkpoint.rows.variable_rows import StoredVariable
from parallax.runtime.islands.meetings import IslandMeetings

KEYS = f"{OWN_KEYS}islands/"


def island_places(places: Places, graph: Graph, meetings: IslandMeetings) -> Places:
    """The places of variables in a job of islands, which each have all of them.

    Args:
        places: those in one island.
        graph: the user's graph.
        meetings: of the islands.
    """
    from tensorflow.compat import v1

    step = v1.train.get_global_step(graph)
    counted = "" if step is None else variable_op(step)  # equal on all workers
    stages = {one.op: 0 for one in stored_variables(graph) if one.op != counted}
    return replace(places, stages=stages, stage=meetings.members.island, centres=meetings.centres())


def entries_of_islands(held: Sequence[StoredVariable], meetings: IslandMeetings) -> tuple[StoredVariable, ...]:
    """The centre's momentum; and of each island what a meeting leaves different from the first.

    Args:
        held: the variables of the graph.
        meetings: of the islands.
    """
    members, centres = meetings.members, meetings.centres()
    tables = {one.op for one in meetings.averaged.tables}
    trained = {one.op for one in meetings.averaged.dense}
    found: list[StoredVariable] = []
    for one in held:
        if not isinstance(one, RowsOfStage | RowsOfCentre):
            continue
        op, key = one.stored.op, one.stored.key
        islands = range(1, members.islands)
        if op in centres:
            islands = range(members.islands if op in trained and not meetings.terms.joins else 0)
            if op in trained and meetings.terms.outer_momentum and not meetings.terms.simultaneous:
                entry = replace(one.stored, key=f"{KEYS}momentum/{key}")
                found.append(RowsOfCentre(entry, None, centres[op].momentum, one.comm))
        elif op in tables:
            islands = range(0)
        for island in islands:
            entry, own = (
                replace(one.stored, key=f"{KEYS}{island}/{key}"),
                one.local_rows if island == members.island else None,
            )
            shared = isinstance(one, RowsOfStage) and one.is_shared
            found.append(RowsOfStage(entry, own, island * members.replicas, one.comm, shared))
    return tuple(found)
