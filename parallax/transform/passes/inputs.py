"""Pass: lets dataset iterators in the graph start at any element of the sequence that all workers read.

A skip is inserted before the op that initializes an iterator; its count is fed when a job resumes from a checkpoint.
The dataset must then return the same elements again: shuffles without a seed get one from the job's seed.

A sharded dataset (parallax/graph/shard.py) is permanently split into as many shards as the job had workers when it
first started. The global sequence interleaves the elements of the shards, and the workers of the current start
alternate over its elements. Where the number of workers equals the number of shards, and each worker is at its own
shard, a worker reads that shard alone; else each worker reads all shards and skips the elements of the others. A
dataset that is not sharded is per-worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from parallax.base.types import FunctionDef, GraphDef, NodeDef
from parallax.graph.control_flow import branches_of
from parallax.graph.ops import op_definition
from parallax.graph.shard import NUM_SHARDS, SHARD_ID, mark_of
from parallax.graph.view import GraphView, node_of, split_tensor, tensor_name
from parallax.transform.building.editor import Worker
from parallax.transform.passes.random_seeds import mix_seed

INPUTS = "parallax_inputs"
"""The scope of added nodes: unlike nodes under `parallax/`, they are the same in every plan of a job."""
_ITERATORS = ("Iterator", "IteratorV2", "OneShotIterator")
_TAKES, _BEGINS = "IteratorGetNext", "MakeIterator"
_HARMLESS = ("IteratorToStringHandle",)
_BY_NAME = ("IteratorFromStringHandle", "IteratorFromStringHandleV2")


@dataclass(frozen=True, slots=True)
class Maker:
    """An op that initializes an iterator.

    Attributes:
        op: its name.
        start: the tensor that is fed the number of elements to skip.
        is_sharded: whether the workers read one sequence together.
        is_local_shard: whether this worker reads only its own shard of it.
    """

    op: str
    start: str
    is_sharded: bool
    is_local_shard: bool

    def count_skipped(self, number: int, size: int) -> int:
        """The number of elements to skip so that the element of this number comes next."""
        return number // size if self.is_local_shard else number

    def stride(self, size: int) -> int:
        """The distance between the numbers of a worker's elements."""
        return size if self.is_sharded else 1

    def first(self, rank: int) -> int:
        """The number of a worker's first element."""
        return rank if self.is_sharded else 0


@dataclass(frozen=True, slots=True)
class InputIterator:
    """An iterator whose elements are counted.

    Attributes:
        name: of the user's op.
        takes: the ops that read an element from it.
        makers: the ops that initialize it.
        begins_by_itself: whether no op of the user's initializes it: the one maker must be run once.
    """

    name: str
    takes: tuple[str, ...]
    makers: tuple[Maker, ...]
    begins_by_itself: bool


@dataclass(frozen=True, slots=True)
class IteratorsOfGraph:
    """The iterators of a graph: those whose elements are counted, and the names of those where this is impossible."""

    saved: tuple[InputIterator, ...] = ()
    unsaved: tuple[str, ...] = ()


def keep_inputs(graph_def: GraphDef, view: GraphView, worker: Worker) -> IteratorsOfGraph:
    """Inserts a skip before every op that initializes an iterator.

    Args:
        graph_def: modified in place; shards must have been set.
        view: the user's graph.
        worker: the worker whose graph it is.
    """
    return _InputPass(graph_def, view, worker).run()


