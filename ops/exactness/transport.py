"""The transport in memory: combines the graphs of all workers into one, with ordinary ops in place of collectives.

`combine_workers` gives each worker's nodes a prefix, functions, loops and state of their own. It replaces each
collective by ops on the inputs of all workers, so that one run of one session is a run of all workers. Nodes on another
process, such as a server, share their state among all workers. In a model in stages, a collective is among the workers
of one stage, and a stage receives the tensors that another stage of its replica sends.

`check_meetings` finds before a run the workers that would wait in a collective that others do not run. A collective in
a conditional that not all workers take returns nothing to any worker: the tensor that `name_run_marker` names then has
no value, and TensorFlow refuses to fetch it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from parallax.cluster.team_names import STAGE, WORKERS
from parallax.graph.control_flow import branches_of, loop_conditions
from parallax.graph.view import GraphView, node_of, tensor_name
from parallax.transform.passes.cut_stages import RECEIVE, SEND
from parallax.transform.passes.cut_stages import SCOPE as MESSAGES
from parallax.transform.passes.fused_all_reduces import members_of

_ALL_REDUCE = "ParallaxAllReduce"
_REDUCTIONS = {"sum": "Sum", "min": "Min", "max": "Max"}
_FRAMES = ("Enter", "RefEnter")
_BOOL = 10  # types.proto
_PROCESS = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


class MeetingError(RuntimeError):
    """Not all workers take part in a collective."""


def of_worker(rank: int, name: str) -> str:
    """Returns the name of a worker's node or tensor in the combined graph."""
    return f"worker_{rank}/{name}"


def name_run_marker(rank: int, op: str) -> str:
    """Returns the name of a tensor that has a value in a run if a worker's op has run in it."""
    return f"ran/{of_worker(rank, op)}:0"


def is_collective(op: str) -> bool:
    """Returns whether nodes of this type are collectives."""
    return op.startswith("Horovod") or op in _COLLECTIVES


def combine_workers(graph_defs: Sequence[Any], ops: Iterable[str] = (), stages: int = 1) -> Any:
    """Combines the GraphDefs of all workers into one.

    Args:
        graph_defs: by worker; not changed.
        ops: these get a run marker on every worker that has them.
        stages: number of workers in a replica of a model in stages.

    Raises:
        MeetingError: not all workers have a collective.
        NotImplementedError: a collective is not supported here.
    """
    joined = type(graph_defs[0])()
    joined.versions.CopyFrom(graph_defs[0].versions)
    loops = [_find_loops(graph_def) for graph_def in graph_defs[:stages]]
    collectives: list[dict[str, Any]] = []
    for rank, graph_def in enumerate(graph_defs):
        own = _WorkerNamespace(rank, graph_def.library, rank - rank % stages, loops[rank % stages][1])
        nodes = joined.node
        names = {node.name for node in graph_def.node} if stages > 1 else None
        collectives.append({node.name: node for node in graph_def.node if is_collective(node.op)})
        for node in graph_def.node:
            if node.name not in collectives[-1]:
                own.add_node(node, nodes.add())
        own.add_library(graph_def.library, joined.library)
        for op in ops if names is None else names.intersection(ops):
            _Writer(joined).const(
                name_run_marker(rank, op).removesuffix(":0"), np.bool_(True), [f"^{of_worker(rank, op)}"]
            )
    for stage in range(stages):
        team = collectives[stage::stages]
        _check_alike("the graph", team)
        for name in team[0]:
            members = {stage + stages * replica: own[name] for replica, own in enumerate(team)}
            place = f"together/stage_{stage}/{name}" if stages > 1 else f"together/{name}"
            _replace_collective(joined, place, members, name in loops[stage][0])
    return joined


