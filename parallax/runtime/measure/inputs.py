"""Extracts the part of a user's graph that some tensors need, and opens a plain session on it with a worker's inputs.

Only what is needed is initialized: variables, lookup tables, dataset iterators; queues that are read are filled. Random
ops draw what that worker of a job with the same seed draws, and datasets are sharded for that worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf

from parallax.analysis.reading.capture import CapturedGraph, initialization_phases
from parallax.base.errors import ConfigError, GraphError
from parallax.base.types import ConfigProto, Graph, GraphDef, QueueRunnerDef, Session, Value
from parallax.graph.view import node_of
from parallax.runtime.worker.session.feeds import placeholders_in
from parallax.transform.building.editor import Worker
from parallax.transform.passes.random_seeds import set_seeds
from parallax.transform.passes.shard_numbers import set_shards

_ITERATORS = ("IteratorV2", "Iterator")
_SHAPES, _BESIDE = "_output_shapes", "_class"


@dataclass(frozen=True)
class Inputs:
    """A part of a graph that can be run by itself.

    Attributes:
        graph_def: its nodes.
        variables: variable ops among them.
        phases: ops that compute initial values, to be run one phase after the other.
        equal_draws: the nodes that draw the same for all workers, as those for initial values of variables do.
        runners: protos of the queue runners that fill its queues.
        placeholders: those that must be fed, sorted.
        feedable_nodes: the nodes of all tensors that can be fed in addition.
    """

    graph_def: GraphDef
    variables: tuple[str, ...]
    phases: tuple[tuple[str, ...], ...]
    equal_draws: frozenset[str]
    runners: tuple[QueueRunnerDef, ...]
    placeholders: tuple[str, ...]
    feedable_nodes: frozenset[str]

    def fed_by(self, batch: Mapping[str, Value]) -> dict[str, Value]:
        """The values of a batch that this part of the graph reads."""
        return {name: value for name, value in batch.items() if node_of(name) in self.feedable_nodes}


def inputs_of(
    graph: Graph, captured: CapturedGraph, tensors: Sequence[str], fed: frozenset[str], named: Sequence[str] = ()
) -> Inputs:
    """Extracts the part of a graph that some tensors need.

    Args:
        graph: the user's.
        captured: the same, captured.
        tensors: names of tensors or operations.
        fed: tensors that are fed, and so need nothing.
        named: ops that the user names to initialize iterators.

    Raises:
        ConfigError: when an iterator has no initializer op, or several, and none is named.
        GraphError: when a queue is never filled.
    """
    view = captured.view
    needed_nodes = {node_of(name) for name in tensors if name not in fed}
    runners: list[QueueRunnerDef] = []
    initial: set[str] = set()
    tables: list[str] = []
    with graph.as_default():  # under eager execution, queues report another name
        protos = [runner.to_proto() for runner in graph.get_collection("queue_runners")]
    while True:
        needed = view.ancestors(needed_nodes, fed)
        variables = sorted(needed & captured.variables.keys())
        initial = {captured.variables[name].initializer for name in variables} - {""}
        tables = _find_initializers(graph, captured, needed, named)
        runners = [proto for proto in protos if proto.queue_name in needed]
        more = needed_nodes | initial | set(tables) | {op for r in runners for op in _ops_of(r)}
        if more == needed_nodes:
            break
        needed_nodes = more
    _check_filled(captured, needed, {proto.queue_name for proto in runners})
    phases = [[op for op in phase if op in initial] for phase in initialization_phases(captured)]
    whole = view.ancestors({*needed_nodes, *map(node_of, tensors)})
    return Inputs(
        graph_def=_extract_nodes(view.graph_def, whole),
        variables=tuple(variables),
        phases=tuple(tuple(phase) for phase in (*phases, tables) if phase),
        equal_draws=frozenset(view.ancestors(initial)),
        runners=tuple(runners),
        placeholders=tuple(n for n in placeholders_in(view, needed) if f"{n}:0" not in fed),
        feedable_nodes=frozenset(needed | {node_of(name) for name in fed if node_of(name) in whole}),
    )


def _find_initializers(graph: Graph, captured: CapturedGraph, needed: set[str], named: Sequence[str]) -> list[str]:
    """The ops that fill the lookup tables and initialize the iterators among the needed nodes."""
    view = captured.view
    handles = {n for n in needed if "HashTable" in view.op(n) or view.op(n) in _ITERATORS}
    known = [op.name for op in graph.get_collection("table_initializer")]
    known += [resource.create.name for resource in graph.get_collection("resources")]
    initializers = [name for name in known if view.ancestors([name]) & handles]
    for handle in sorted(n for n in handles if view.op(n) in _ITERATORS):
        makers = [e.node for e in view.consumers(f"{handle}:0") if view.op(e.node) == "MakeIterator"]
        chosen = (
            [name for name in makers if name in named] or [name for name in makers if name in initializers] or makers
        )
        if len(chosen) != 1:
            raise ConfigError(
                f"A dataset iterator must have one op that initializes it, but {handle!r} has "
                f"{len(makers)}{(' (' + ', '.join(makers[:5]) + ')' if makers else '')}. Name the one that training "
                "runs with --init."
            )
        initializers += [name for name in chosen if name not in initializers]
    return initializers


def _check_filled(captured: CapturedGraph, needed: set[str], filled: set[str]) -> None:
    """Refuses a queue that is read and never filled: reading it would block for ever."""
    view = captured.view
    for node in sorted(needed - filled):
        if view.op(node).removesuffix("V2").endswith("Queue") and not any(
            "Enqueue" in view.op(edge.node) and edge.node in needed for edge in view.consumers(f"{node}:0")
        ):
            raise GraphError(
                f"A queue must have a queue runner that fills it, but {node!r} has none. Add one with "
                "tf.train.add_queue_runner, or measure in a job: parallax run --measure FILE."
            )


def _ops_of(proto: QueueRunnerDef) -> list[str]:
    return [*proto.enqueue_op_name, *filter(None, [proto.close_op_name, proto.cancel_op_name])]


def _extract_nodes(graph_def: GraphDef, names: set[str]) -> GraphDef:
    """A copy with some of the nodes, without recorded shapes."""
    cut = type(graph_def)(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if node.name not in names:
            continue
        copy = cut.node.add()
        copy.CopyFrom(node)
        copy.attr.pop(_SHAPES, None)
        if _BESIDE in copy.attr:
            colocated = copy.attr[_BESIDE].list.s
            colocated[:] = [place for place in colocated if place.decode().removeprefix("loc:@") in names]
            if not colocated:
                del copy.attr[_BESIDE]
    return cut


@contextmanager
def open_session(
    inputs: Inputs, worker: Worker, first: Mapping[str, Value], options: ConfigProto | None = None
) -> Iterator[Session]:
    """Opens a session in this process, with initial values and filled queues; its state is discarded afterwards.

    Args:
        inputs: the part of the graph.
        worker: the worker whose random numbers and shard are used.
        first: the worker's first batch, by the names of tensors: initial values may need some of it.
        options: a ConfigProto; without one the session uses no GPUs.
    """
    v1 = tf.compat.v1
    graph_def = type(inputs.graph_def)()
    graph_def.CopyFrom(inputs.graph_def)
    set_seeds(graph_def, inputs.equal_draws, worker)
    set_shards(graph_def, worker)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        runners = [v1.train.QueueRunner(queue_runner_def=proto) for proto in inputs.runners]
    with v1.Session(graph=graph, config=options or _no_gpu()) as session:
        for phase in inputs.phases:
            session.run(phase, inputs.fed_by(first))
        coordinator = tf.train.Coordinator()
        threads = [t for r in runners for t in r.create_threads(session, coordinator, daemon=True, start=True)]
        try:
            yield session
        finally:
            coordinator.request_stop()
            coordinator.join(threads, ignore_live_threads=True)


def _no_gpu() -> ConfigProto:
    return tf.compat.v1.ConfigProto(allow_soft_placement=True, device_count={"GPU": 0})