class _InputPass:
    """One graph during the pass."""

    def __init__(self, graph_def: GraphDef, view: GraphView, worker: Worker) -> None:
        self.graph_def, self.worker, self.branches = graph_def, worker, branches_of(view)
        self.nodes: dict[str, NodeDef] = {node.name: node for node in graph_def.node}
        self.marked: dict[str, bool] = {}

    def run(self) -> IteratorsOfGraph:
        users: dict[str, list[NodeDef]] = {}
        for node in self.graph_def.node:
            for name in node.input[:2]:
                users.setdefault(node_of(name), []).append(node)
        saved, others = list[InputIterator](), list[str]()
        is_by_name = any(node.op in _BY_NAME for node in self.nodes.values())
        for name in [node.name for node in self.graph_def.node if node.op in _ITERATORS]:
            iterator_users = users.get(name, [])
            if is_by_name or not self._is_plain(iterator_users):
                others.append(name)
            elif any(node.op == _TAKES for node in iterator_users):
                saved.append(self._keep(self.nodes[name], iterator_users))
        return IteratorsOfGraph(tuple(saved), tuple(others))

    def _is_plain(self, users: Sequence[NodeDef]) -> bool:
        """Whether elements are read in every run that has an op of `users`, and the pass can see which."""
        known = (_TAKES, _BEGINS, *_HARMLESS)
        return all(node.op in known and not self.branches.get(node.name) for node in users)

    def _keep(self, iterator: NodeDef, users: Sequence[NodeDef]) -> InputIterator:
        begins_by_itself = iterator.op == "OneShotIterator"
        made = [self._make(iterator)] if begins_by_itself else [node for node in users if node.op == _BEGINS]
        makers = tuple(self._skipping(iterator, node) for node in made)
        takes = tuple(node.name for node in users if node.op == _TAKES)
        return InputIterator(iterator.name, takes, makers, begins_by_itself)

    def _make(self, iterator: NodeDef) -> NodeDef:
        """The op that initializes an iterator that initialized itself before, on the dataset of its function."""
        name = iterator.attr["dataset_factory"].func.name
        function = next(one for one in self.graph_def.library.function if one.signature.name == name)
        prefix = f"{INPUTS}/{iterator.name}/"
        for node in function.node_def:
            copy = self._add(prefix + node.name, node.op, iterator.device)
            copy.CopyFrom(node)
            copy.name, copy.device = prefix + node.name, iterator.device
            copy.input[:] = [_outside(one, function, prefix) for one in node.input]
        (result,) = function.ret.values()
        iterator.op = "IteratorV2"
        del iterator.attr["dataset_factory"]
        return self._add(f"{prefix}begin", _BEGINS, iterator.device, _outside(result, function, prefix), iterator.name)

    def _skipping(self, iterator: NodeDef, maker: NodeDef) -> Maker:
        """Makes the dataset of an op that initializes an iterator skip the elements read before."""
        scope, device, dataset = f"{INPUTS}/{maker.name}", iterator.device, maker.input[0]
        is_sharded = self._is_marked(node_of(dataset))
        is_dealt = is_sharded and self.worker.shares is not None
        first = self._constant(f"{scope}/first", self.worker.rank if is_dealt else 0, device)
        start = self._add(f"{scope}/start", "PlaceholderWithDefault", device, first)
        start.attr["dtype"].type = tf.int64.as_datatype_enum
        start.attr["shape"].shape.CopyFrom(tf.TensorShape([]).as_proto())
        if is_dealt:
            dataset = self._in_turns(f"{scope}/shares", iterator, dataset, self.worker.shares or 1)
        else:
            self._seed(dataset, self.worker.rank)
        maker.input[0] = self._dataset(f"{scope}/skip", "SkipDataset", iterator, dataset, start.name)
        if is_dealt:
            workers = self._constant(f"{scope}/workers", self.worker.size, device)
            at = self._constant(f"{scope}/at", 0, device)
            maker.input[0] = self._dataset(f"{scope}/shard", "ShardDataset", iterator, maker.input[0], workers, at)
        return Maker(maker.name, f"{start.name}:0", is_sharded, is_sharded and not is_dealt)

    def _in_turns(self, scope: str, iterator: NodeDef, dataset: str, shares: int) -> str:
        """Interleaves one element of each shard, until all are exhausted."""
        device = iterator.device
        ends = [self._constant(f"{scope}/{n}", v, device) for n, v in (("from", 0), ("to", shares), ("by", 1))]
        turn = self._add(f"{scope}/turn", "RangeDataset", device, *ends)
        again = self._constant(f"{scope}/again", -1, device)
        turns = self._add(f"{scope}/turns", "RepeatDataset", device, turn.name, again)
        for node in (turn, turns):
            node.attr["output_types"].list.type.append(tf.int64.as_datatype_enum)
            node.attr["output_shapes"].list.shape.add()
        copies = [self._share(dataset, share, shares, f"{scope}/{share}/", {}) for share in range(shares)]
        dealt = self._dataset(f"{scope}/all", "DirectedInterleaveDataset", iterator, turns.name, *copies)
        self.nodes[dealt].attr["N"].i = shares
        return dealt

    def _share(self, tensor: str, share: int, shares: int, scope: str, made: dict[str, str]) -> str:
        """A tensor's value in one shard: every node that depends on the shard index is duplicated."""
        is_control = tensor.startswith("^")
        name, number = split_tensor(tensor_name(tensor.removeprefix("^")))
        node = self.nodes[name]
        if not self._is_marked(name):
            self._seed(name, 0)
            return tensor
        if name not in made:
            made[name] = scope + name
            copy = self._add(made[name], node.op, node.device)
            copy.CopyFrom(node)
            copy.name = made[name]
            if mark_of(node):
                value = shares if mark_of(node) == NUM_SHARDS else share
                copy.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64, shape=[]))
            else:
                copy.input[:] = [self._share(one, share, shares, scope, made) for one in node.input]
                self._set_seed(copy, node.name, share)
        if is_control:
            return f"^{made[name]}"
        return f"{made[name]}:{number}" if number else made[name]

    def _seed(self, tensor: str, share: int) -> None:
        """Sets seeds for the shuffles of a dataset that have none; before sharding, the same on all workers."""
        is_sharded = self._is_marked(node_of(tensor))
        for name in self._before(tensor):
            before_shares = is_sharded and not self._is_marked(name)
            self._set_seed(self.nodes[name], name, 0 if before_shares else share)

    def _set_seed(self, node: NodeDef, name: str, share: int) -> None:
        definition = op_definition(node.op)
        inputs = [one.name for one in definition.input_arg] if definition is not None else []
        if "seed" not in inputs or "seed2" not in inputs:
            return
        slots = inputs.index("seed"), inputs.index("seed2")
        if any(self._number(node.input[slot]) != 0 for slot in slots):
            return
        values = self.worker.seed, mix_seed(self.worker.seed, name, share)
        for slot, value in zip(slots, values, strict=True):
            node.input[slot] = self._constant(f"{INPUTS}/seeds/{node.name}/{slot}", value, node.device)

    def _number(self, tensor: str) -> int | None:
        """The value of an integer constant."""
        node = self.nodes[node_of(tensor)]
        if node.op != "Const" or mark_of(node):
            return None
        return int(tf.make_ndarray(node.attr["value"].tensor).reshape(-1)[0])

    def _is_marked(self, name: str) -> bool:
        """Whether a node depends on the index of this worker's shard."""
        if name not in self.marked:
            node, self.marked[name] = self.nodes[name], False  # holds for a loop's back edge too
            self.marked[name] = mark_of(node) in (SHARD_ID, NUM_SHARDS) or any(
                self._is_marked(node_of(one)) for one in node.input
            )
        return self.marked[name]

    def _before(self, tensor: str) -> Iterator[str]:
        """A node, and all its ancestors."""
        waiting, seen = [node_of(tensor)], set[str]()
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += [node_of(one) for one in self.nodes[name].input]
                yield name

    def _dataset(self, name: str, op: str, iterator: NodeDef, *inputs: str) -> str:
        """A dataset with the element types of an iterator."""
        node = self._add(name, op, iterator.device, *inputs)
        for attribute in ("output_types", "output_shapes"):
            node.attr[attribute].CopyFrom(iterator.attr[attribute])
        return name

    def _constant(self, name: str, value: int, device: str) -> str:
        node = self._add(name, "Const", device)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64, shape=[]))
        node.attr["dtype"].type = tf.int64.as_datatype_enum
        return name

    def _add(self, name: str, op: str, device: str, *inputs: str) -> NodeDef:
        self.nodes[name] = self.graph_def.node.add(name=name, op=op, device=device, input=inputs)
        return self.nodes[name]


def _outside(tensor: str, function: FunctionDef, prefix: str) -> str:
    """A tensor of a function's body (`node:output:number`) as one of the graph."""
    if tensor.startswith("^"):
        return f"^{prefix}{tensor[1:]}"
    name, output, number = tensor.split(":")
    node = next(one for one in function.node_def if one.name == name)
    place = int(number)
    for argument in op_definition(node.op).output_arg:  # type: ignore[union-attr]
        if argument.name == output:
            break
        place += _length(argument, node)
    return f"{prefix}{name}:{place}" if place else f"{prefix}{name}"


def _length(argument: Any, node: NodeDef) -> int:
    """The number of tensors of an op's output."""
    if argument.type_list_attr:
        return len(node.attr[argument.type_list_attr].list.type)
    return int(node.attr[argument.number_attr].i) if argument.number_attr else 1
