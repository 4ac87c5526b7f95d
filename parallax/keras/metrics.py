"""What Keras reports of a step: logs of the global batch, put together of what each worker has.

The variables of a metric are sums over examples (Keras's own `aggregation="sum"`): each worker adds up its own, and the
sum over the workers is the one process's. Logs are computed again of the whole sums. What a step logs beside its
metrics is a mean over the workers, or has their rows one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from parallax.errors import SessionError
from parallax.functions.shares import OTHER_INPUT
from parallax.runtime.worker.barrier import wait_for
from parallax.types import (
    Array,
    Comm,
    ConcreteFunction,
    GraphDef,
    Logs,
    MpiRequest,
    Operation,
    Session,
    Tensor,
    Value,
    Variable,
)

NO_ROWS: Mapping[str, Array] = MappingProxyType({})


class LogsOfSums:
    """The logs of a traced step as functions of its metrics' variables.

    Attributes:
        others: log -> its tensor in the step, of those that are made of something else.
    """

    def __init__(self, concrete: ConcreteFunction, logs: dict[str, Tensor], variables: Sequence[Variable]) -> None:
        """Takes the part of a traced step that computes its logs.

        Args:
            concrete: the traced step.
            logs: log -> tensor of its graph.
            variables: the tf.Variables of metrics, whose values are given in this order.
        """
        number_of = {id(variable.handle): number for number, variable in enumerate(variables)}
        handles = {
            inner.op.name: number_of[id(outer)] for outer, inner in concrete.graph.captures if id(outer) in number_of
        }
        self.others: dict[str, Tensor] = {}
        pure, nodes, reads = [], {}, {}
        for name, tensor in logs.items():
            found = _behind(tensor, handles)
            if found is None:
                self.others[name] = tensor
            else:
                pure.append(name)
                nodes.update({op.name: op for op in found[0]})
                reads.update(found[1])
        self._names = list(logs)
        self._pure = pure
        self._results = _no_metrics
        if pure:
            self._results = self._built(concrete, nodes, reads, [logs[n] for n in pure], variables)

    @staticmethod
    def _built(
        concrete: ConcreteFunction,
        nodes: Collection[str],
        reads: Mapping[str, int],
        results: Sequence[Tensor],
        variables: Sequence[Variable],
    ) -> Callable[..., Sequence[Value]]:
        """What gives the results of the variables' values."""
        whole = concrete.graph.as_graph_def()
        part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
        part.node.extend(node for node in whole.node if node.name in nodes)
        for node in part.node:
            kept = [name for name in node.input if not name.startswith("^")]
            del node.input[:]
            node.input.extend(kept)
        graph = tf.Graph()
        with graph.as_default():
            given = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in variables]
            replaced = {name: given[number] for name, number in reads.items()}
            direct = [replaced.get(t.name) for t in results]
            found = tf.graph_util.import_graph_def(
                part,
                input_map={name: tensor for name, tensor in replaced.items() if _is_taken(name, part)},
                return_elements=[t.name for t, known in zip(results, direct, strict=True) if known is None],
                name="",
            )
            waiting = iter(found or [])
            outputs = [known if known is not None else next(waiting) for known in direct]
        options = config_pb2.CallableOptions(feed=[t.name for t in given], fetch=[t.name for t in outputs])
        session: Session = tf.compat.v1.Session(graph=graph)
        called: Callable[..., Sequence[Value]] = session._make_callable_from_options(options)  # make_callable is slower
        return called

    def logs(self, sums: Sequence[Value], others: Logs) -> Logs:
        """The logs in their order, scalars or arrays.

        Args:
            sums: the values of the metrics' variables.
            others: values of the logs in `others`.
        """
        found = dict(zip(self._pure, self._results(*sums), strict=True)) | others
        return {name: found[name] for name in self._names}


def _no_metrics(*_: Value) -> Sequence[Value]:
    """The results of a step whose logs are computed of no metric."""
    return ()


def is_of_metrics(tensor: Tensor, variables: Sequence[Variable]) -> bool:
    """Whether a tensor of a function that is being traced is computed of metrics' variables alone."""
    handles = {id(variable.handle) for variable in variables}
    captured = {inner.op.name: 0 for outer, inner in tensor.graph.captures if id(outer) in handles}
    return _behind(tensor, captured) is not None


def _is_taken(name: str, part: GraphDef) -> bool:
    """Whether a tensor is an input of a graph's nodes."""
    short = name.removesuffix(":0")
    return any(short in (i, i.removesuffix(":0")) for node in part.node for i in node.input)


def _behind(tensor: Tensor, handles: dict[str, int]) -> tuple[list[Operation], dict[str, int]] | None:
    """(the ops that compute a tensor of reads of metrics' variables, read -> variable); None where it needs more."""
    nodes, reads, waiting = [], {}, [tensor]
    seen = set()
    while waiting:
        one = waiting.pop()
        op = one.op
        if op.type == "ReadVariableOp" and op.inputs[0].op.name in handles:
            reads[one.name] = handles[op.inputs[0].op.name]
            continue
        if op.type == "Placeholder" or (op.inputs and any(t.dtype == tf.resource for t in op.inputs)):
            return None
        if op.name not in seen:
            seen.add(op.name)
            nodes.append(op)
            waiting += list(op.inputs)
    return nodes, reads


