"""Pass: moves nodes to servers: partitions of tables, the nodes that compute or write them, and the workers' protocol.

Every node that stores, computes or writes rows of a table on servers (rewrites.ServerNode) is built again for each
partition, on the partition's server. In synchronous training worker 0's graph has all of them. It takes the gradients
of all workers from accumulators, applies them once, and signals the others through queues. The other workers' graphs
have the nodes that only read; where worker 0 writes, they contribute their gradients and wait. In asynchronous training
every worker has all nodes and applies its own gradients at once, one worker at a time for each partition (locks.py);
initial values are worker 0's.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.framework import ops

from parallax.base.types import Operation, Tensor, TensorShape
from parallax.graph.ownership import Ownership
from parallax.graph.view import Edge, node_of, split_tensor
from parallax.plans.rewrites import AllReduce, GatherRows, Rewrites, ServerNode, Table
from parallax.transform.building.editor import Editor
from parallax.transform.building.reduce_and_broadcast import device_of
from parallax.transform.passes.initial_rows import LocalRows
from parallax.transform.passes.locks import Locks
from parallax.transform.passes.server_partitions import assemble_rows, partition_name, reduce_partitions

_READS = ("Identity", "ReadVariableOp")


def run_on_servers(editor: Editor, rewrites: Rewrites) -> None:
    """Builds the nodes that run on servers, and redirects the user's graph to their results."""
    if editor.partitions:
        _Servers(editor, rewrites).build()


