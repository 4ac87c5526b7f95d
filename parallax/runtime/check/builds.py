"""Builds a script's graph in two processes and reports differences that would keep workers from training one graph."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from parallax.base.errors import GraphError
from parallax.base.types import Graph, GraphDef
from parallax.report.text import list_first
from parallax.settings.environment import Role, Settings, environment_with

_GRAPH_FILE, _SAID_FILE = "graph.pb", "stderr"
_SHOWN = 5
_LAST_LINES = 20


@dataclass(frozen=True)
class SecondBuild:
    """A second process that builds the graph.

    Attributes:
        process: the process.
        folder: of its graph, and of its output.
    """

    process: subprocess.Popen[bytes]
    folder: Path

    def graph_def(self) -> GraphDef:
        """Waits for the graph, as a GraphDef with shapes.

        Raises:
            GraphError: the process ended without one.
        """
        from tensorflow.core.framework import graph_pb2

        status = self.process.wait()
        path = self.folder / _GRAPH_FILE
        if status or not path.exists():
            last_lines = (self.folder / _SAID_FILE).read_text(errors="replace").splitlines()[-_LAST_LINES:]
            raise GraphError(
                f"Every process of a job runs the script, and a second one ended with status {status} before it "
                "called parallel_run with a graph:\n" + "\n".join(last_lines)
            )
        graph_def = graph_pb2.GraphDef()
        graph_def.ParseFromString(path.read_bytes())
        return graph_def


@contextmanager
def second_build(words: Sequence[str], requested: Settings) -> Iterator[SecondBuild]:
    """Context in which a second process builds the graph concurrently with this one.

    Args:
        words: the script and its arguments.
        requested: this process's settings.
    """
    with tempfile.TemporaryDirectory(prefix="parallax-check-") as name:
        folder = Path(name)
        mine = replace(requested, role=Role.CHECK_BUILD, job_folder=name)
        argv = [sys.executable, "-m", "parallax.runtime.worker.script", *words]
        with (folder / _SAID_FILE).open("wb") as said:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, env=environment_with(mine, {})
            )
        try:
            yield SecondBuild(process, folder)
        finally:
            process.kill()
            process.wait()


def write_build(graph: Graph, requested: Settings) -> None:
    """Runs in the second process: saves its graph."""
    data = graph.as_graph_def(add_shapes=True).SerializeToString()
    (Path(requested.job_folder or "") / _GRAPH_FILE).write_bytes(data)


def structural_difference(first: Graph, second: GraphDef) -> str:
    """The structural difference of two builds, with the line of the script that makes it; empty if there is none.

    Args:
        first: tf.Graph of this process.
        second: GraphDef of the other.
    """
    from parallax.analysis.reading.construction.digests import first_difference
    from parallax.runtime.worker.session.one_graph import place_of

    difference = first_difference(second, first.as_graph_def(add_shapes=True))
    if difference is None:
        return ""
    place = place_of(first.get_operation_by_name(difference.op)) if difference.op else ""
    text = difference.text.replace("the launcher's", "the other's").replace("the launcher", "the other")
    where = f" ({place})" if place else ""
    return (
        f"All processes of a job must build the same graph, but of two builds one {text}{where}. No name, op, input "
        "or shape may depend on a random number, the time, the process or the order of a set."
    )


def differing_values(first: Graph, second: GraphDef) -> str:
    """The ops whose values (of constants, or seeds) differ between two builds of one structure; empty if none."""
    from parallax.analysis.reading.construction.digests import values_differ

    others = {node.name: node for node in second.node}
    differing = [n.name for n in first.as_graph_def().node if n.name in others and values_differ(n, others[n.name])]
    if not differing:
        return ""
    shown = list_first(differing, _SHOWN)
    return f"Values (constants, seeds) that differ between two builds: {shown}. Seed what the script draws."
