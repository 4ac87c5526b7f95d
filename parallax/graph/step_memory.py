"""Simulates the memory of the tensors of a step: each is live from its producer to its last consumer."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from parallax.graph.ops import ELEMENTWISE
from parallax.graph.view import GraphView, split_tensor

SAME_BUFFER = frozenset(
    """
    Identity RefIdentity Reshape Squeeze ExpandDims StopGradient PreventGradient Snapshot Switch RefSwitch Merge
    RefMerge Enter RefEnter Exit RefExit NextIteration RefNextIteration EnsureShape Bitcast
    """.split()
)
"""The result is the first input's memory under another shape or name."""


class BufferSizes:
    """The kind and bytes of each tensor's buffer, and which buffers have been passed on."""

    def __init__(self) -> None:
        self._passed: set[str] = set()

    def of(self, tensor: str) -> tuple[str, float]:
        """The kind and bytes of a tensor."""
        raise NotImplementedError

    def copies(self, node: str) -> list[tuple[str, float]]:
        """The temporary memory of an op: none."""
        return []

    def gradients_are_in(self, buffer_of: Mapping[str, str]) -> None:
        """Records the buffer of each tensor, where sizes depend on it."""

    def pass_on(self, buffer: str) -> None:
        """Marks a buffer's memory as passed on to another buffer."""
        self._passed.add(buffer)

    def is_taken_over(self, buffer: str) -> bool:
        """Whether a buffer's memory has been passed on to another one."""
        return buffer in self._passed


class StepMemory:
    """A simulation of a step in the executor: an op begins when its inputs are ready and a thread is free, FIFO.

    The duration of an op is proportional to its bytes. Its results are live from its begin to the end of the last
    consumer.

    Args:
        view: the graph.
        sizes: of its tensors.
        order: the nodes that run, each after its inputs.
        holds_received: whether tensors of other nodes are live from the first op that takes them; else they are not
            counted.

    Attributes:
        seen: bytes by kind, at the begin of each op.
    """

    def __init__(self, view: GraphView, sizes: BufferSizes, order: Sequence[str], holds_received: bool = False) -> None:
        self.seen: list[dict[str, float]] = []
        self._sizes, self._view, self._order = sizes, view, order
        self._held: dict[str, float] = {}
        here = set(order)
        self._needs = {node: len({n for n in self._view.predecessors(node) if n in here}) for node in order}
        self._buffer: dict[str, str] = {}
        for node in order:
            inputs = self._view.inputs(node)
            for tensor in self._view.outputs(node):
                alias = inputs and self._view.op(node) in SAME_BUFFER
                self._buffer[tensor] = self._buffer.get(inputs[0], inputs[0]) if alias else tensor
        sizes.gradients_are_in(self._buffer)
        self._takers: dict[str, int] = {}
        for node in order:
            for buffer in self._find_buffers(node):
                self._takers[buffer] = self._takers.get(buffer, 0) + 1
        self._awaited = self._takers.keys() - self._buffer.keys() if holds_received else set[str]()
        self._received: set[str] = set()

    def run(self, threads: int, first: Collection[str] = ()) -> dict[str, float]:
        """Runs all ops, some of them first; returns the bytes by kind when the last of these has ended."""
        left, held = len(first), dict[str, float]()
        late: list[str] = []
        ready = deque(node for node in self._order if not self._needs[node] and (not left or node in first))
        late += [node for node in self._order if not self._needs[node] and left and node not in first]
        place = {node: number for number, node in enumerate(self._order)}
        running: list[tuple[float, int, str]] = []
        now = 0.0
        while ready or running:
            while ready and len(running) < max(threads, 1):
                node = ready.popleft()
                heapq.heappush(running, (now + self._begin(node), place[node], node))
                self.seen.append(dict(self._held))
            now, _, node = heapq.heappop(running)
            self._end(node)
            left -= node in first
            if not left and late:
                ready.extend(late)
                late.clear()
            if not left and not held:
                held = dict(self._held)
            for user in sorted({u for u in self._view.users(node) if u in place}, key=place.__getitem__):
                self._needs[user] -= 1
                if not self._needs[user]:
                    (late if left and user not in first else ready).append(user)
        return held

    def _find_buffers(self, node: str) -> set[str]:
        """The buffers that an op reads or creates; those it creates live at least until it has ended."""
        tensors = (*self._view.inputs(node), *self._view.outputs(node))
        return {self._buffer.get(tensor, tensor) for tensor in tensors}

    def _begin(self, node: str) -> float:
        """Allocates an op's results; returns its duration."""
        bytes_moved = 1.0
        for buffer in self._find_buffers(node):
            if buffer in self._awaited and buffer not in self._received:
                self._received.add(buffer)
                self._hold(*self._sizes.of(buffer))
        for tensor in self._view.outputs(node):
            if self._buffer[tensor] == tensor:
                kind, size = self._sizes.of(tensor)
                bytes_moved += size
                if not self._takes_over(tensor):
                    self._hold(kind, size)
        for kind, size in self._sizes.copies(node):
            bytes_moved += size
            self._hold(kind, size)
        return bytes_moved

    def _end(self, node: str) -> None:
        for kind, size in self._sizes.copies(node):
            self._hold(kind, -size)
        for buffer in self._find_buffers(node):
            self._takers[buffer] -= 1
            is_held = buffer in self._buffer or buffer in self._received
            if not self._takers[buffer] and is_held and not self._sizes.is_taken_over(buffer):
                kind, size = self._sizes.of(buffer)
                self._hold(kind, -size)

    def _hold(self, kind: str, size: float) -> None:
        self._held[kind] = self._held.get(kind, 0.0) + size

    def _takes_over(self, tensor: str) -> bool:
        """Whether an elementwise op writes its result over an input without other remaining consumers."""
        node, number = split_tensor(tensor)
        if self._view.op(node) not in ELEMENTWISE or number:
            return False
        buffer_and_size = self._sizes.of(tensor)
        for tensor_read in self._view.inputs(node):
            buffer = self._buffer.get(tensor_read, "")
            is_free = buffer and self._takers[buffer] == 1 and not self._sizes.is_taken_over(buffer)
            if is_free and buffer_and_size[1] and self._sizes.of(buffer) == buffer_and_size:
                self._sizes.pass_on(buffer)
                return True
        return False