class _Servers:
    """The nodes on servers during construction, for one worker."""

    def __init__(self, editor: Editor, rewrites: Rewrites) -> None:
        self.editor = editor
        self.view = editor.view
        self.owned = {one.node: one for one in rewrites.owned}
        self.tables = {table.op: table for table in rewrites.tables if table.servers}
        self.synchronous = rewrites.terms.synchronous
        self.leads = editor.worker.rank == 0
        self.own = LocalRows(editor, rewrites)
        self.ops: dict[str, list[Operation]] = {}
        self.driven = self._find_driven(rewrites)
        self.locks = Locks(editor, rewrites) if not self.synchronous else None
        self.done: dict[str, Operation] = {}
        self.given: dict[str, list[Operation]] = {}
        slices = [cut for cut in rewrites.slices if cut.table in self.tables]
        self.cut = {edge: self.tables[cut.table] for cut in slices for edge in cut.edges}
        self.gathers: dict[str, list[GatherRows]] = {}
        for gather in rewrites.gathers:
            if gather.table in self.tables:
                self.gathers.setdefault(gather.tensor, []).append(gather)
        self.sums: dict[str, list[AllReduce]] = {}
        for reduction in rewrites.all_reduces:
            if reduction.table:
                self.sums.setdefault(reduction.tensor, []).append(reduction)

    def build(self) -> None:
        """Builds all of them, in the same order on every worker."""
        for tensor in [t for t in self.gathers if node_of(t) not in self.owned]:
            self._gather(tensor, self._parts_of_input(tensor))
        for one in self.owned.values():
            if one.node not in self.driven or self.leads:
                count = len(self.tables[one.table].servers)
                self.ops[one.node] = [self._copy(one, number) for number in range(count)]
            self._contribute_results(one)
        for one in self.owned.values():
            if one.writes:
                self._end_of_write(one)
        self._leave_nothing_behind()
        if not self.synchronous:
            self._fetch_from_servers()

    def _find_driven(self, rewrites: Rewrites) -> set[str]:
        """The nodes that worker 0 alone runs: those that write, or compute from the gradients of all workers."""
        driven: set[str] = set()
        for one in rewrites.owned:
            edges = [Edge(one.node, slot) for slot in range(len(self.view.inputs(one.node)))]
            is_driven = self.synchronous and any(edge in self.editor.arrivals for edge in edges)
            from_driven = not driven.isdisjoint(self._before(one.node))
            if is_driven or from_driven or (one.writes and (self.synchronous or one.initial)):
                driven.add(one.node)
        return driven

    def _before(self, node: str) -> list[str]:
        """The nodes on servers among a node's data and control inputs."""
        nodes = (*(node_of(t) for t in self.view.inputs(node)), *self.view.controls(node))
        return [before for before in dict.fromkeys(nodes) if before in self.owned]

    def _copy(self, one: ServerNode, number: int) -> Operation:
        """The copy of a node for one partition, on its server."""
        definition = type(self.view.nodes[one.node])()
        definition.CopyFrom(self.view.nodes[one.node])
        definition.name = partition_name(one.node, number)
        definition.device = device_of(self.tables[one.table].servers[number])
        del definition.input[:]
        for attribute in ("_class", "_output_shapes"):
            definition.attr.pop(attribute, None)
        count = len(self.view.inputs(one.node))
        inputs = [self._input(Edge(one.node, slot), number) for slot in range(count)]
        waits = [op for c in self.view.controls(one.node) for op in self._waits(one, c, number)]
        if self.locks is not None:
            waits += self.locks.waits(one, number, self._input)
        return ops.Operation.from_node_def(
            definition, self.editor.scratch, inputs=inputs, control_inputs=list(dict.fromkeys(waits))
        )

    def _input(self, edge: Edge, number: int) -> Tensor:
        """The value of an input for one partition."""
        parts = self.editor.redirected_parts.get(edge)
        if parts is not None:
            return parts[number]
        if edge in self.cut:
            self.editor.redirected_parts[edge] = self._cut(edge, self.cut[edge])
            return self.editor.redirected_parts[edge][number]
        tensor = self.view.inputs(edge.node)[edge.slot]
        node, output = split_tensor(tensor)
        if edge in self.editor.redirected:
            return self.editor.at(edge)
        if node in self.editor.partitions:
            return self.editor.partitions[node][number]
        if node in self.owned:
            return self.ops[node][number].outputs[output]
        return self.editor.tensor(tensor)

    def _cut(self, edge: Edge, table: Table) -> list[Tensor]:
        """A full value by partition; values that can be computed by row are computed on the partition's server."""
        if table.is_scalar:
            return [self.editor.at(edge)]
        places = enumerate(map(device_of, table.servers))
        variable, rows, ownership = table.variable, table.rows, Ownership.even(len(table.servers))
        with tf.name_scope("parallax/local_rows/"):
            return [self.own.at(edge, variable, rows, ownership, number, place) for number, place in places]

    def _waits(self, one: ServerNode, control: str, number: int) -> list[Operation]:
        """The control inputs of a copy where the node waited for `control`."""
        if control not in self.owned:
            return [self.editor.operation(control)]
        return [self.ops[control][number]] if self.owned[control].table == one.table else self.ops[control]

    def _finish(self, node: str) -> Operation:
        """An op of this worker after which a node on servers is known to have run."""
        if self.owned[node].writes:
            return self.editor.operation(node)  # becomes a NoOp that waits for all of it
        if node not in self.done:
            waits = [
                *(self.ops.get(node) or self._contribute(node)),
                *map(self.editor.operation, self._last_writers(node)),
            ]
            with tf.control_dependencies(waits), self.editor.scratch.name_scope(None):
                self.done[node] = tf.no_op(name=f"{partition_name(node, 0).rpartition('/')[0]}/done")
        return self.done[node]

    def _last_writers(self, node: str) -> list[str]:
        """The writers on worker 0 that a node waits for, without those that others of them wait for."""
        writers, waiting, seen = set[str](), [node], {node}
        while waiting:
            for before in self._before(waiting.pop()):
                if before in self.driven and before not in seen:
                    seen.add(before)
                    if self.owned[before].writes:
                        writers.add(before)
                    else:
                        waiting.append(before)
        return sorted(w for w in writers if not any(w in self.view.ancestors([o]) for o in writers - {w}))

    def _contribute(self, node: str) -> list[Operation]:
        """The ops by which this worker contributes the inputs of a node, and of all before it, to worker 0."""
        if node not in self.given:
            ops: list[Operation] = []
            for slot, tensor in enumerate(self.view.inputs(node)):
                edge, before = Edge(node, slot), node_of(tensor)
                if edge in self.editor.arrivals:
                    ops += self.editor.arrivals[edge]
                elif edge in self.editor.redirected:
                    ops.append(self.editor.at(edge).op)
                elif before not in {*self.editor.partitions, *self.owned} and not self.owned[node].initial:
                    ops.append(self.editor.operation(before))
            for before in self._before(node):
                if before in self.driven:
                    ops += self._contribute(before)
            self.given[node] = list(dict.fromkeys(ops))
        return self.given[node]

    def _contribute_results(self, one: ServerNode) -> None:
        """Redirects the consumers of a node to its result, combined from all partitions."""
        for tensor in self.view.outputs(one.node):
            output = split_tensor(tensor)[1]
            parts = [op.outputs[output] for op in self.ops[one.node]] if one.node in self.ops else None
            for reduction in self.sums.get(tensor, ()):
                self._sum(one, reduction, parts)
            self._gather(tensor, parts)

    def _sum(self, one: ServerNode, reduction: AllReduce, parts: list[Tensor] | None) -> None:
        tensor = reduction.tensor
        value = None
        if parts is not None:
            if reduction.kind == "rows_mean":
                weighed = self._parts_of_input(reduction.weight) or []
                counts = [tf.cast(tf.raw_ops.Shape(input=w)[0], parts[0].dtype) for w in weighed]
                sums = [tf.where(c > 0, p * c, tf.zeros_like(p)) for p, c in zip(parts, counts, strict=True)]
                value = tf.add_n(sums) / tf.add_n(counts)
            else:
                value = reduce_partitions(parts, reduction.kind)
        value = self._share(one.node, tensor, value, self.view.shape(tensor))
        self.editor.redirect(reduction.edges, value)
        self.editor.full_tensors[tensor] = str(value.name)

    def _gather(self, tensor: str, parts: list[Tensor] | None) -> None:
        for gather in self.gathers.get(tensor, ()):
            table = self.tables[gather.table]
            value = None
            shape = self.view.shape(tensor)
            if parts is not None:
                value = assemble_rows(parts, table.rows, shape)
            value = self._share(node_of(tensor), tensor, value, shape)
            self.editor.redirect(gather.edges, value)
            self.editor.full_tensors[tensor] = str(value.name)

    def _share(self, node: str, tensor: str, value: Tensor, shape: TensorShape) -> Tensor:
        """A value on this worker, sent by worker 0 where it alone has it."""
        arrives = any(edge in self.editor.arrivals for edge in self.view.consumers(tensor))
        if node not in self.driven and not (node not in self.owned and arrives):
            return value
        with tf.control_dependencies([] if value is not None else self._gave(node, tensor)):
            dtype = value.dtype.base_dtype if value is not None else tf.dtypes.as_dtype(self.view.dtype(tensor))
            return self.editor.meetings.deliver(value, dtype, tf.TensorShape(shape))

    def _gave(self, node: str, tensor: str) -> list[Operation]:
        if node in self.owned:
            return self._contribute(node)
        return [op for e in self.view.consumers(tensor) for op in self.editor.arrivals.get(e, ())]

    def _parts_of_input(self, tensor: str) -> list[Tensor] | None:
        """A tensor by partition, where this worker has it: of a variable, a node, or a gradient contributed by all."""
        node, output = split_tensor(tensor)
        if node in self.editor.partitions:
            return list(self.editor.partitions[node])
        if node in self.ops:
            return [op.outputs[output] for op in self.ops[node]]
        edges = self.view.consumers(tensor)
        return next((self.editor.redirected_parts[e] for e in edges if e in self.editor.redirected_parts), None)

    def _end_of_write(self, one: ServerNode) -> None:
        """The end of a write: the user's node has run when all partitions and this worker's copy are written."""
        ops = self.ops.get(one.node, [])
        if self.locks is not None:
            ops = [*ops, *self.locks.releases(one, self.ops)]
        waits = ops
        if one.node in self.driven:
            contributions = [] if self.leads else self._contribute(one.node)
            waits = [*ops, *contributions, *self.editor.meetings.token(ops)]
        table = self.tables[one.table]
        if table.replicated and self._find_written(one.node) == table.op:
            value, refreshed = self._refresh(table, waits)
            if self.view.outputs(one.node):  # a reference continues from here
                self.editor.become_identity(one.node, value, self.owned)
                return
            waits = [*waits, refreshed]
        self.editor.become_no_op(one.node, waits, self.owned)

    def _find_written(self, node: str) -> str:
        """The variable op that a node writes, seen through references that other writers passed on."""
        while node not in self.editor.partitions:
            node = node_of(self.view.inputs(node)[0])
        return node

    def _refresh(self, table: Table, waits: list[Operation]) -> tuple[Tensor, Operation]:
        """Refreshes this worker's copy of a variable from the servers; returns (the new value, the op that does it)."""
        with tf.name_scope("parallax/refresh/"), tf.control_dependencies(waits):
            whole = self._read(table)
            if self.view.op(table.op) == "VarHandleOp":
                write = tf.raw_ops.AssignVariableOp(resource=self.editor.tensor(f"{table.op}:0"), value=whole)
            else:
                write = tf.raw_ops.Assign(ref=self.editor.reference(table.op), value=whole).op
            with tf.control_dependencies([write]):
                return tf.identity(whole), write

    def _read(self, table: Table) -> Tensor:
        """The full value of a variable on the servers."""
        is_resource, dtype = self.view.op(table.op) == "VarHandleOp", tf.dtypes.as_dtype(table.dtype)
        parts = []
        for part, server in zip(self.editor.partitions[table.op], table.servers, strict=True):
            with tf.device(device_of(server)):
                parts.append(
                    tf.raw_ops.ReadVariableOp(resource=part, dtype=dtype) if is_resource else tf.identity(part)
                )
        return assemble_rows(parts, table.rows, table.shape)

    def _fetch_from_servers(self) -> None:
        """Makes fetches of a variable return the servers' value: a worker's copy is as old as its own last update."""
        for table in self.tables.values():
            if table.replicated:
                with tf.name_scope("parallax/whole/"):
                    whole = str(self._read(table).name)
                reads = [e.node for e in self.view.consumers(f"{table.op}:0") if self.view.op(e.node) in _READS]
                self.editor.full_tensors.update({f"{node}:0": whole for node in (table.op, *reads)})

    def _leave_nothing_behind(self) -> None:
        """Removes the results of user nodes whose copies run; nodes that waited for them wait for the copies.

        Reads of variables stay unchanged, and are never run: TensorFlow looks them up by name.
        """
        waited_for = {c for n in self.view.nodes if not self._is_idle(n) for c in self.view.controls(n)}
        for node, one in self.owned.items():
            if one.writes:
                continue
            if not all(node_of(t) in self.editor.partitions for t in self.view.inputs(node)):
                self.editor.become_no_op(node, [self._finish(node)] if node in waited_for else [], self.owned)
            elif node in waited_for:
                for waiting in [n for n in self.view.nodes if node in self.view.controls(n)]:
                    self.editor.waits_for[waiting, node] = self._finish(node)

    def _is_idle(self, node: str) -> bool:
        return node in self.owned and not self.owned[node].writes
