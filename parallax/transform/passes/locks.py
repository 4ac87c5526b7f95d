"""Pass: serializes asynchronous updates, one worker at a time for each partition.

TensorFlow's update ops are not atomic among workers: scatter-adds share a lock, and Adam on sparse rows is several ops.
So all ops that update a partition from one gradient run under a mutex on its server. The mutex is acquired when all
their inputs have arrived there, so no worker holds it while another process is slow.

Pulls and refreshed copies acquire no mutex. An update that needs a value from elsewhere that was read under the
update's own lock is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from parallax.base.errors import TransformError
from parallax.base.types import Operation, Tensor
from parallax.graph.view import Edge, node_of
from parallax.plans.rewrites import Rewrites, ServerNode
from parallax.transform.building.editor import SCOPE, Editor
from parallax.transform.building.reduce_and_broadcast import device_of


class Locks:
    """The mutexes of one worker's graph, while its nodes on servers are built."""

    def __init__(self, editor: Editor, rewrites: Rewrites) -> None:
        self._editor = editor
        self._owned = {one.node: one for one in rewrites.owned}
        self._servers = {table.op: table.servers for table in rewrites.tables}
        self._group_of = self._groups()
        self._members: dict[str, list[str]] = {}
        for node, group in self._group_of.items():
            self._members.setdefault(group, []).append(node)
        self._locks: dict[tuple[str, int], Tensor] = {}
        self._released: dict[str, list[Operation]] = {}

    def waits(self, one: ServerNode, number: int, input_of: Callable[[Edge, int], Tensor]) -> list[Operation]:
        """The control inputs of a copy, so that no other worker updates the partition meanwhile.

        Args:
            one: the node.
            number: of the partition.
            input_of: the input of an edge in a partition.
        """
        group = self._group_of.get(one.node)
        if group is None:
            return []
        if (group, number) not in self._locks:
            self._locks[group, number] = self._acquire(group, number, input_of)
        return [self._locks[group, number].op]

    def releases(self, one: ServerNode, ops: dict[str, list[Operation]]) -> list[Operation]:
        """The ops that release the mutex after the whole update."""
        group = self._group_of.get(one.node)
        if group is None:
            return []
        if group not in self._released:
            self._released[group] = []
            for number, server in enumerate(self._servers[one.table]):
                done = [ops[node][number] for node in self._members[group]]
                with tf.control_dependencies(done), tf.device(device_of(server)), tf.name_scope(f"{SCOPE}/lock/"):
                    release = tf.raw_ops.ConsumeMutexLock(mutex_lock=self._locks[group, number])
                self._released[group].append(release)
        return self._released[group]

    def _acquire(self, group: str, number: int, input_of: Callable[[Edge, int], Tensor]) -> Tensor:
        table = self._owned[group].table
        with tf.device(device_of(self._servers[table][number])), tf.name_scope(f"{SCOPE}/lock/"):
            arrived = [tf.identity(input_of(edge, number)) for edge in self._arrivals(group)]
            with tf.control_dependencies(None):
                mutex = tf.raw_ops.MutexV2(shared_name=f"{SCOPE}/lock/{table}/{number}")
            with tf.control_dependencies([*(a.op for a in arrived), *self._waited_for(group)]):
                return tf.raw_ops.MutexLock(mutex=mutex)

    def _waited_for(self, group: str) -> list[Operation]:
        """The control inputs of a group from elsewhere; they precede the lock, so no op waits for them under it."""
        controls = {c for node in self._members[group] for c in self._editor.view.controls(node)}
        elsewhere = sorted(c for c in controls if c not in self._owned or self._is_written_elsewhere(group, c))
        for control in elsewhere:
            self._check_not_circular(group, control)
        return [self._editor.operation(control) for control in elsewhere]

    def _is_written_elsewhere(self, group: str, node: str) -> bool:
        return self._owned[node].writes and self._group_of.get(node) != group

    def _arrivals(self, group: str) -> list[Edge]:
        """The edges through which values from elsewhere reach a group's nodes, or nodes computed for them."""
        view, edges = self._editor.view, []
        waiting, seen = list(self._members[group]), set(self._members[group])
        while waiting:
            node = waiting.pop()
            for slot, tensor in enumerate(view.inputs(node)):
                before, edge = node_of(tensor), Edge(node, slot)
                if before in self._editor.partitions and edge not in self._editor.redirected_parts:
                    continue
                if before in self._owned and edge not in self._editor.redirected:
                    if before not in seen:
                        seen.add(before)
                        waiting.append(before)
                    continue
                self._check_not_circular(group, before)
                edges.append(edge)
        return sorted(edges)

    def _check_not_circular(self, group: str, before: str) -> None:
        inside = self._editor.view.ancestors([before]) & set(self._members[group])
        if inside:
            raise TransformError(
                f"An asynchronous update must not depend on a value that it reads under its own lock, but its input "
                f"{before!r} depends on {sorted(inside)[0]!r}. Train this graph with sync=True."
            )

    def _groups(self) -> dict[str, str]:
        """For every node that reads or writes a partition in an update, the first node of that update."""
        view = self._editor.view
        locked = [n for n, one in self._owned.items() if not one.initial and self._touches_state(n)]
        leader = {node: node for node in locked}

        def find(node: str) -> str:
            while leader[node] != node:
                node = leader[node]
            return node

        def join(nodes: list[str]) -> None:
            for node in nodes[1:]:
                first, second = sorted((find(nodes[0]), find(node)))
                leader[second] = first

        for node in locked:
            if self._owned[node].writes:
                before = view.ancestors([node]) & leader.keys()
                same = [n for n in sorted(before) if self._owned[n].table == self._owned[node].table]
                join([node, *(n for n in same if n != node)])
        for node in view.nodes:
            by_table: dict[str, list[str]] = {}
            for control in view.controls(node):
                if control in leader and self._owned[control].writes:
                    by_table.setdefault(self._owned[control].table, []).append(control)
            for writers in by_table.values():
                join(writers)
        groups: dict[str, list[str]] = {}
        for node in locked:
            groups.setdefault(find(node), []).append(node)
        writing = {g for g, nodes in groups.items() if any(self._owned[n].writes for n in nodes)}
        return {node: find(node) for node in locked if find(node) in writing}

    def _touches_state(self, node: str) -> bool:
        inputs = self._editor.view.inputs(node)
        return self._owned[node].writes or any(node_of(t) in self._editor.partitions for t in inputs)
