"""Makes all workers train the launcher's graph: compares names and structure, and copies the launcher's values.

A worker's script may draw other random numbers than the launcher's did. Small values come from the launcher. Of a large
constant only a digest does, so worker 0's value counts, which is the launcher's too if both built the same.
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

from parallax.analysis.reading.construction.digests import (
    GraphDifference,
    fingerprint,
    first_difference,
    value_digest,
    values_differ,
)
from parallax.analysis.reading.construction.launcher_graph import LauncherGraph, pin_graph, unpack_graph
from parallax.base.errors import OtherGraphError
from parallax.base.types import Comm, Graph, NodeDef, Operation, TensorProto
from parallax.report.logger import log
from parallax.report.text import list_first, pluralize

_LIBRARIES = ("tensorflow", "keras", "tf_keras", "parallax")


def read_launcher_graph(graph: Graph, data: bytes, expected: str, rank: int) -> tuple[LauncherGraph, str]:
    """Returns the launcher's graph, whose structure this worker's must have, and this worker's fingerprint."""
    launcher, local = unpack_graph(data), graph.as_graph_def(add_shapes=True)
    digest = fingerprint(local)
    # The launcher's digests are created only to report differences between graphs.
    is_planned = digest == expected and len(local.node) == len(launcher.graph_def.node)
    difference = None if is_planned else first_difference(launcher.graph_def, local)
    if difference is not None:
        raise OtherGraphError(_refusal(difference, rank, graph))
    return launcher, digest


def take_launcher_graph(graph: Graph, launcher: LauncherGraph, workers: Comm) -> None:
    """Makes this worker train the launcher's graph; every worker must call it.

    Args:
        graph: the tf.Graph that this worker's script built.
        launcher: the launcher's graph, of the same structure.
        workers: communicator of the workers.
    """
    mine = {node.name: node for node in graph.as_graph_def(add_shapes=True).node}
    others = _of_worker_0(launcher, mine, workers)
    launcher = replace(launcher, others=others)
    pin_graph(graph, launcher)
    _log_differences(launcher, mine, workers)


def _of_worker_0(launcher: LauncherGraph, mine: dict[str, NodeDef], workers: Comm) -> dict[str, TensorProto]:
    """The large constants that some worker built with another value than worker 0, with worker 0's values."""
    digests = {name: value_digest(mine[name]) for name in launcher.digests}
    first = workers.bcast(digests, 0)
    differing = {name for names in workers.allgather([n for n in first if digests[n] != first[n]]) for name in names}
    value_by_name = {}
    for name in sorted(differing):
        tensor = mine[name].attr["value"].tensor
        value = workers.bcast(tensor.SerializeToString() if workers.rank == 0 else None, 0)
        if digests[name] != first[name]:
            value_by_name[name] = type(tensor).FromString(value)
    return value_by_name


def _log_differences(launcher: LauncherGraph, mine: dict[str, NodeDef], workers: Comm) -> None:
    """Logs once the values that differed between workers."""
    names = [
        node.name
        for node in launcher.graph_def.node
        if (node.name in launcher.others if node.name in launcher.digests else values_differ(node, mine[node.name]))
    ]
    differing = dict.fromkeys(name for found in workers.allgather(names) for name in found)
    if differing and workers.rank == 0:
        count = pluralize(len(differing), "op")
        log.info(f"Values of {count} differ between processes; all use the launcher's: {list_first(list(differing))}.")


def _refusal(difference: GraphDifference, rank: int, graph: Graph) -> str:
    place = place_of(graph.get_operation_by_name(difference.op)) if difference.op else ""
    return (
        f"All processes of a job must build the same graph, but worker {rank} "
        f"{difference.text}{f' ({place})' if place else ''}. Constants and seeds may differ (the launcher's are "
        "used); names, ops, inputs and shapes may not: none may depend on a random number, the time, the host or the "
        "order of a set (where `python` itself starts the script, that order needs PYTHONHASHSEED=0)."
    )


def place_of(op: Operation) -> str:
    """`FILE:LINE` of the script's line that made an op; empty when there is none."""
    around = [str(Path(file).parent) for name in _LIBRARIES if (file := getattr(sys.modules.get(name), "__file__", ""))]
    own = [
        frame
        for frame in op.traceback or ()  # ops of an imported graph have none
        if not frame.filename.startswith((*(f"{folder}/" for folder in around), "<", runpy.__file__))
    ]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
