"""Summaries that a step writes: the traced step returns their values, and the script's own writers write them.

A writer of `tf.summary` is a resource of the script's process, which workers cannot reach. The values are those of the
global batch, as any result that the layout engine replicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import tensorflow as tf
from tensorflow.python.ops import gen_summary_ops, summary_ops_v2

from parallax.base.errors import GraphError
from parallax.base.types import Graph, Handle, Operation, Tensor, Value

_NESTED = (
    "A step writes the summary {tag!r} in a conditional, a loop or a function that it calls, from which no value "
    "reaches the script. Write it in the step itself; tf.summary.record_if(condition) selects the steps that write it."
)
_OPS = ("write_summary", "write_raw_proto_summary", "flush_summary_writer")
"""Ops of a writer: two that `tf.summary` writes with, and one that leaving a writer's context calls."""


@dataclass(frozen=True, slots=True)
class SummaryCall:
    """A call of an op of a writer in a step.

    Attributes:
        op: creates the op.
        writer: the writer's resource; or a function that returns it, or None once the writer is closed.
        arguments: the op's other arguments: Python values, or the index of a result of the step.
        condition: index of the result that decides whether it is called; None: always.
    """

    op: Callable[..., Operation]
    writer: Handle | Callable[[], Handle | None]
    arguments: tuple[object, ...]
    condition: int | None


@dataclass(frozen=True, slots=True)
class _Result:
    index: int


class StepSummaries:
    """The summaries of a traced step, in order.

    Attributes:
        tensors: their values and conditions, tensors of the traced function.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._calls: list[SummaryCall] = []
        self._condition: int | None = None
        self.tensors: list[Tensor] = []

    def write(self, values: Sequence[Value]) -> None:
        """Writes the summaries of a step that was run.

        Args:
            values: of `tensors`.
        """
        for call in self._calls:
            if call.condition is None or values[call.condition]:
                writer = call.writer() if callable(call.writer) else call.writer
                if writer is not None:
                    own = [values[one.index] if isinstance(one, _Result) else one for one in call.arguments]
                    call.op(writer, *own)

    def note_condition(self, condition: object) -> object:
        """The condition by which the next summary is recorded; True in place of a tensor, whose value is fetched."""
        self._condition = None
        if not tf.is_tensor(condition):
            return condition
        self._condition = self._index(condition)
        return True

    def note_call(self, op: Callable[..., Operation], writer: Handle, arguments: Sequence[object]) -> Operation:
        """Records a call of an op in place of making the op.

        Raises:
            GraphError: a summary is written in a function or a body within the step.
        """
        is_nested = tf.compat.v1.get_default_graph() is not self._graph
        if arguments and is_nested:
            raise GraphError(_NESTED.format(tag=arguments[2] if len(arguments) > 2 else ""))
        if not is_nested:
            own = tuple(_Result(self._index(one)) if tf.is_tensor(one) else one for one in arguments)
            self._calls.append(SummaryCall(op, writer, own, self._condition if arguments else None))
        return tf.no_op()

    def _index(self, tensor: Tensor) -> int:
        self.tensors.append(tf.identity(tensor))
        return len(self.tensors) - 1


@contextmanager
def record_summaries() -> Iterator[StepSummaries]:
    """A context for a step that is being traced, which collects the summaries that it writes."""
    summaries = StepSummaries(tf.compat.v1.get_default_graph())
    is_recorded = summary_ops_v2.should_record_summaries

    def replace_op(name: str) -> AbstractContextManager[object]:
        original = getattr(gen_summary_ops, name)

        def note(writer: Handle, *arguments: object, name: str | None = None, **named: object) -> Operation:
            return summaries.note_call(original, writer, (*arguments, *named.values()))

        return mock.patch.object(gen_summary_ops, name, note)

    decide = mock.patch.object(
        summary_ops_v2, "should_record_summaries", lambda: summaries.note_condition(is_recorded())
    )
    with ExitStack() as stack:
        for one in (decide, *map(replace_op, _OPS)):
            stack.enter_context(one)
        yield summaries