def _find_loops(graph_def: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the collectives in loops, and the frames and conditions of these loops and those around them."""
    collectives = [node.name for node in graph_def.node if is_collective(node.op)]
    view = GraphView(graph_def)
    branches = branches_of(view) if collectives else {}
    loops = {name: found for name in collectives if (found := [one.predicate for one in branches[name] if one.is_loop])}
    shared = frozenset(chain(*loops.values()))
    conditions = {node_of(tensor) for frame, tensor in loop_conditions(view).items() if frame in shared}
    return frozenset(loops), shared | conditions


def check_meetings(views: Sequence[GraphView], fetches: Sequence[Iterable[str]], fed: Sequence[Iterable[str]]) -> None:
    """Checks that the runs of all workers need the same collectives.

    Args:
        views: of the workers' graphs.
        fetches: tensors or ops of each worker.
        fed: tensors of each worker.

    Raises:
        MeetingError: a worker needs a collective that another does not.
    """
    needed = []
    for view, names, given in zip(views, fetches, fed, strict=True):
        cut_off = frozenset(given)
        nodes = {node_of(name) if ":" in name else name for name in names if name not in cut_off}
        joined = members_of(view.graph_def)
        needed.append({n for n in view.ancestors(nodes, cut_off) if is_collective(view.op(n)) or n in joined})
    _check_alike("the run", needed)


def _check_alike(where: str, collectives: Sequence[Iterable[str]]) -> None:
    name_sets: list[set[str]] = [set(names) for names in collectives]
    for name in sorted(name_sets[0].union(*name_sets) - name_sets[0].intersection(*name_sets)):
        waiting = [rank for rank, names in enumerate(name_sets) if name in names]
        gone = [rank for rank, names in enumerate(name_sets) if name not in names]
        raise MeetingError(f"{name}: workers {waiting} wait, and workers {gone} have ended {where} without it")


class _WorkerNamespace:
    """Copies the nodes and functions of a worker under names of its own.

    Args:
        rank: of the worker.
        library: of its graph.
        first: rank of the first stage of its replica.
        shared: frames and conditions of loops with collectives; in one session, such a loop is one for all workers.
    """

    def __init__(self, rank: int, library: Any, first: int, shared: frozenset[str]) -> None:
        self._rank, self._first, self._shared = rank, first, shared
        self._functions = {f.signature.name: f"worker_{rank}_{f.signature.name}" for f in library.function}

    def add_node(self, node: Any, to: Any) -> None:
        """Copies a node of the graph."""
        to.CopyFrom(node)
        to.name = of_worker(self._rank, node.name)
        to.input[:] = [_input(self._rank, name) for name in node.input]
        if "shared_name" in to.attr and not to.attr["shared_name"].s:  # others may name what the node makes by its name
            to.attr["shared_name"].s = node.name.encode()
        if "_class" in to.attr:
            names = to.attr["_class"].list.s
            names[:] = [_colocated(self._rank, name.decode()).encode() for name in names]
        if node.op == "ParallaxAnnounce":  # wakes a thread of Horovod
            to.op = "NoOp"
        if node.op in (SEND, RECEIVE):
            self._rename_in_message(node, to)
        self._settle(to)
        if node.name in self._shared and self._first:  # a loop has one condition
            to.op = "Identity"
            to.attr["T"].type = _BOOL

    def _rename_in_message(self, node: Any, to: Any) -> None:
        """Connects a stage's receiving node to another stage's sending node."""
        if node.op == RECEIVE:
            sender = self._first + node.attr["peer"].i
            to.input.insert(0, of_worker(sender, f"{MESSAGES}/send_{node.attr['number'].i}"))
        to.op = "Identity"
        for attribute in set(to.attr) - {"T"}:
            del to.attr[attribute]

    def add_library(self, library: Any, to: Any) -> None:
        """Copies all functions.

        Raises:
            NotImplementedError: a function has a collective.
        """
        for function in library.function:
            copied = to.function.add()
            copied.CopyFrom(function)
            copied.signature.name = self._functions[function.signature.name]
            for node in copied.node_def:
                if is_collective(node.op):
                    raise NotImplementedError(f"{node.op} {node.name!r} in a function has no transport in memory.")
                self._settle(node)
        for gradient in library.gradient:
            copied = to.gradient.add()
            copied.function_name = self._function(gradient.function_name)
            copied.gradient_func = self._function(gradient.gradient_func)

    def _settle(self, node: Any) -> None:
        """Gives a node this worker's functions, state and loop frames."""
        node.op = self._function(node.op)
        for value in node.attr.values():
            self._rename(value)
        process = _PROCESS.search(node.device)
        if "container" in node.attr:
            whose = "".join(process.groups()) if process else f"worker{self._rank}"
            node.attr["container"].s = f"{whose}/".encode() + node.attr["container"].s
        if process:  # the session has no other process
            node.device = ""
        if node.op in _FRAMES and node.attr["frame_name"].s.decode() not in self._shared:
            node.attr["frame_name"].s = of_worker(self._rank, node.attr["frame_name"].s.decode()).encode()

    def _rename(self, value: Any) -> None:
        for called in [value.func] if value.HasField("func") else value.list.func if value.HasField("list") else ():
            called.name = self._function(called.name)
            for inner in called.attr.values():
                self._rename(inner)

    def _function(self, name: str) -> str:
        return self._functions.get(name, name)


def _input(rank: int, name: str) -> str:
    return f"^{of_worker(rank, name[1:])}" if name.startswith("^") else of_worker(rank, name)


def _colocated(rank: int, name: str) -> str:
    return f"loc:@{of_worker(rank, name.removeprefix('loc:@'))}"


class _Writer:
    """Writes nodes into a GraphDef; in a loop, constants depend on a node of it."""

    def __init__(self, graph_def: Any, inside: Sequence[str] = ()) -> None:
        self._graph_def, self._inside = graph_def, inside

    def node(self, op: str, name: str, inputs: Sequence[str], **attrs: int | list[int]) -> str:
        """Adds a node and returns its name. Lists, and attributes whose names start with T, are type enums."""
        node = self._graph_def.node.add(op=op, name=name, input=inputs)
        for key, value in attrs.items():
            if isinstance(value, list):
                node.attr[key].list.type.extend(value)
            elif key.startswith("T"):
                node.attr[key].type = value
            else:
                node.attr[key].i = value
        return name

    def const(self, name: str, value: Any, controls: Sequence[str] = ()) -> str:
        """Adds a constant, a NumPy scalar, and returns its name."""
        import tensorflow as tf

        node = self._graph_def.node.add(op="Const", name=name, input=[*controls, *self._inside])
        node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        return name


Given = Sequence[Sequence[str]]
"""The inputs of a collective, by worker."""


def _replace_collective(joined: Any, name: str, of_workers: Mapping[int, Any], is_in_loop: bool) -> None:
    """Replaces a collective by ops, which return nothing before all workers have reached it.

    Args:
        joined: the combined graph.
        name: prefix of the ops.
        of_workers: the workers' nodes, by rank.
        is_in_loop: whether a loop runs it.
    """
    node = next(iter(of_workers.values()))
    if node.op not in _COLLECTIVES:
        raise NotImplementedError(f"{node.op} {node.name!r} has no transport in memory.")
    inputs = [[_input(rank, name) for name in one.input] for rank, one in of_workers.items()]
    given = [[name for name in names if not name.startswith("^")] for names in inputs]
    writer = _Writer(joined, [f"^{node_of(tensor_name(given[0][0]))}"] if is_in_loop else [])
    comes = [
        taken if taken.startswith("^") else f"^{node_of(tensor_name(taken))}"
        for names in inputs
        for taken in names
        # A result of an all-reduce needs all inputs anyway. A control input would compute an input that is fed.
        if taken.startswith("^") or node.op != _ALL_REDUCE
    ]
    controls = dict.fromkeys(comes)
    results, types = _COLLECTIVES[node.op](writer, node, name, given)
    for rank, made in zip(of_workers, results, strict=True):
        writer.node("IdentityN", of_worker(rank, node.name), [*made, *controls], T=types)


def _all_reduce(writer: _Writer, node: Any, name: str, given: Given) -> tuple[Given, list[int]]:
    of, reduction = node.attr["T"].type, _REDUCTIONS[node.attr["kind"].s.decode()]
    made = []
    for number, parts in enumerate(zip(*given, strict=True)):
        packed = writer.node("Pack", f"{name}/parts_{number}", parts, T=of, N=len(given))
        scaled = _times(writer, f"{name}/scaled_{number}", packed, of, node.attr["scales"].list.f[number])
        axis = writer.const(f"{name}/axis_{number}", np.int32(0))
        made.append(writer.node(reduction, f"{name}/reduced_{number}", [scaled, axis], T=of))
    return [made] * len(given), [of] * len(made)


def _times(writer: _Writer, name: str, tensor: str, of: int, factor: float) -> str:
    import tensorflow as tf

    if factor == 1.0:
        return tensor
    number = writer.const(f"{name}/factor", np.asarray(factor, tf.as_dtype(of).as_numpy_dtype))
    return writer.node("Mul", name, [tensor, number], T=of)


def _all_gather(writer: _Writer, node: Any, name: str, given: Given) -> tuple[Given, list[int]]:
    of = node.attr["T"].type
    return [[_concatenated(writer, name, [part for (part,) in given], of)]] * len(given), [of]


def _concatenated(writer: _Writer, name: str, parts: Sequence[str], of: int) -> str:
    if len(parts) == 1:  # ConcatV2 needs two or more
        return parts[0]
    axis = writer.const(f"{name}/axis", np.int32(0))
    return writer.node("ConcatV2", f"{name}/rows", [*parts, axis], T=of, N=len(parts))


def _broadcast(writer: _Writer, node: Any, name: str, given: Given) -> tuple[Given, list[int]]:
    return [given[node.attr["root_rank"].i]] * len(given), [node.attr["T"].type]


def _all_to_all(writer: _Writer, node: Any, name: str, given: Given) -> tuple[Given, list[int]]:
    import tensorflow as tf

    if node.attr["among"].s.decode() not in (STAGE, WORKERS):
        raise NotImplementedError(f"{node.name!r} is among the workers of one host; in memory there is only one host.")
    of, size, int32 = node.attr["T"].type, len(given), tf.int32.as_datatype_enum
    axis = writer.const(f"{name}/axis", np.int32(0))
    for sender, (rows, splits, *_) in enumerate(given):
        writer.node("SplitV", f"{name}/sent_{sender}", [rows, splits, axis], T=of, Tlen=int32, num_split=size)
        writer.node("Unpack", f"{name}/counts_{sender}", [splits], T=int32, num=size)
    results = []
    for rank, (_, _, *arriving) in enumerate(given):
        pieces = [f"{name}/sent_{sender}:{rank}" for sender in range(size)]
        received = _concatenated(writer, f"{name}/received_{rank}", pieces, of)
        numbers = [f"{name}/counts_{sender}:{rank}" for sender in range(size)]
        counts = writer.node("Pack", f"{name}/arrived_{rank}", numbers, T=int32, N=size)
        if arriving:
            counts = _checked(writer, f"{name}/known_{rank}", arriving[0], counts)
        results.append([received, counts])
    return results, [of, int32]


def _checked(writer: _Writer, name: str, told: str, counts: str) -> str:
    """Returns the counts of rows that have arrived; asserts that they equal the announced ones."""
    import tensorflow as tf

    int32 = tf.int32.as_datatype_enum
    equal = writer.node("Equal", f"{name}/equal", [told, counts], T=int32)
    axis = writer.const(f"{name}/axis", np.int32(0))
    are_all = writer.node("All", f"{name}/all", [equal, axis])
    shown = writer.node("Assert", f"{name}/rows_told_and_arrived", [are_all, told, counts], T=[int32, int32])
    return writer.node("Identity", name, [counts, f"^{shown}"], T=int32)


_COLLECTIVES: Mapping[str, Callable[[_Writer, Any, str, Given], tuple[Given, list[int]]]] = {
    _ALL_REDUCE: _all_reduce,
    "HorovodAllgather": _all_gather,
    "HorovodBroadcast": _broadcast,
    "ParallaxAllToAll": _all_to_all,
}