def rows_of_all(rows: Mapping[str, Array], comm: Comm) -> dict[str, Array]:
    """What has a row for each example of a worker's part of a batch, of the whole batch; every worker must call it."""
    return {name: np.concatenate(comm.allgather(value)) for name, value in rows.items()}


class MetricSums:
    """The sums of a model's metrics over all workers, since each was last written.

    A step's sums are on their way until somebody asks for them, or the next step has been made.

    Attributes:
        variables: the tf.Variables of metrics, in order.
        zeros: arrays of their types and shapes.
        latest: the sums after the last step.
    """

    def __init__(self, variables: Sequence[Variable], comm: Comm | None) -> None:
        self.variables = list(variables)
        self._comm, self._size = comm, 1 if comm is None else comm.Get_size()
        self._base = [variable.numpy() for variable in variables]
        self.zeros = [np.zeros_like(value) for value in self._base]
        self.latest = StepSums(self._base)

    @property
    def sums(self) -> list[Value]:
        """What the one process would have, arrays of the variables' types."""
        return self.latest.sums

    @property
    def others(self) -> dict[str, Value]:
        """What the last step logged beside metrics, of all workers."""
        return self.latest.others

    def begin_at(self, values: dict[int, Value]) -> None:
        """Some variables begin anew, by their numbers, at these values; the workers' own parts of all begin at zero."""
        self._base = list(self.sums)
        for number, value in values.items():
            self._base[number] = np.asarray(value, self._base[number].dtype)
        self.latest = StepSums(self._base)

    def send(
        self, parts: Sequence[Value], others: Mapping[str, Value], digest: int, rows: Mapping[str, Array] = NO_ROWS
    ) -> None:
        """Has what the workers have after a step put together; every worker must call it.

        Args:
            parts: this worker's sums, by variable.
            others: what is logged beside metrics: a mean over the workers.
            digest: of this worker's input, below 2**16.
            rows: what is logged and has a row for each of this worker's examples.

        Raises:
            SessionError: the input of the step before was not the same on all workers.
        """
        self.latest.arrive()
        assert self._comm is not None, "several workers talk to each other"
        given = [np.ravel(part) for part in (*parts, *others.values())]
        own = np.concatenate([np.array([digest, digest * digest], np.float64), *given], dtype=np.float64)
        whole = np.empty_like(own)
        coming = _Coming(own, whole, self._comm.Iallreduce(own, whole), list(parts), dict(others), self._size)
        joined = rows_of_all(rows, self._comm)
        self.latest = StepSums(self._base, lambda: coming.wait(joined))

    def follow(self, wait: Callable[[], StepValues]) -> None:
        """Records a step whose results are those of the global batch; waits for the step before.

        Args:
            wait: gives the sums of the step by variable, and its logs beside metrics.
        """
        before, self.latest = self.latest, StepSums(self._base, wait)
        before.arrive()


StepValues = tuple[Sequence[Value], dict[str, Value]]
"""What a step has given: the sums by variable, and logs beside metrics."""


@dataclass(frozen=True, slots=True)
class _Coming:
    """A step's sums on their way.

    Attributes:
        own: what this worker gives, which MPI reads until they are there.
        whole: where they arrive.
        request: of MPI.
        parts: this worker's sums, by variable.
        others: this worker's logs beside metrics.
        size: number of workers.
    """

    own: Array
    whole: Array
    request: MpiRequest
    parts: list[Value]
    others: dict[str, Value]
    size: int

    def wait(self, rows: dict[str, Array]) -> StepValues:
        """What all workers have together; `rows` are part of the logs.

        Raises:
            SessionError: the input was not the same on all workers.
        """
        wait_for(self.request)
        if self.size * self.whole[1] != self.whole[0] ** 2:
            raise SessionError(OTHER_INPUT)
        place, found = 2, []
        for value in (*self.parts, *self.others.values()):
            found.append(self.whole[place : place + np.size(value)].reshape(np.shape(value)))
            place += np.size(value)
        means = zip(self.others.items(), found[len(self.parts) :], strict=True)
        logs = {name: (part / self.size).astype(np.asarray(value).dtype) for (name, value), part in means}
        return found[: len(self.parts)], logs | rows


class StepSums:
    """What one process would have after a step: waited for, and put together, when somebody asks for it.

    Args:
        base: the values at which the workers' own parts began, by variable.
        wait: gives the sums of those parts, and logs; None where there was no step.
    """

    def __init__(self, base: Sequence[Value], wait: Callable[[], StepValues] | None = None) -> None:
        self._base, self._wait = base, wait

    def arrive(self) -> None:
        """Waits for the sums.

        Raises:
            SessionError: the input was not the same on all workers.
        """
        self._values  # noqa: B018

    @cached_property
    def _values(self) -> StepValues | None:
        return None if self._wait is None else self._wait()

    @cached_property
    def sums(self) -> list[Value]:
        """The metrics' variables, arrays of their types."""
        if self._values is None:
            return list(self._base)
        pairs = zip(self._base, self._values[0], strict=True)
        return [(base + np.asarray(part).astype(base.dtype)).astype(base.dtype) for base, part in pairs]

    @property
    def others(self) -> dict[str, Value]:
        """What the step logged beside metrics, of all workers."""
        return {} if self._values is None else self._values[1]
